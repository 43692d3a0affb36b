"""The hub: many MCP servers behind one object."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from multitap.catalog.catalog import Catalog, CatalogSection, Tool
from multitap.catalog.vetting import Vetting
from multitap.config import ServerConfig, Settings, StdioServer, expand_server
from multitap.config.search import state_directory
from multitap.errors import (
    HubClosed,
    Unavailable,
    ungrouped,
)
from multitap.events import (
    CatalogChanged,
    Event,
    EventBus,
    ServerSnapshot,
    Snapshot,
    Warned,
    Withheld,
    untrusted_words,
)
from multitap.hub.audit_trail import AuditTrail
from multitap.hub.calls import Calls, cap_of
from multitap.hub.catalog_builder import CatalogBuilder
from multitap.hub.lookup import Lookup
from multitap.hub.metrics import Metrics
from multitap.hub.package_lookup import PackageLookup
from multitap.hub.permissions import Permissions
from multitap.hub.pin_keeper import PinKeeper, open_pins
from multitap.hub.resources_and_prompts import ResourcesAndPrompts
from multitap.hub.router import CallDefaults, Route, route_to
from multitap.hub.server_memory import ServerMemory
from multitap.hub.state_events import StateEvents
from multitap.hub.supervisor import Plan, Supervisor
from multitap.hub.tool_scans import ToolScans
from multitap.results import KeptResult, KeptResults, ToolResult
from multitap.store import LogRecord, Store, fingerprint, open_store
from multitap.tasks import Tasks
from multitap.trust.pins.lock_places import LockPlaces, places_in
from multitap.trust.pins.pins import Pins
from multitap.trust.questions.questions import Questions
from multitap.trust.secrets.vault import scope_for
from multitap.upstream.connector import Dial, Placements, local_placements
from multitap.upstream.dial import Dialer
from multitap.upstream.handlers import Handlers
from multitap.upstream.link import Expand, Link
from multitap.upstream.oauth.logins import Logins
from multitap.upstream.on_behalf_of import NOBODY, CallContext
from multitap.upstream.signals import Bell
from multitap.upstream.start_queue import StartQueue
from multitap.upstream.tracing import Tracing
from multitap.wire.process.sandboxes import Sandboxes, open_sandboxes
from multitap.wire.process.spawner import open_spawner
from multitap.wire.process.stderr_log import log_folder, tidy

if TYPE_CHECKING:
    from multitap.tools import ToolRegistry


class Hub(ResourcesAndPrompts):
    """Many MCP servers behind one object; [`open_hub`][multitap.open_hub] makes it.

    Every method may be called from any task of the hub's event loop.
    """

    concerns: Callable[[], tuple[str, ...]] = staticmethod(tuple)
    """Returns further problems that the opener knows of."""
    on_restart: Callable[[str], None] | None = None
    """Called with the name of each server whose restart was requested, once that has begun."""

    def __init__(
        self,
        tasks: Tasks,
        settings: Settings,
        *,
        dial: Dial,
        expand: Expand | None = None,
        handlers: Handlers,
        store: Store,
        recall: bool = False,
        logs: Path | None = None,
        pins: Pins | None = None,
        logins: Logins | None = None,
        sandboxes: Sandboxes | None = None,
        place: Placements = local_placements,
    ) -> None:
        self.settings = settings
        self.logs = logs
        """The folder for servers' standard error; None if it is not kept."""
        self.catalog = Catalog()
        """Everything that can be called now; replaced, never changed."""
        self.withheld: tuple[Withheld, ...] = ()
        """Entries of configuration files that are not trusted yet."""
        self.changed = Bell()
        """Signals every change of the servers' state or offers."""
        self.events = EventBus(partial(_record, store))
        self.metrics = Metrics()
        self.store = store
        """Past calls and last good catalogs, on disk."""
        self._dial = dial
        self._sandboxes = sandboxes
        self._expand = expand or _expand_config
        questions = Questions(lambda: self.settings.servers, self._on_refusal)
        self._handlers = replace(handlers, screen=questions.screen)
        self._kept = KeptResults()
        self._memory = ServerMemory(store, recall=recall)
        self.pins = pins or Pins()
        """The tool definitions that people rely on."""
        vetting = Vetting(self.pins)
        # A callable, since the builder does not exist yet, and replaces its shelves.
        self._scans = ToolScans(vetting, lambda: self._builder.shelves, self.changed.ring)
        self._packages = PackageLookup(tasks, self.pins, self._vet_again)
        self._builder = CatalogBuilder(
            settings, store, self._memory, vetting, self._scans.look_again
        )
        self._starts = StartQueue(settings.start_concurrency)
        self.tracings: defaultdict[str, Tracing] = defaultdict(Tracing)
        """Lets observers follow the messages of each server, over all its links."""
        self._closed = False
        make = partial(self.make_link, on_change=self._link_changed, place=place)
        self._supervisor = Supervisor(tasks, make, self._rebuild)
        self._states = StateEvents(self.events, self._supervisor)
        self._trail = AuditTrail(store)
        self.lookup = Lookup(
            lambda: self.catalog,
            self._builder,
            self._supervisor,
            self.changed,
            self._trail,
            withheld=lambda: untrusted_words(self.withheld),
        )
        """Resolves the names that callers use."""
        permissions = Permissions(handlers.permit)
        self.calls = Calls(
            lambda: self.settings.agents,
            self.metrics,
            store,
            self.events,
            permissions=permissions,
            trail=self._trail,
        )
        """Makes all calls."""
        self._routes: dict[Tool, Route] = {}
        self.logins = logins
        """The OAuth logins at servers; None if `dial` was given."""
        if logins is not None:
            logins.on_change = self._supervisor.login_changed
        store.servers.on_disagreement = self._reread_choices
        if self.pins.files:
            tasks.start_soon(PinKeeper(self.pins, self._vet_again).run)
        tasks.start_soon(self._scans.run)
        self.apply(settings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems beyond single servers: with the store, the audit log or the cluster."""
        return (*self.store.warnings, *self.pins.warnings, *self.concerns())

    @property
    def links(self) -> Mapping[str, Link]:
        return self._supervisor.links

    def apply(self, settings: Settings) -> Plan:
        """Make the running servers match `settings`; returns the plan without waiting for it.

        Servers whose configuration is the same keep their process and their session. A changed one
        serves until its successor is up, then finishes its calls and ends. While the successor
        fails, it continues, and its snapshot says why.
        """
        self.check_open()
        self.settings = settings
        self.calls.recording = settings.record
        self._trail.apply(settings.audit)
        # All of this before `_supervisor.apply`: the links that it starts read it.
        self._starts.limit = settings.start_concurrency
        if self._sandboxes is not None:
            self._sandboxes.default = settings.sandbox
        self._supervisor.drain_timeout = settings.drain_timeout
        self._builder.apply(settings, self.links)
        policy = self._builder.policy
        self.library_defaults = CallDefaults(policy=policy)
        self.gateway_defaults = CallDefaults(
            "off", settings.serve.timeout, errors_are_results=False, policy=policy
        )
        # routes and permissions depend on the settings
        self._routes = {}
        self.calls.permissions.forget()
        todo = self._supervisor.apply(settings.servers)
        self._rebuild()
        for name in todo.stop:
            self._states.on_remove(name)
        for name in todo.replace:
            self._states.on_replace(name)
        return todo

    async def settled(self) -> None:
        """Wait until every server has answered, failed or timed out, successors included."""
        while not self._supervisor.is_settled:
            await self.changed.wait()

    async def scanned(self) -> None:
        """Wait until all tool descriptions have been scanned for attacks."""
        while not self._scans.is_done:
            await self.changed.wait()

    def make_link(
        self,
        server: str,
        config: ServerConfig,
        *,
        on_change: Callable[[Link], None] = lambda _: None,
        place: Placements = local_placements,
    ) -> Link:
        """Make a link with its own session to a server; the caller runs it."""
        return Link(
            server,
            config,
            dial=self._dial,
            place=place,
            expand=self._expand,
            handlers=self._handlers,
            known=self._memory.recall(server, config),
            starts=self._starts,
            health_interval=self.settings.health_interval,
            on_change=on_change,
            on_event=self.events.publish,
            tracing=self.tracings[server],
        )

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext = NOBODY,
    ) -> ToolResult:
        """Call one tool by its catalog name, or by its own if no other tool has it.

        A call to a server that is still starting waits for it, within its timeout. A tool that
        fails returns a result with `success` False and the server's own words.

        Raises:
            UnknownName: There is no such tool, or it is hidden from this caller.
            BadArguments: The arguments do not match its schema.
            UpstreamError: The server could not answer; the subclass says why.
        """
        if self._closed:
            self.check_open()
        # the catalog is read once: it may be replaced while this call waits
        tool, since = self.catalog.tools.get(name), None
        if tool is None:
            since = anyio.current_time()
            tool = await self.lookup.find_tool(name, context=context)
        try:
            route = self._routes.get(tool)
            if route is None:
                route = self._routes[tool] = route_to(tool, self.library_defaults)
            deadline = None if since is None else route.deadline(context, since)
            result = await self.calls.make(route, arguments or {}, context, deadline)
        # a link that ends reports that it was removed; here the reason is known
        except Unavailable:
            if self._closed:
                raise HubClosed("the hub was closed during the call") from None
            raise
        return result.capped(cap_of(tool, self.settings.result_cap), self._kept)

    @cached_property
    def tools(self) -> ToolRegistry:
        """The tools of all servers, for agents; functions can be registered as well."""
        from multitap.tools import HubTools, ToolRegistry  # noqa: PLC0415 - a gateway needs none

        registry = ToolRegistry()
        registry.attach(HubTools(self))
        return registry

    def result(self, result_id: str) -> KeptResult:
        """The full text of a result that was cut.

        Raises:
            UnknownName: There is no such result, or it is no longer kept.
        """
        return self._kept.result(result_id)

    def restart(self, server: str) -> None:
        """Restart a server now, ignoring back-off.

        If a changed configuration has not come up yet, it is tried again; the old server stays.

        Raises:
            UnknownName: No such server is configured.
            Unavailable: It is disabled.
        """
        link = self._supervisor.coming.get(server) or self._supervisor.link(server)
        if not link.config.enabled:
            raise Unavailable(server, "it is disabled", hint="set `enabled` in its configuration")
        if self.logins is not None:
            self.logins.forgive(server)
        link.restart()
        if self.on_restart is not None:
            self.on_restart(server)

    def snapshot(self) -> Snapshot:
        """The current state of all servers."""
        coming, shelves = self._supervisor.coming, self._builder.shelves
        servers = (
            self._server_snapshot(link, shelves.get(link), coming.get(link.name))
            for link in self.links.values()
        )
        return Snapshot(self.catalog.revision, tuple(servers), self.withheld)

    def _server_snapshot(
        self, link: Link, shelf: CatalogSection | None, successor: Link | None
    ) -> ServerSnapshot:
        tools = len(shelf.tools) if shelf else 0
        warnings: tuple[str, ...] = ()
        if shelf:
            warnings = (
                *shelf.vetted.warnings,
                *self._scans.warnings(link, shelf),
                *shelf.warnings,
            )
        snapshot = link.snapshot(tools=tools, warnings=warnings)
        if self._sandboxes is not None and isinstance(link.config, StdioServer):
            sandbox = self._sandboxes.state_of(link.name, link.config)
            warned = (*snapshot.warnings, *sandbox.warnings)
            snapshot = replace(snapshot, sandbox=sandbox, warnings=warned)
        return replace(snapshot, pending=successor.failure) if successor else snapshot

    def close(self) -> None:
        """Refuse further calls; `open_hub` does this at the end of its block."""
        self._closed = True

    def check_open(self) -> None:
        if self._closed:
            raise HubClosed("the hub is closed", hint="use it inside its `async with` block")

    def _on_refusal(self, server: str, method: str, words: str) -> None:
        self._trail.note_question(server, method, words)
        self.events.publish(Warned(server, f"{method}: {words}"))

    def _link_changed(self, link: Link) -> None:
        self._supervisor.link_changed(link)
        self._states.on_change(link.name)
        self._memory.note(link)
        self._packages.note(link)
        self._rebuild()

    def _reread_choices(self) -> None:
        """Give the names that another process gave first."""
        if not self._closed:
            self._builder.reread_choices(self.links)
            self._rebuild()

    def _vet_again(self, server: str | None = None) -> None:
        """Publish the catalog again with the tools that are accepted now."""
        if not self._closed:
            self._builder.vet_again(server)
            self._rebuild()

    def _rebuild(self) -> None:
        """Publish a new catalog if anything in it differs."""
        last = self.catalog
        self.catalog = fresh = self._builder.build(self.links, last)
        if fresh.revision != last.revision:
            self._routes = {}
            self.events.publish(CatalogChanged(fresh.revision))
        self.changed.ring()


def _record(store: Store, event: Event) -> None:
    record = LogRecord.of(event, at=time.time())
    if record is not None:
        store.log(record)


def _expand_config(name: str, config: ServerConfig) -> ServerConfig:
    return expand_server(config, scope_for(name, config))


def _starts_now(config: ServerConfig) -> bool:
    """Whether a program starts at once, rather than with the first call."""
    return isinstance(config, StdioServer) and config.enabled and config.start != "lazy"


@asynccontextmanager
async def open_hub(
    settings: Settings,
    *,
    handlers: Handlers = Handlers(),
    dial: Dial | None = None,
    expand: Expand | None = None,
    recall: bool = False,
    files: Collection[str] = (),
    locks: LockPlaces | None = None,
    place: Placements = local_placements,
) -> AsyncGenerator[Hub]:
    """Open a hub; leaving the block stops every server.

    It returns at once, while the servers start side by side: `await hub.settled()` waits for them.

    Args:
        settings: The servers, and how to run them.
        handlers: Callbacks for what servers ask of the host.
        dial: Opens connections to servers, instead of pipes and sockets.
        expand: Expands variables in a server's configuration, instead of this process's.
        recall: Whether a server's last known offers are listed while it starts.
        files: The files of the settings: each configuration has its own logs.
        locks: The lock files for pins; by default, in the state directory.
        place: Where servers run, if not all in this process.
    """
    state = state_directory(settings.state_dir)
    logins: Logins | None = None
    with ungrouped():
        async with AsyncExitStack() as stack:
            spawner = await stack.enter_async_context(open_spawner())
            # the warden takes a moment to start: it does so while the store is opened
            if dial is None and any(map(_starts_now, settings.servers.values())):
                spawner.prepare()
            store = await stack.enter_async_context(open_store(state))
            logs = None
            sandboxes = None
            if dial is None:
                servers = (f"{name} {fingerprint(one)}" for name, one in settings.servers.items())
                logs = log_folder(state, files, servers)
                await to_thread.run_sync(tidy, logs.parent, abandon_on_cancel=True)
                renewals = await stack.enter_async_context(Tasks())
                logins = Logins(renewals, handlers.login, place.logins)
                sandboxes = await stack.enter_async_context(open_sandboxes(state))
                sandboxes.default = settings.sandbox
                dial = Dialer(spawner, logs, logins, sandboxes)
            pins = await stack.enter_async_context(open_pins(locks or places_in(state)))
            # entered last and left first: links end before the store and the spawner that they use
            tasks = await stack.enter_async_context(Tasks())
            hub = Hub(
                tasks,
                settings,
                dial=dial,
                expand=expand,
                handlers=handlers,
                store=store,
                recall=recall,
                logs=logs,
                pins=pins,
                logins=logins,
                sandboxes=sandboxes,
                place=place,
            )
            try:
                yield hub
            finally:
                # before the links end: calls that fail from now on report that the hub is closed
                hub.close()
