"""The methods that a subclass of an environment may override."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from multitap.config import (
    Document,
    Layer,
    Loaded,
    Search,
    Serve,
    ServerConfig,
    Settings,
    Source,
    load,
    read_document,
)
from multitap.env.environment_models import EnvironmentModels
from multitap.env.environment_servers import EnvironmentServers
from multitap.env.environment_world import EnvironmentWorld
from multitap.tools import ToolRegistry
from multitap.upstream.handlers import Handlers

if TYPE_CHECKING:
    from multitap.env.env_protocol import EnvAgent, EnvProfile

ClientConfig = Mapping[str, Any] | ServerConfig
"""A server as agent-core writes it (`{"type": "local", "command": [...]}`), or as we do."""


class McpServerOptions(TypedDict):
    """What others may do through the environment's own server, besides reading."""

    execute_tool: bool
    invoke_llm: bool


_RENAMED = {
    "get_mcp_client_config": "mcp_client_config",
    "get_mcpservers_directory": "mcpservers_directory",
    "get_mcp_server_config": "mcp_server_config",
}
"""Hooks that nobody calls under agent-core's names."""


class EnvironmentHooks:
    """Hooks with defaults, and the parts of an environment that they may use."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in _RENAMED.keys() & vars(cls).keys():
            raise TypeError(f"{cls.__name__}.{name} is never called: name it `{_RENAMED[name]}`")

    def __init__(self) -> None:
        self.registry = ToolRegistry()
        """All tools; the environment's own win over servers' tools of the same name."""
        self.servers = EnvironmentServers(self.load_configuration, type(self).__name__)
        """The configuration, and the hub."""
        self.models = EnvironmentModels(self.servers)
        self.world = EnvironmentWorld(self)
        """The environment as the Env protocol sees it: its agents, tools, prompts and logs."""

    @property
    def settings(self) -> Settings:
        """The settings in force now."""
        return self.servers.settings

    def base_settings(self) -> Settings:
        """Agents, profiles, prompts, a model, limits, and servers."""
        return Settings()

    def mcpservers_directory(self) -> Path | None:
        """A folder of servers: each folder in it is one."""
        return None

    def mcp_client_config(self) -> Mapping[str, ClientConfig]:
        """The servers to connect to, by name; amends what `mcpservers_directory` finds."""
        return {}

    def mcp_server_config(self) -> Serve | None:
        """How the environment is served to MCP clients."""
        return self.settings.serve

    def is_mcp_server_enabled(self) -> bool:
        """Whether it is served as soon as it is open."""
        config = self.mcp_server_config()
        return config is not None and config.enabled

    def create_mcp_server_options(self) -> McpServerOptions:
        """What others may do through its server."""
        said = self.settings.environment
        return McpServerOptions(execute_tool=said.execute_tool, invoke_llm=said.invoke_llm)

    def handlers(self) -> Handlers:
        """Callbacks for requests of servers; by default, the model if `invoke_llm` is on."""
        said = self.settings
        # the user pays for it, so servers get the model only if configured
        shared = said.environment.invoke_llm and said.model is not None
        return Handlers(sample=self.models.sample if shared else None, sample_tools=shared)

    def get_env_id(self) -> str:
        """Its id, for programs."""
        said = self.settings.environment
        return said.id if "id" in said.model_fields_set else type(self).__name__

    def get_env_display_name(self) -> str:
        """Its name, for people."""
        return self.settings.environment.display_name or self.get_env_id()

    def get_profiles(self) -> Sequence[EnvProfile]:
        """Its profiles."""
        return self.world.profiles()

    def get_agents(self) -> Sequence[EnvAgent]:
        """Its agents."""
        return self.world.agents()

    def briefing(self) -> str:
        """Text that is added to every agent's system prompt."""
        return ""

    def load_configuration(self) -> Loaded:
        """Evaluate the other hooks again; called in a thread while the environment is open."""
        folder, clients = self.mcpservers_directory(), self.mcp_client_config()
        sources = (Source(folder, folder=True),) if folder else ()
        loaded = load(Search(sources), on_top=[_program_layer(clients)])
        base = self.base_settings()
        servers = {**base.servers, **loaded.settings.servers, **_ready(clients)}
        return replace(loaded, settings=base.with_servers(servers))


def _program_layer(clients: Mapping[str, ClientConfig]) -> Layer:
    """Reads a server in agent-core's format."""
    entries = {name: one for name, one in clients.items() if isinstance(one, Mapping)}
    document = Document(Path("(program)"), {"mcp": entries})
    return Layer(read_document(document, Path.cwd(), told="spec07"))


def _ready(clients: Mapping[str, ClientConfig]) -> dict[str, ServerConfig]:
    return {name: one for name, one in clients.items() if not isinstance(one, Mapping)}
