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
from multitap.hub.reload import withheld_parts
from multitap.trust.pins.lock_places import places_of
from multitap.trust.projects.trusted_projects import expand_trusted
from multitap.upstream.handlers import Handlers

_ONCE = {"reconnect": False}
"""A command starts a server once: a failure is shown, not retried."""

Change = Callable[[str, ServerConfig], Mapping[str, Any]]
"""The fields of a server that a command overrides."""


def on_demand(_name: str, _config: ServerConfig) -> Mapping[str, Any]:
    """For a call: starts only the server that is called, if it is known."""
    return {"start": "lazy", **_ONCE}


def answerable(name: str, config: ServerConfig) -> Mapping[str, Any]:
    """For a call at a terminal: uses the era in which any server can ask during a call."""
    change = on_demand(name, config)
    # the stateless era asks by ending the call and repeating it, which not every server can do
    return {**change, "era": "handshake"} if config.era == "auto" else change


def all_awake(_name: str, _config: ServerConfig) -> Mapping[str, Any]:
    """For a diagnosis: starts lazy servers, too."""
    return {"start": "eager", **_ONCE}


def asleep(loaded: Loaded) -> frozenset[str]:
    """The lazy servers, which are not started just to list them."""
    servers = loaded.settings.servers.items()
    return frozenset(name for name, config in servers if config.enabled and config.start == "lazy")


def adapt(
    loaded: Loaded, options: CommonOptions, change: Change, *, only: str | None = None
) -> Settings:
    """The settings as one command needs them.

    Servers that it does not need stay in the settings, disabled: tool names depend on them.
    """
    servers: dict[str, ServerConfig] = {}
    for name, config in loaded.settings.servers.items():
        update = dict(change(name, config))
        if options.timeout is not None:
            # a shorter configured timeout is kept
            update["connect_timeout"] = min(options.timeout, config.connect_timeout)
        if only not in {None, name}:
            update["enabled"] = False
        servers[name] = config.model_copy(update=update)
    return loaded.settings.with_servers(servers)


@asynccontextmanager
async def open_command_hub(
    loaded: Loaded, settings: Settings, handlers: Handlers = Handlers()
) -> AsyncGenerator[Hub]:
    """Open a hub whose errors name the file and line of a missing variable."""
    logging.getLogger("multitap").addHandler(
        logging.NullHandler()
    )  # reported by the command itself

    def expand(name: str, config: ServerConfig) -> ServerConfig:
        places = {key: near(place) for key, place in loaded.places(name).items()}
        return expand_trusted(loaded, name, config, places=places)

    locks = places_of(loaded)
    async with open_hub(
        settings, handlers=handlers, expand=expand, files=loaded.files, locks=locks
    ) as hub:
        hub.withheld = withheld_parts(loaded)
        yield hub


@asynccontextmanager
async def open_settled(
    loaded: Loaded, options: CommonOptions, *, only: str | None = None
) -> AsyncGenerator[Hub]:
    """Open a hub, start its servers except lazy ones, and wait a while for them."""
    lazy = asleep(loaded)

    def off(names: frozenset[str]) -> Change:
        return lambda name, _: {"enabled": False} if name in names else _ONCE

    async with open_command_hub(loaded, adapt(loaded, options, off(lazy), only=only)) as hub:
        # an unknown server would be started to find out what it offers
        seen = {server.name for server in hub.snapshot().servers if server.stale}
        hub.apply(adapt(loaded, options, off(lazy - seen), only=only))
        async with progress(hub):
            with anyio.move_on_after(options.patience()):
                await hub.settled()
                await hub.scanned()
        yield hub
