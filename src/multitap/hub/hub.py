"""The hub: many MCP servers behind one object."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
from anyio import to_thread
from msgspec import Raw
from msgspec.structs import replace

from multitap.catalog.catalog import Catalog, CatalogSection, Tool
from multitap.catalog.vetting import Vetting
from multitap.config.layers import Loaded, settings_from
from multitap.config.models import ServerConfig, Settings, StdioServer
from multitap.config.sources import state_directory
from multitap.config.variables import expand_server
from multitap.errors import (
    LONGEST_QUOTE,
    BadAnswer,
    HubClosed,
    MultitapError,
    Unavailable,
    UnknownName,
    quoted,
    shortened,
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
)
from multitap.hub.calls import Calls, cap_of
from multitap.hub.catalog_builder import CatalogBuilder, ServerMemory
from multitap.hub.lookup import Lookup
from multitap.hub.metrics import Metrics
from multitap.hub.people import Members
from multitap.hub.permissions import AuditTrail, Permissions
from multitap.hub.personal_servers import CommonServers, LinkParts
from multitap.hub.reload import (
    Reloader,
    auto_reload,
    find_files,
    warn_of_untrusted,
    withheld_parts,
)
from multitap.hub.routes import LIBRARY, CallDefaults, Route, route_to
from multitap.hub.supervisor import Plan, StateEvents, Supervisor
from multitap.hub.task_runs import StartedCall, TaskRun, TaskRuns, Work, new_record
from multitap.hub.traces import open_spans
from multitap.hub.vetting import PackageLookup, PinKeeper, ToolScans, open_pins
from multitap.oauth.storage import Login, Logins
from multitap.results import KeptResult, KeptResults, ToolResult
from multitap.sandbox.sandboxes import Sandboxes, open_sandboxes
from multitap.store import LogRecord, Store, fingerprint, open_store
from multitap.tasks import Bell, InOwnTask, Tasks, keep_going
from multitap.trust.pins import LockPlaces, Pins, places_in, places_of
from multitap.trust.questions import Questions
from multitap.trust.vault import scope_for
from multitap.upstream.connect import Dial, Dialer, Placements, local_placements
from multitap.upstream.link import Expand, Link
from multitap.upstream.questions import NOBODY, CallContext, Handlers, RequestOrigin
from multitap.upstream.start_queue import StartQueue
from multitap.upstream.tracing import Tracing
from multitap.wire.process import open_spawner
from multitap.wire.request import make_request
from multitap.wire.stderr_log import log_folder, tidy

if TYPE_CHECKING:
    import mcp_types as types
    import pydantic

    from multitap.telemetry.spans import Spans
    from multitap.tools import ToolRegistry

_Model = TypeVar("_Model", bound="pydantic.BaseModel")


def refuse_fork(process: int) -> None:
    """Check that a hub is used by the process that opened it.

    Raises:
        MultitapError: It is not: its loop and its servers' pipes belong to the other one.
    """
    if process != os.getpid():
        raise MultitapError(
            "this hub was opened before a fork, and cannot be used in the new process",
            hint="open a hub in each process, after the fork (a server's `post_fork` hook)",
        )


class ResourcesAndPrompts:
    """The methods of a hub for resources and prompts, and whether it is open."""

    catalog: Catalog
    lookup: Lookup
    _closed = False
    _process: int

    @property
    def withheld(self) -> tuple[Withheld, ...]:
        """Entries of configuration files that are not trusted yet."""
        return self.lookup.withheld

    @withheld.setter
    def withheld(self, parts: tuple[Withheld, ...]) -> None:
        self.lookup.withheld = parts

    def close(self) -> None:
        """Refuse further calls; `open_hub` does this at the end of its block."""
        self._closed = True

    def check_open(self) -> None:
        """Check that the hub is open.

        Raises:
            HubClosed: It is not.
            MultitapError: It was opened before a fork, by the process that has its servers.
        """
        refuse_fork(self._process)
        if self._closed:
            raise HubClosed("the hub is closed", hint="use it inside its `async with` block")

    async def read(
        self, uri: str, *, server: str | None = None, context: CallContext = NOBODY
    ) -> types.ReadResourceResult:
        """Read a resource from the server that has it.

        Args:
            uri: The resource's address.
            server: The server, if several have the same address.
            context: The caller and its limits.

        Raises:
            UnknownName: No server has it.
            UpstreamError: The server could not answer.
        """
        from mcp_types import ReadResourceResult  # noqa: PLC0415 - see `_to_model`

        self.check_open()
        since = anyio.current_time()
        resource = await self.lookup.find_resource(uri, server, context)
        params = {"uri": resource.uri}
        result = await _ask(resource.link, "resources/read", params, context, since)
        return _to_model(ReadResourceResult, result, resource.server)

    async def prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        context: CallContext = NOBODY,
    ) -> types.GetPromptResult:
        """Fill in a prompt by its catalog name.

        Raises:
            UnknownName: There is no such prompt.
            UpstreamError: The server could not answer.
        """
        from mcp_types import GetPromptResult  # noqa: PLC0415 - see `_to_model`

        self.check_open()
        since = anyio.current_time()
        prompt = await self.lookup.find_prompt(name, context=context)
        params = {"name": prompt.raw_name, "arguments": arguments or {}}
        result = await _ask(prompt.link, "prompts/get", params, context, since)
        return _to_model(GetPromptResult, result, prompt.server)

    async def complete(
        self,
        reference: str,
        argument: str,
        value: str,
        *,
        known: Mapping[str, str] | None = None,
    ) -> types.CompleteResult:
        """Get suggestions for an argument of a prompt or a resource template.

        Args:
            reference: The prompt's catalog name, or the template.
            argument: The argument's name.
            value: What has been typed so far.
            known: Arguments that are already filled in.

        Raises:
            UnknownName: There is no such prompt or template.
            UpstreamError: The server could not answer.
        """
        from mcp_types import CompleteResult  # noqa: PLC0415 - see `_to_model`

        self.check_open()
        since = anyio.current_time()
        target = await self.lookup.wait_for(
            lambda: self._completable(reference),
            None if "://" in reference else reference,
            defaults=LIBRARY,
        )
        if target is None:
            raise UnknownName(f"no prompt or resource template named {quoted(reference)}")
        link, ref = target
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if known:
            params["context"] = {"arguments": known}
        result = await _ask(link, "completion/complete", params, NOBODY, since)
        return _to_model(CompleteResult, result, link.name)

    def _completable(self, reference: str) -> tuple[Link, dict[str, str]] | None:
        """The prompt or resource template that is meant, and its server; None if there is none."""
        if prompt := self.catalog.prompts.get(reference):
            return prompt.link, {"type": "ref/prompt", "name": prompt.raw_name}
        for template in self.catalog.templates:
            if template.address == reference:
                return template.link, {"type": "ref/resource", "uri": template.uri}
        return None

    async def subscribe(self, uri: str, *, server: str | None = None) -> None:
        """Publish a `ResourceUpdated` event whenever the resource changes, also after restarts."""
        self.check_open()
        if server is None:
            await self.lookup.find_resource(uri, None, NOBODY)
        link, raw = self.lookup.owner(uri, server)
        await link.notifications.subscribe(raw)

    async def unsubscribe(self, uri: str, *, server: str | None = None) -> None:
        self.check_open()
        link, raw = self.lookup.owner(uri, server)
        await link.notifications.unsubscribe(raw)


async def _ask(
    link: Link, method: str, params: Mapping[str, Any], context: CallContext, since: float
) -> Raw:
    """Send a read-only request, whose time began at `since`, to a server."""
    deadline = LIBRARY.deadline(link.config, context=context, since=since)
    # Repeatable: these requests change nothing, so a lost one is sent again.
    request = make_request(method, params, deadline, call=context, repeatable=True)
    request.on_progress = context.on_progress
    return await link.request(request)


def _to_model(model: type[_Model], result: Raw, server: str) -> _Model:
    import pydantic  # noqa: PLC0415 - 0.3 s, with its models, that calls of tools do not need

    try:
        return model.model_validate_json(bytes(result))
    except pydantic.ValidationError as exc:
        raise BadAnswer(server, f"its answer lacks what MCP requires: {_mistakes(exc)}") from None


def _mistakes(exc: pydantic.ValidationError) -> str:
    """The first validation error of an answer, without quoting it: it may contain secrets."""
    first = exc.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{shortened(where, LONGEST_QUOTE)}: {first['msg']}"


class Hub(ResourcesAndPrompts):
    """Many MCP servers behind one object; [`open_hub`][multitap.open_hub] makes it.

    Every method may be called from any task of the hub's event loop.
    """

    concerns: Callable[[], tuple[str, ...]] = staticmethod(tuple)
    """Returns further problems that the opener knows of."""
    on_restart: Callable[[str], None] | None = None
    """Called with the name of each server whose restart was requested, once that has begun."""

    def __init__(  # noqa: PLR0915 - what a hub consists of, in its order
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
        spans: Spans | None = None,
    ) -> None:
        self._process = os.getpid()
        self._tasks = tasks
        self.settings = settings
        self.logs = logs
        """The folder for servers' standard error; None if it is not kept."""
        self.catalog = Catalog()
        """Everything that can be called now; replaced, never changed."""
        self.changed = Bell()
        """Signals every change of the servers' state or offers."""
        self.events = EventBus(partial(_record, store))
        self.metrics = Metrics()
        self.store = store
        """Past calls and last good catalogs, on disk."""
        self.pins = pins or Pins()
        """The tool definitions that people rely on."""
        self.logins = logins
        """The OAuth logins at servers; None if `dial` was given."""
        self.spans = spans
        """Records requests; None if traces are off."""
        self.tracings: defaultdict[str, Tracing] = defaultdict(partial(Tracing, spans))
        """Lets observers follow the messages of each server, over all its links."""
        self._routes: dict[Tool, Route] = {}

        # what links are made with
        questions = Questions(lambda: self.settings.servers, self._on_refusal)
        self._dial = dial
        self._expand = expand or _expand_config
        self._handlers = msgspec.structs.replace(handlers, screen=questions.screen)
        self._memory = ServerMemory(store, recall=recall)
        self._sandboxes = sandboxes
        self._starts = StartQueue(settings.start_concurrency)

        # from the offers of links to a catalog
        self._builder = CatalogBuilder(settings, store, self._memory, Vetting(self.pins))
        self._scans = ToolScans(self._builder, self.changed.ring)
        self._packages = PackageLookup(tasks, self.pins, self._vet_again)
        make = partial(self.make_link, on_change=self._link_changed, place=place)
        self._supervisor = Supervisor(tasks, make, self._rebuild)
        self._states = StateEvents(self.events, self._supervisor)

        self.people = (
            None if not isinstance(dial, Dialer) else self._open_people(tasks, dial, place)
        )
        """Those who have accounts of their own at servers; None if `dial` was given."""

        # from a name to an answer
        self._trail = AuditTrail(store)
        self.lookup = Lookup(self._builder, self._supervisor, self.changed, self._trail)
        """Resolves the names that callers use."""
        self.calls = Calls(
            self.metrics,
            store,
            self.events,
            permissions=Permissions(handlers.permit),
            trail=self._trail,
        )
        """Makes all calls."""
        self.calls.is_traced = spans is not None
        if self.people is not None:
            self.people.common.forget_results = self.calls.forget_results

        if logins is not None:
            logins.on_change = self._supervisor.login_changed
        store.servers.on_disagreement = self._reread_choices
        if self.pins.files:
            tasks.start_soon(keep_going, PinKeeper(self.pins, self._vet_again).run)
        tasks.start_soon(keep_going, self._scans.run)
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
        self._configure(settings)
        todo = self._supervisor.apply(settings.servers)
        self._rebuild()
        for name in todo.stop:
            self._states.on_remove(name)
        for name in todo.replace:
            self._states.on_replace(name)
        return todo

    def _configure(self, settings: Settings) -> None:
        """Set what links, routes and calls read, before the links of these settings start."""
        self.settings = settings
        self._starts.limit = settings.start_concurrency
        if self._sandboxes is not None:
            self._sandboxes.default = settings.sandbox
        self._supervisor.drain_timeout = settings.drain_timeout
        self._builder.apply(settings, self.links)
        self._trail.apply(settings.audit)
        self.calls.apply(settings)
        policy = self._builder.policy
        self.library_defaults = CallDefaults(policy=policy)
        self.gateway_defaults = CallDefaults(
            "off", settings.serve.timeout, errors_are_results=False, policy=policy
        )
        # they contain the policy and the limits of the settings before
        self._routes = {}

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
        extensions: Mapping[str, Any] | None = None,
    ) -> Link:
        """Make a link with its own session to a server; the caller runs it.

        `extensions` are what it declares to the server besides MCP's own capabilities.
        """
        return Link(
            server,
            config,
            dial=self._dial,
            place=place,
            expand=self._expand,
            handlers=self._handlers,
            remembered=self._memory.recall(server, config),
            starts=self._starts,
            health_interval=self.settings.health_interval,
            on_change=on_change,
            on_event=self.events.publish,
            tracing=self.tracings[server],
            extensions=extensions,
        )

    def vary(self, others: Mapping[str, Link]) -> Catalog:
        """The catalog with other sessions in place of the shared ones of some servers."""
        return self._builder.vary({**self.links, **others}, self.catalog)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        context: CallContext = NOBODY,
    ) -> ToolResult:
        """Call one tool by its catalog name, or by its own if no other tool has it.

        A call to a server that is still starting waits for it, within its timeout. A tool that
        fails returns a result with `success` False and the server's own words. `timeout` is in
        seconds; by default, the context's or the server's.

        Raises:
            UnknownName: There is no such tool, or it is hidden from this caller.
            BadArguments: The arguments do not match its schema.
            UpstreamError: The server could not answer; the subclass says why.
        """
        if self._closed or os.getpid() != self._process:
            self.check_open()
        if timeout is not None:
            context = replace(context, timeout=timeout)
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
            result = await self.calls.make(route, arguments or {}, context, deadline=deadline)
        # a link that ends reports that it was removed; here the reason is known
        except Unavailable:
            if self._closed:
                raise HubClosed("the hub was closed during the call") from None
            raise
        return result.capped(cap_of(tool, self.settings.result_cap), self._long_results)

    async def start(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext = NOBODY,
    ) -> StartedCall:
        """Call a tool without waiting for its result; servers that can make a task of it.

        The returned handle has its `status`, its `result()` and `cancel()`. What the server asks
        goes to the hub's handlers, as with `call`; with `Handlers(callers_answer_within=…)`, to
        the handle's `questions()`. The call ends with the hub; its record stays, and says so.

        Raises:
            UnknownName: There is no such tool, or it is hidden from this caller.
            MultitapError: Too many run, or the record cannot be stored.
        """
        self.check_open()
        tool = self.catalog.tools.get(name) or await self.lookup.find_tool(name, context=context)

        def working(run: TaskRun) -> Work:
            async def on_task(task_id: str) -> bool:
                run.become(run.record.status, run.record.message, upstream=task_id)
                return False

            def on_progress(done: float, total: float | None, message: str | None) -> None:
                run.report(done, total, message)
                if context.on_progress is not None:
                    context.on_progress(done, total, message)

            inner = replace(
                context,
                on_progress=on_progress,
                on_question=context.on_question or run.ask,
                on_task=on_task,
            )

            async def work() -> Raw | bytes:
                return (await self.call(name, arguments, context=inner)).raw

            return work

        record = new_record(tool.server, tool.raw_name, name)
        run = self.runs.begin(record, working, holder="")
        try:
            await self.runs.publish(run)
        except MultitapError:
            run.scope.cancel()  # what nobody can find again should not go on
            raise
        return StartedCall(self.runs, run)

    @cached_property
    def runs(self) -> TaskRuns:
        """Calls that outlive their request."""
        return TaskRuns(self._tasks, self.store.tasks)

    @cached_property
    def _long_results(self) -> KeptResults:
        return KeptResults()

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
        return self._long_results.result(result_id)

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
        # who restarts a server wants it to work: a login that was declined may be asked for again
        if self.logins is not None:
            self.logins.forgive(server)
        link.restart()
        if self.on_restart is not None:
            self.on_restart(server)

    def snapshot(self) -> Snapshot:
        """The current state of all servers."""
        coming, sections = self._supervisor.coming, self._builder.sections
        servers = (
            self._server_snapshot(link, sections.get(link), coming.get(link.name))
            for link in self.links.values()
        )
        return Snapshot(self.catalog.revision, tuple(servers), self.withheld)

    def _server_snapshot(
        self, link: Link, section: CatalogSection | None, successor: Link | None
    ) -> ServerSnapshot:
        tools = len(section.tools) if section else 0
        warnings: tuple[str, ...] = ()
        if section:
            warnings = (
                *section.vetted.warnings,
                *self._scans.warnings(link, section),
                *section.warnings,
            )
        snapshot = link.snapshot(tools=tools, warnings=warnings)
        if self._sandboxes is not None and isinstance(link.config, StdioServer):
            sandbox = self._sandboxes.state_of(link.name, link.config)
            warned = (*snapshot.warnings, *sandbox.warnings)
            snapshot = replace(snapshot, sandbox=sandbox, warnings=warned)
        return replace(snapshot, pending=successor.failure) if successor else snapshot

    def _on_refusal(self, server: str, method: str, reason: str) -> None:
        self._trail.note_question(server, method, reason)
        self.events.publish(Warned(server, f"{method}: {reason}"))

    def _link_changed(self, link: Link) -> None:
        # first: a successor may take the link's place, and what follows looks at the links
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

    def _open_people(self, tasks: Tasks, dialer: Dialer, place: Placements) -> Members:
        def on_change() -> None:
            # gateways compare what people see; the hub's own catalog is the same
            self.events.publish(CatalogChanged(self.catalog.revision))
            self.changed.ring()

        parts = LinkParts(
            dialer=dialer,
            expand=self._expand,
            starts=self._starts,
            events=self.events,
            screen=self._handlers.screen,
            health_interval=lambda: self.settings.health_interval,
        )
        common = CommonServers(tasks, self._builder, parts, on_change)
        return Members(common, sharing=place.logins, changed=self.changed)

    def _rebuild(self) -> None:
        """Publish a new catalog if anything in it differs."""
        last = self.catalog
        self.catalog = self.lookup.catalog = fresh = self._builder.build(self.links, last)
        self._scans.look_again()
        # each shared link of a server stands in the catalogs of people, too
        if self.people is not None:
            self.people.apply(self.links)
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


HubSource = Settings | Mapping[str, Any] | str | PathLike[str]
"""What names the servers of a hub: settings, a mapping in any client's format, or a file."""


@asynccontextmanager
async def open_hub(
    settings: HubSource | Reloader | None = None,
    *,
    handlers: Handlers = Handlers(),
    dial: Dial | None = None,
    expand: Expand | None = None,
    recall: bool = False,
    place: Placements = local_placements,
    loaded: Loaded | None = None,
    locks: LockPlaces | None = None,
    warns: bool = True,
) -> AsyncGenerator[Hub]:
    """Open a hub; leaving the block stops every server.

    It returns at once, while the servers start side by side: `await hub.settled()` waits for them.
    Another task may leave the block than the one that entered it.

    Without settings it reads the files that the command line reads: those that `MULTITAP_CONFIG`
    names, else the user's and the project's. It reloads them on changes, unless they say
    `auto_reload = false`. An entry that cannot be used is logged and affects only itself.

    Args:
        settings: The servers, and how to run them: `Settings`, or a file or mapping in the format
            of any client, such as `{"mcpServers": …}`; by default, the configuration files.
        handlers: Callbacks for what servers ask of the host.
        dial: Opens connections to servers, instead of pipes and sockets.
        expand: Expands variables in a server's configuration, instead of this process's.
        recall: Whether a server's last known offers are listed while it starts.
        place: Where servers run, if not all in this process.
        loaded: The files of the settings, if they are not followed: each configuration has its own
            logs and lock files.
        locks: The lock files of pins, if they are not those of the files or the state directory.
        warns: Whether to warn of parts of a project that nobody has trusted (`UntrustedWarning`).

    Raises:
        ConfigError: A file cannot be read, or the mapping cannot be used; names the key.
    """
    running = _run_hub(
        settings,
        handlers=handlers,
        dial=dial,
        expand=expand,
        recall=recall,
        place=place,
        loaded=loaded,
        locks=locks,
    )
    async with InOwnTask(running) as hub:
        if warns:
            # here, not in the other task: this one has the line of the program that opens it
            warn_of_untrusted(hub.withheld)
        yield hub


@asynccontextmanager
async def _run_hub(
    source: HubSource | Reloader | None,
    *,
    handlers: Handlers,
    dial: Dial | None,
    expand: Expand | None,
    recall: bool,
    place: Placements,
    loaded: Loaded | None,
    locks: LockPlaces | None,
) -> AsyncGenerator[Hub]:
    files: Reloader | None = None
    if isinstance(source, Mapping):
        source = settings_from(source)
    if isinstance(source, Settings):
        settings = source
    else:
        if not isinstance(source, Reloader):
            if not isinstance(source, str | PathLike | None):  # pyright: ignore[reportUnnecessaryIsInstance] - not everyone checks types
                kind = type(source).__name__
                raise TypeError(f"open_hub() takes a path, a mapping or Settings, not {kind}")
            named = None if source is None else Path(source)
            source = await to_thread.run_sync(find_files, named, abandon_on_cancel=True)
        files = source
        settings, loaded, expand = files.settings, files.loaded, expand or files.expand
    state = state_directory(settings.state_dir)
    if locks is None:
        locks = places_in(state) if loaded is None else places_of(loaded.search)
    logs = logins = sandboxes = None
    with ungrouped():
        async with AsyncExitStack() as stack:
            spawner = await stack.enter_async_context(open_spawner())
            # the warden takes a moment to start: it does so while the store is opened
            if dial is None and any(map(_starts_now, settings.servers.values())):
                spawner.prepare()
            store = await stack.enter_async_context(open_store(state))
            if dial is None:
                marks = (
                    f"{name} {fingerprint(config)}" for name, config in settings.servers.items()
                )
                logs = log_folder(state, loaded.files if loaded is not None else (), marks)
                await to_thread.run_sync(tidy, logs.parent, abandon_on_cancel=True)
                # entered before the links, so left after them: they may wait for a renewal
                renewals = await stack.enter_async_context(Tasks())
                logins = Logins(renewals, _login_for(handlers), place.logins)
                env = None if loaded is None else loaded.search.env
                sandboxes = await stack.enter_async_context(open_sandboxes(state, env=env))
                sandboxes.default = settings.sandbox
                dial = Dialer(spawner, logs, logins, sandboxes, env)
            pins = await stack.enter_async_context(open_pins(locks))
            spans = stack.enter_context(open_spans(settings.telemetry))
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
                spans=spans,
            )
            if loaded is not None:
                hub.withheld = withheld_parts(loaded)
            try:
                async with nullcontext() if files is None else auto_reload(hub, files):
                    yield hub
            finally:
                # before the links end: calls that fail from now on report that the hub is closed
                hub.close()


def _login_for(handlers: Handlers) -> Login | None:
    """The host's handler for logins, by the name of the server."""
    if (login := handlers.login) is None:
        return None
    return lambda server, address: login(RequestOrigin(server), address)
