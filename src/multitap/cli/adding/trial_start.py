"""Starts a server once before anything about it is written."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import anyio

from multitap.cli.terminal.progress import progress
from multitap.config import HttpServer, Loaded, Scope, ServerConfig, StdioServer, expand_server
from multitap.errors import counted
from multitap.events import Failure, LinkState
from multitap.hub.hub import open_hub
from multitap.records import dataclass
from multitap.tools.providers.token_cost import estimate
from multitap.trust.pins.lock_places import places_of
from multitap.trust.sandbox_rules.learned_rules import host_rule
from multitap.trust.secrets.vault import scope_for


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it."""

    tools: Mapping[str, int]
    """What the server calls its tools, and about how many tokens each costs in every request."""
    title: str = ""
    hosts: tuple[str, ...] = ()
    """What its sandbox must let it reach: where its package comes from, above all."""
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
    secrets: Mapping[str, str],
    *,
    wait: float,
) -> Trial:
    """Start a server with the settings that it would have, and see what it offers.

    Args:
        loaded: The configuration that it would be a part of.
        name: What it would be called.
        config: With variables.
        secrets: Those that it names and the vault does not have yet.
        wait: Seconds that it has.
    """
    logging.getLogger("multitap").addHandler(logging.NullHandler())  # we say it ourselves
    trial = _reaching_all(config).model_copy(
        update={"enabled": True, "start": "eager", "reconnect": False}
    )
    settings = loaded.settings.model_copy(update={"servers": {name: trial}})

    def expand(_: str, wanted: ServerConfig) -> ServerConfig:
        return expand_server(wanted, _scope(loaded, name, wanted, secrets))

    locks = places_of(loaded)  # what its tools say of themselves is pinned as of now
    async with open_hub(settings, expand=expand, files=loaded.files, locks=locks) as hub:
        async with progress(hub):
            with anyio.move_on_after(wait):
                await hub.settled()
        server = hub.snapshot().server(name)
        if server.state is not LinkState.CONNECTED:
            failure = server.failure
            reason = str(failure) if failure else f"it is not up after {wait:.0f} s"
            return Trial({}, failure=failure, reason=reason)
        hosts = server.sandbox.hosts if server.sandbox else ()
        tools = {tool.raw_name: estimate(tool.definition) for tool in hub.catalog.tools.values()}
        return Trial(tools, server.title or "", _rules(one.host for one in hosts))


def _reaching_all(config: StdioServer | HttpServer) -> StdioServer | HttpServer:
    """The server with every public host within reach, if nobody has said which ones it needs.

    Its files stay closed: all that it could tell anybody is what it was given.
    """
    if not isinstance(config, StdioServer) or config.sandbox_rules.hosts:
        return config
    rules = config.sandbox_rules.model_copy(update={"hosts": ("*",)})
    return config.model_copy(update={"sandbox_rules": rules})


def _rules(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({host_rule(host) for host in hosts if ":" in host}))


def _scope(loaded: Loaded, name: str, config: ServerConfig, secrets: Mapping[str, str]) -> Scope:
    scope = scope_for(name, config, loaded.search.folder)

    def look_up(wanted: str) -> str | None:
        return secrets.get(wanted) or scope.auth(wanted)

    return replace(scope, auth=look_up)
