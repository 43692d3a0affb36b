"""Opens a hub with the servers that one command needs."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from multitap.cli.options import CommonOptions
from multitap.cli.terminal.near_paths import near
from multitap.cli.terminal.progress import progress
from multitap.config import Loaded, ServerConfig, Settings
from multitap.hub.hub import Hub, open_hub
from multitap.trust.pins.lock_places import places_of
from multitap.trust.projects.trusted_projects import expand_trusted
from multitap.upstream.handlers import Handlers

_ONCE = {"reconnect": False}
"""A command starts a server once: what fails is shown, not tried again."""

Change = Callable[[str, ServerConfig], Mapping[str, Any]]
"""Which fields of a server a command sees in another way."""


def on_demand(_name: str, _config: ServerConfig) -> Mapping[str, Any]:
    """To call: only the server that is called, where it is known which one that is."""
    return {"start": "lazy", **_ONCE}


def answerable(name: str, config: ServerConfig) -> Mapping[str, Any]:
    """To call with a person there: in the era in which any server can ask during a call."""
    change = on_demand(name, config)
    # the stateless era asks by ending the call and repeating it, which not every server can do
    return {**change, "era": "handshake"} if config.era == "auto" else change


def all_awake(_name: str, _config: ServerConfig) -> Mapping[str, Any]:
    """To examine: lazy servers too."""
    return {"start": "eager", **_ONCE}


def asleep(loaded: Loaded) -> frozenset[str]:
    """The servers that are not started to be looked at."""
    servers = loaded.settings.servers.items()
    return frozenset(name for name, config in servers if config.enabled and config.start == "lazy")


def adapt(
    loaded: Loaded, options: CommonOptions, change: Change, *, only: str | None = None
) -> Settings:
    """The settings as one command needs them.

    Servers that it does not need stay in, but off: the names of tools depend on them.
    """
    servers: dict[str, ServerConfig] = {}
    for name, config in loaded.settings.servers.items():
        update = dict(change(name, config))
        if options.timeout is not None:
            # a server that is known to take less is not given more
            update["connect_timeout"] = min(options.timeout, config.connect_timeout)
        if only not in {None, name}:
            update["enabled"] = False
        servers[name] = config.model_copy(update=update)
    return loaded.settings.with_servers(servers)


@asynccontextmanager
async def open_command_hub(
    loaded: Loaded, settings: Settings, handlers: Handlers = Handlers()
) -> AsyncGenerator[Hub]:
    """A hub whose errors tell where in the files a variable is missing."""
    logging.getLogger("multitap").addHandler(logging.NullHandler())  # we say it ourselves

    def expand(name: str, config: ServerConfig) -> ServerConfig:
        places = {key: near(place) for key, place in loaded.places(name).items()}
        return expand_trusted(loaded, name, config, places=places)

    locks = places_of(loaded)
    async with open_hub(
        settings, handlers=handlers, expand=expand, files=loaded.files, locks=locks
    ) as hub:
        yield hub


@asynccontextmanager
async def open_settled(
    loaded: Loaded, options: CommonOptions, *, only: str | None = None
) -> AsyncGenerator[Hub]:
    """A hub whose servers, lazy ones aside, were started once and had some time to come up."""
    lazy = asleep(loaded)

    def off(names: frozenset[str]) -> Change:
        return lambda name, _: {"enabled": False} if name in names else _ONCE

    async with open_command_hub(loaded, adapt(loaded, options, off(lazy), only=only)) as hub:
        # one that was never seen would be started to see what it has
        seen = {server.name for server in hub.snapshot().servers if server.stale}
        hub.apply(adapt(loaded, options, off(lazy - seen), only=only))
        async with progress(hub):
            with anyio.move_on_after(options.patience()):
                await hub.settled()
                await hub.scanned()
        yield hub
