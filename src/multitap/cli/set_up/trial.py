"""Starts a server once before anything about it is written."""

import logging
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import msgspec
from msgspec.structs import replace

from multitap.catalog.catalog import Tool
from multitap.cli.progress import progress
from multitap.cli.questions import listing_handlers
from multitap.cli.use.tokens import visible_cost
from multitap.config import HttpServer, Loaded, Scope, ServerConfig, StdioServer, expand_server
from multitap.errors import counted
from multitap.events import Failure, LinkState
from multitap.hub.hub import Hub, open_hub
from multitap.sandbox.learning import host_rule
from multitap.sandbox.levels import ShownLevel
from multitap.sandbox.plan import own_folder
from multitap.trust.lock_file import ServerPins
from multitap.trust.pins import places_in
from multitap.trust.vault import scope_for


class TrialContext(msgspec.Struct, frozen=True):
    """Values for a server that are not stored yet."""

    secrets: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Secrets, by their future names in the vault."""
    variables: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        return "TrialContext()"  # all of it may be secret


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a trial."""

    tools: Mapping[str, int]
    """The server's tools, and the approximate tokens of each in every request."""
    title: str = ""
    hosts: tuple[str, ...] = ()
    """Hosts that its sandbox must open, above all its package registry."""
    pins: ServerPins | None = None
    """The definitions of its tools, to be pinned."""
    level: ShownLevel = "off"
    """How it was confined."""
    failure: Failure | None = None
    reason: str = ""
    """Why it is not up, if it is not."""

    @property
    def summary(self) -> str:
        tokens = sum(self.tools.values())
        return f"{counted(len(self.tools), 'tool')}, about {tokens:,} tokens in every request"


async def start_once(
    loaded: Loaded,
    name: str,
    config: StdioServer | HttpServer,
    values: TrialContext,
    *,
    wait: float,
) -> Trial:
    """Start a server with its future settings, and find out what it offers.

    Nothing is kept: its pins are recorded separately, and the folder of its sandbox is removed if
    the server does not start.
    """
    logging.getLogger("multitap").addHandler(
        logging.NullHandler()
    )  # reported by this command itself
    # the first start downloads its package
    patience = max(wait, config.connect_timeout)
    trial = _reaching_all(config).replace(
        enabled=True, start="eager", reconnect=False, connect_timeout=patience
    )
    # alone: the other servers are not needed, and would start as well
    settings = loaded.settings.with_servers({name: trial})

    def expand(_: str, server: ServerConfig) -> ServerConfig:
        return expand_server(server, trial_scope(loaded, name, server, values))

    with _sandbox_of(loaded, name, trial) as sandbox, TemporaryDirectory() as scratch:
        locks = places_in(Path(scratch))
        opening = open_hub(
            settings,
            handlers=listing_handlers(),
            expand=expand,
            loaded=loaded,
            locks=locks,
            warns=False,
        )
        seen = await _watch(opening, name, wait)
        if seen.reason:
            return seen
        sandbox.pop_all()  # it contains the package, which the next start needs
        return msgspec.structs.replace(seen, pins=locks.own.read().servers.get(name))


async def _watch(opening: AbstractAsyncContextManager[Hub], name: str, wait: float) -> Trial:
    async with opening as hub:
        async with progress(hub):
            with anyio.move_on_after(wait):
                await hub.settled()
        server = hub.snapshot().server(name)
        if server.state is not LinkState.CONNECTED:
            failure = server.failure
            reason = str(failure) if failure else f"it is not up after {wait:.0f} s"
            level = server.sandbox.level if server.sandbox else "off"
            return Trial(tools={}, level=level, failure=failure, reason=reason)
        hosts = server.sandbox.hosts if server.sandbox else ()
        tools = {tool.raw_name: _cost(name, tool) for name, tool in hub.catalog.tools.items()}
        rules = _rules(reached.host for reached in hosts)
        return Trial(tools=tools, title=server.title or "", hosts=rules)


def _cost(name: str, tool: Tool) -> int:
    return visible_cost(name, tool.description, tool.input_schema)


def _reaching_all(config: StdioServer | HttpServer) -> StdioServer | HttpServer:
    """The server with access to every public host, because its registry is unknown.

    Files stay closed: it can reveal only what it was given.
    """
    if not isinstance(config, StdioServer):
        return config
    hosts = tuple(dict.fromkeys(("*", *config.sandbox_rules.hosts)))
    rules = config.sandbox_rules.replace(hosts=hosts)
    return config.replace(sandbox_rules=rules)


def _rules(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({host_rule(host) for host in hosts if ":" in host}))


@contextmanager
def _sandbox_of(
    loaded: Loaded, name: str, config: StdioServer | HttpServer
) -> Generator[ExitStack]:
    """Remove the folder of the server's sandbox after the block, if it is new."""
    with ExitStack() as leftovers:
        if isinstance(config, StdioServer):
            folder = own_folder(loaded.state_directory, name, config, Path.cwd())
            if not folder.exists():
                leftovers.callback(shutil.rmtree, folder, ignore_errors=True)
        yield leftovers


def trial_scope(loaded: Loaded, name: str, config: ServerConfig, values: TrialContext) -> Scope:
    """The scope of a server's variables, with the values that are not stored yet."""
    scope = scope_for(name, config, loaded.search.folder)

    def look_up(secret: str) -> str | None:
        # the typed value takes precedence over an older secret of that name
        return values.secrets.get(secret) or scope.auth(secret)

    return replace(scope, auth=look_up, env={**scope.env, **values.variables})
