"""A hub of the command's own: the servers that it needs, and what it looks for in them."""

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.catalog import Resource, Tool
from multitap.cli.configuration import near, refuse_unusable
from multitap.cli.options import CommonOptions
from multitap.cli.progress import progress
from multitap.cli.questions import listing_handlers, prompt_handlers
from multitap.cli.set_up.add_request import read_launcher_line
from multitap.cli.signals import on_interrupt
from multitap.cli.terminal import is_somebody_there
from multitap.cli.use.listing import ServerOffer
from multitap.config import Loaded, ServerConfig, Settings, StdioServer
from multitap.control.messages import (
    Delivery,
    GatewayState,
    ProgressStep,
    PromptLine,
    ResourceLine,
    ToolLine,
)
from multitap.control.methods import NOBODY, ActionUser, Control
from multitap.errors import Unavailable, UnknownName, ungrouped
from multitap.events import LinkState, Phase, ServerSnapshot
from multitap.hub.calls import cap_of
from multitap.hub.hub import Hub, open_hub
from multitap.hub.routes import find
from multitap.names import Naming, likely_owners
from multitap.trust.projects import expand_trusted
from multitap.upstream.questions import CallContext, Handlers

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
        servers[name] = config.replace(**update)
    return loaded.settings.with_servers(servers)


@asynccontextmanager
async def open_command_hub(
    loaded: Loaded, settings: Settings, handlers: Handlers | None = None
) -> AsyncGenerator[Hub]:
    """Open a hub whose errors name the file and line of a missing variable.

    Without `handlers`, it is for looking at servers only.
    """
    logging.getLogger("multitap").addHandler(
        logging.NullHandler()
    )  # reported by the command itself

    def expand(name: str, config: ServerConfig) -> ServerConfig:
        places = {key: near(place) for key, place in loaded.places(name).items()}
        return expand_trusted(loaded, name, config, places=places)

    async with open_hub(
        settings,
        handlers=handlers or listing_handlers(),
        expand=expand,
        loaded=loaded,
        warns=False,
    ) as hub:
        yield hub


@asynccontextmanager
async def open_settled(
    loaded: Loaded,
    options: CommonOptions,
    *,
    only: str | None = None,
    listed: Collection[str] = (),
) -> AsyncGenerator[Hub]:
    """Open a hub, start its servers except lazy and `listed` ones, and wait for them.

    Those are listed as they were last time.
    """
    lazy = asleep(loaded)

    def off(names: frozenset[str]) -> Change:
        def change(name: str, _: ServerConfig) -> Mapping[str, Any]:
            if name in names:
                return {"enabled": False}
            return {"start": "lazy", **_ONCE} if name in listed else _ONCE

        return change

    async with open_command_hub(loaded, adapt(loaded, options, off(lazy), only=only)) as hub:
        # an unknown server would be started to find out what it offers
        seen = {server.name for server in hub.snapshot().servers if server.stale}
        hub.apply(adapt(loaded, options, off(lazy - seen), only=only))
        async with progress(hub):
            await _settle(hub, options)
        yield hub


async def _settle(hub: Hub, options: CommonOptions) -> None:
    """Wait for the servers; at a terminal, until all have answered or the user has seen enough."""
    with anyio.move_on_after(options.patience()) as wait, ExitStack() as signals:
        if is_somebody_there():
            signals.enter_context(on_interrupt(wait.cancel))
        await hub.settled()
        await hub.scanned()
    # a download that ends with the command would begin again with the next one
    if not is_somebody_there() and not options.asks_servers:
        await _wait_settled(hub, lambda: not any(_is_fetched(hub, name) for name in hub.links))


def _is_fetched(hub: Hub, name: str) -> bool:
    """Whether a server starts for the first time, with a program that downloads it."""
    config, link = hub.settings.servers.get(name), hub.links[name]
    if link.is_settled or link.offers is not None or not isinstance(config, StdioServer):
        return False
    return read_launcher_line((config.command, *config.args)) is not None


@asynccontextmanager
async def open_own_hub(
    loaded: Loaded,
    options: CommonOptions,
    *,
    only: str | None,
    settled: bool,
    can_ask: bool,
    listed: Collection[str] = (),
) -> AsyncGenerator["OwnHub"]:
    """Open a hub that answers like a gateway.

    If `settled`, with its servers up, otherwise with none until one is needed.
    """
    if settled:
        async with open_settled(loaded, options, only=only, listed=listed) as hub:
            yield OwnHub(hub, loaded, options, listed)
        return
    is_answerable = can_ask and (options.typed is not None or is_somebody_there())
    settings = adapt(loaded, options, answerable if is_answerable else on_demand, only=only)
    handlers = prompt_handlers() if can_ask else Handlers()
    async with open_command_hub(loaded, settings, handlers) as hub:
        yield OwnHub(hub, loaded, options)


class OwnHub(Control):
    """A hub of the command's own, with the methods of a gateway that such commands use."""

    def __init__(
        self, hub: Hub, loaded: Loaded, options: CommonOptions, listed: Collection[str] = ()
    ) -> None:
        self._hub = hub
        self._listed = listed
        self._loaded = loaded
        self._options = options

    async def state(self) -> GatewayState:
        lazy = tuple(sorted({*asleep(self._loaded), *self._listed}))
        return GatewayState(self._hub.snapshot(), lazy, tuple(self._hub.warnings))

    async def tools(self) -> list[ToolLine]:
        return [*map(ToolLine.of, self._hub.catalog.tools.values())]

    async def resources(self) -> list[ResourceLine]:
        catalog = self._hub.catalog
        return [*map(ResourceLine.of, (*catalog.resources, *catalog.templates))]

    async def prompts(self) -> list[PromptLine]:
        return [*map(PromptLine.of, self._hub.catalog.prompts.values())]

    async def tool(
        self,
        name: str,
        timeout: float | None = None,  # noqa: ARG002 - servers have the options' time to start
        *,
        person: ActionUser = NOBODY,  # noqa: ARG002 - as a gateway has it
    ) -> ToolLine:
        try:
            return ToolLine.of(await self._reach_tool(name))
        except Unavailable as exc:
            # any other failure would be the same in the other era
            if exc.failure is None or exc.failure.phase is not Phase.HANDSHAKE:
                raise
        # it may support only the stateless era
        self._hub.apply(adapt(self._loaded, self._options, on_demand))
        return ToolLine.of(await self._reach_tool(name))

    async def prompt(
        self,
        name: str,
        timeout: float | None = None,  # noqa: ARG002 - see `tool`
        *,
        person: ActionUser = NOBODY,  # noqa: ARG002 - see `tool`
    ) -> PromptLine:
        hub, owns = self._hub, owner_by_name(self._loaded, name)
        prompt = await reach(hub, self._options, lambda: hub.catalog.prompts.get(name), owns=owns)
        if prompt is None:
            check_missing(self._loaded, hub, owns)
            prompt = await hub.lookup.find_prompt(name)
        return PromptLine.of(prompt)

    async def call(
        self,
        name: str,
        arguments: Raw = Raw(b"{}"),
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,
    ) -> Delivery:
        def on_progress(done: float, total: float | None, message: str | None) -> None:
            person.on_progress(ProgressStep(done, total, message))

        context = CallContext(timeout=timeout, on_progress=on_progress)
        tool = await self._hub.lookup.find_tool(name, context=context)
        result = await self._hub.call(name, msgspec.json.decode(arguments), context=context)
        cap = cap_of(tool, self._hub.settings.result_cap)
        return Delivery(Raw(result.raw), result.server, result.tool, cap)

    async def read(
        self,
        uri: str,
        server: str | None = None,
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,  # noqa: ARG002 - see `tool`
    ) -> Delivery:
        hub = self._hub

        def owns(name: str) -> bool:
            return name == server

        def find() -> Resource | None:
            return hub.catalog.find_resource(uri, server)

        if await reach(hub, self._options, find, owns=owns) is None:
            check_missing(self._loaded, hub, owns)
            raise UnknownName(f"no server has a resource {uri!r}")
        content = await hub.read(uri, server=server, context=CallContext(timeout=timeout))
        return Delivery.of(content)

    async def fill(
        self,
        name: str,
        arguments: dict[str, str],
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,  # noqa: ARG002 - see `tool`
    ) -> Delivery:
        prompt = await self._hub.prompt(name, arguments, context=CallContext(timeout=timeout))
        return Delivery.of(prompt)

    async def _reach_tool(self, name: str) -> Tool:
        hub, owns = self._hub, owner_by_name(self._loaded, name)
        tool = await reach(hub, self._options, lambda: hub.catalog.tools.get(name), owns=owns)
        if tool is None:
            # for those, `find` has a better message than a missing server
            if name not in hub.catalog.hidden and not hub.catalog.tools_with_raw_name(name):
                check_missing(self._loaded, hub, owns)
            tool = find(hub.catalog, name)
        return tool


Owns = Callable[[str], bool]
"""Whether a server, by its name, must have the requested item."""
_Offered = TypeVar("_Offered", bound=ServerOffer)


def owner_by_name(loaded: Loaded, name: str) -> Owns:
    """The owner of a tool or prompt, as far as its name tells."""
    naming = loaded.settings.naming
    if naming is Naming.BARE:
        is_only = len(loaded.settings.servers) == 1
        return lambda _: is_only
    return lambda server: bool(likely_owners(name, [server], naming))


async def reach(
    hub: Hub, options: CommonOptions, find: Callable[[], _Offered | None], *, owns: Owns
) -> _Offered | None:
    """Find an item of a connected server; None if no server has it.

    The catalog of the last run tells which server to start. If that is not enough, all are started.

    Servers that `owns` selects are always waited for.

    Raises:
        Unavailable: The server that had it does not come up.
    """
    async with progress(hub):
        await _until(hub, options, find, owns)
        if find() is None:
            for server in hub.snapshot().servers:
                # not in the stored catalog, which may be outdated
                if server.stale and server.state is not LinkState.DISABLED:
                    hub.restart(server.name)
            await _until(hub, options, find, owns)
        item = find()
        if item is not None and hub.snapshot().server(item.server).stale:
            await _wake(hub, item.server)
        return find()


def check_missing(loaded: Loaded, hub: Hub, owns: Owns) -> None:
    """Check that an item is not missing only because its server is down.

    Raises:
        Unavailable: Its server is down, or one that may have it is still starting.
        ConfigError: The server that must have it cannot be used as it is written, or comes with a
            project that is not trusted.
    """
    down = [server for server in hub.snapshot().servers if server.failure and owns(server.name)]
    if down:
        server = max(down, key=lambda server: len(server.name))  # the likeliest
        raise Unavailable.because(server.name, server.failure, "it is down")
    refuse_unusable(loaded, owns)
    if starting := [link.name for link in hub.links.values() if not link.is_settled]:
        # the likely owner is named first
        first, *others = sorted(starting, key=owns, reverse=True)
        also = f" (so may {', '.join(others)})" if others else ""
        raise Unavailable(
            first,
            f"it is still starting and may have it{also}",
            hint="use `--wait 1m` to wait longer",
        )


async def _until(hub: Hub, options: CommonOptions, holds: Callable[[], object], owns: Owns) -> None:
    """Wait for a condition, or for the servers; owners get as long as they need.

    The start of a server is always bounded.
    """

    def is_over() -> object:
        owners = [link for link in hub.links.values() if owns(link.name)]
        return holds() or all(link.is_settled for link in owners)

    with anyio.move_on_after(options.patience()):
        await _wait_settled(hub, holds)
    if not is_over():
        await _wait_settled(hub, is_over)


async def _wait_settled(hub: Hub, holds: Callable[[], object]) -> None:
    """Wait for a condition, or until every server has answered, failed or timed out."""
    with ungrouped(), hub.events.subscribe() as events:
        async with anyio.create_task_group() as tasks:
            # checked after each event: the condition changes only with events
            async def watch() -> None:
                while not holds():
                    await anext(events)
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await hub.settled()
            tasks.cancel_scope.cancel()


async def _wake(hub: Hub, name: str) -> None:
    def now() -> ServerSnapshot:
        return hub.snapshot().server(name)

    hub.restart(name)
    await _wait_settled(hub, lambda: now().state is LinkState.CONNECTED or now().failure)
    if now().state is not LinkState.CONNECTED and (failure := now().failure):
        raise Unavailable.because(name, failure, "it is down")
