"""ExcelManus's `mcp.json`: one server's configuration, and the loader that finds the file."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from multitap.config import (
    Document,
    HttpServer,
    Layer,
    Loaded,
    Problem,
    ServerConfig,
    Severity,
    StdioServer,
    Surroundings,
    excelmanus,
    load,
    merge,
    read_document,
)
from multitap.config.projects import Approval, Proposal, TrustDecision, TrustNothing, TrustState
from multitap.errors import ConfigError
from multitap.trust.projects import Projects

logger = logging.getLogger(__name__)

_CONTAINERS = {"spec07": "mcp", "excelmanus": "mcpServers"}
"""The key that holds the servers in each dialect."""


def read_entry(dialect: str, name: str, entry: Mapping[str, Any]) -> ServerConfig:
    """The configuration of a server that is written in a seed's terms.

    Raises:
        ConfigError: Something is missing or wrong; the message names the key.
    """
    container = _CONTAINERS[dialect]
    document = Document(path=Path("(program)"), data={container: {name: entry}})
    merged = merge([Layer(read_document(document, Path.cwd(), dialect_name=dialect))])
    config = merged.settings.servers.get(name)
    for problem in merged.problems:
        message = f"`{problem.key.removeprefix(f'{container}.')}`: {problem.message}"
        # a problem that costs the entry is an error; one that costs a key is a warning
        if config is None:
            raise ConfigError(message, hint=problem.hint)
        logger.warning("%s", message)
    if config is None:
        raise ConfigError(f"`{name}` does not say how to reach it")
    return config


logger = logging.getLogger(__name__)

_FIELDS = {"command", "args", "env", "url", "timeout"}


@dataclass(frozen=True, slots=True)
class MCPServerConfig:
    """How to reach one server."""

    name: str
    transport: Literal["stdio", "sse", "http", "streamable-http"]
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = field(default=None, repr=False)
    url: str | None = None
    timeout: float = 30
    """Seconds for one call."""
    origin: StdioServer | HttpServer | None = field(default=None, repr=False, compare=False)
    """The file's entry, which may have keys that this class lacks."""
    project: Path | None = field(default=None, repr=False, compare=False)
    """The project whose file describes it."""

    @classmethod
    def of(
        cls,
        name: str,
        server: StdioServer | HttpServer,
        *,
        written: Collection[str] = (),
        project: Path | None = None,
    ) -> "MCPServerConfig":
        """A configuration with these fields; `written` are keys that may be present but empty."""
        present = {*server.given_fields, *written}.intersection(_FIELDS, server.__struct_fields__)
        values: dict[str, Any] = {name: getattr(server, name) for name in present}
        # ExcelManus has a list here, our own model a tuple
        if "args" in values:
            values["args"] = [*values["args"]]
        return cls(name=name, transport=server.transport, origin=server, project=project, **values)

    def check_trust(self) -> None:
        """Refuse a server of a project that nobody has trusted.

        Raises:
            Untrusted: It comes with such a project.
        """
        if self.project is not None and self.origin is not None:
            Projects().check_start(self.project, self.project, self.name, self.origin)

    def server(self) -> ServerConfig:
        """The same server in our own format.

        Raises:
            ConfigError: Something is missing or wrong; the message names the key.
        """
        fields = {name: getattr(self, name) for name in ("transport", *_FIELDS)}
        values = {name: value for name, value in fields.items() if value is not None}
        server = read_entry("excelmanus", self.name, values)
        if self.origin is None or type(server) is not type(self.origin):
            return server
        return self.origin.replace(**{name: getattr(server, name) for name in values})


class MCPConfigLoader:
    """Finds and reads `mcp.json`."""

    @staticmethod
    def load(
        config_path: str | Path | None = None, workspace_root: str | Path = "."
    ) -> list[MCPServerConfig]:
        """The servers of the first of these files that exists.

        1. the file named by the variable `EXCELMANUS_MCP_CONFIG`
        2. `config_path`
        3. `mcp.json` in `workspace_root`
        4. `~/.excelmanus/mcp.json`

        Servers of the third one connect once a person has trusted them (`multitap trust`).
        A server with a wrong configuration is skipped with a warning; a file that cannot be read
        is an error in the log and an empty list.
        """
        return configs(read(config_path, workspace_root, approval=_AsData()))


class _AsData(TrustNothing):
    """Reads a project's entries as data; trust is checked when a server connects."""

    def decide(self, proposal: Proposal, /) -> TrustDecision:
        return TrustDecision(dict.fromkeys(proposal.servers, TrustState.TRUSTED))


def read(
    config_path: str | Path | None, workspace_root: str | Path, *, approval: Approval | None = None
) -> Loaded:
    """The content of the first file that exists; its problems are logged."""
    where = Surroundings.here(Path(workspace_root))
    search = excelmanus(where, Path(config_path) if config_path else None)
    loaded = load(search, approval=approval or Projects())
    for problem in loaded.problems:
        logger.log(_level(problem), "%s", problem)
    return loaded


def configs(loaded: Loaded) -> list[MCPServerConfig]:
    """The enabled servers."""
    return [
        MCPServerConfig.of(
            name,
            server,
            written=loaded.merged.servers[name].merge_entries().node.value,
            project=loaded.project_of(name),
        )
        for name, server in loaded.settings.servers.items()
        if server.enabled and isinstance(server, StdioServer | HttpServer)
    ]


def _level(problem: Problem) -> int:
    if problem.severity is Severity.NOTE:
        return logging.INFO
    whole_file = problem.severity is Severity.ERROR and problem.server is None
    return logging.ERROR if whole_file else logging.WARNING
