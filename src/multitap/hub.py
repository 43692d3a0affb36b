"""Many MCP servers, held as one."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import platformdirs
from anyio import to_thread
from msgspec import Raw

from multitap import catalog, router
from multitap.books import Books, Choices
from multitap.calls import Calls, cap_of
from multitap.catalog import Catalog, Prompt, Shelf, Tool
from multitap.config import Scope, ServerConfig, Settings, StdioServer, expand_server
from multitap.content import KeptResult, KeptResults, ToolResult
from multitap.errors import (
    LONGEST_QUOTE,
    BadAnswer,
    HubClosed,
    Unavailable,
    UnknownName,
    quoted,
    shortened,
    ungrouped,
)
from multitap.events import (
    CallDone,
    CatalogChanged,
    Event,
    EventBus,
    LinkChanged,
    LinkRemoved,
    LinkState,
    ServerSnapshot,
    Snapshot,
    Warned,
    pending_words,
)
from multitap.later import Later
from multitap.metrics import Metrics
from multitap.names import Naming, likely_owners
from multitap.router import LIBRARY, CallDefaults, Route, route_to
from multitap.store import (
    CallRecord,
    CatalogKey,
    LogRecord,
    Store,
    StoredCatalog,
    fingerprint,
    open_store,
)
from multitap.supervisor import Plan, Supervisor
from multitap.tasks import Tasks
from multitap.upstream.caller import CallContext
from multitap.upstream.dial import Dialer
from multitap.upstream.habits import Habits
from multitap.upstream.handlers import Handlers
from multitap.upstream.link import Dial, Expand, Known, Link
from multitap.upstream.listing import Offers
from multitap.upstream.session import Era
from multitap.upstream.signals import Bell
from multitap.upstream.standing import still_starting
from multitap.upstream.start_queue import StartQueue
from multitap.wire.deadline import Deadline
from multitap.wire.request import made
from multitap.wire.spawner import open_spawner
from multitap.wire.stderr import log_folder, tidy

if TYPE_CHECKING:
    import mcp_types as types
    import pydantic

    from multitap.tools import ToolRegistry
else:
    types = Later("mcp_types")
    pydantic = Later("pydantic")

_NOBODY = CallContext()
_Model = TypeVar("_Model", bound="pydantic.BaseModel")
_Found = TypeVar("_Found")


class Hub:
    """Many servers, one catalog; made by [`open_hub`][multitap.open_hub].

    Every method may be called from any task of the hub's event loop.
    """

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
    ) -> None:
        self.settings = settings
        self.catalog = Catalog()
        """What there is to call right now; replaced, never changed."""
        self.events = EventBus(self._record)
        self.metrics = Metrics()
        self._tasks = tasks
        self._dial = dial
        self._expand = expand or _expanded
        self._handlers = handlers
        self._store = store
        self._recall = recall
        self._kept = KeptResults()
        self._told: dict[str, tuple[Link, LinkChanged]] = {}
        self._warned: dict[str, str] = {}
        """Why a successor is not up, as it was last told."""
        self._shelves: dict[Link, Shelf] = {}
        self._known = store.load_catalogs()
        self._books = Books((), settings.naming, {}, lasting=False)
        self._outcomes = store.load_outcomes()
        self._asking = store.load_asking()
        self._habits: dict[CatalogKey, Habits] = {}
        self._starts = StartQueue(settings.start_concurrency)
        self._changed = Bell()
        self._closed = False
        store.on_disagreement = self._reread_choices
        self._supervisor = Supervisor(tasks, self._make_link, self._rebuild)
        self.calls = Calls(lambda: self.settings.agents, self._call_done)
        """Makes all calls."""
        self._routes: dict[Tool, Route] = {}
        self.apply(settings)

    @property
    def store(self) -> Store:
        """Past calls and last good catalogs, on disk."""
        return self._store

    @property
    def links(self) -> Mapping[str, Link]:
        return self._supervisor.links

    def apply(self, settings: Settings) -> Plan:
        """Make the running servers match `settings`, and say what that takes; returns at once.

        Servers whose configuration is the same keep their process and their session. A changed one
        serves until its successor is up, then finishes its calls and ends; for as long as the
        successor fails, it serves on, and its snapshot says why.
        """
        self._open()
        self.settings = settings
        self.gateway_defaults = CallDefaults(
            "off", settings.serve.timeout, errors_are_results=False
        )
        self._starts.limit = settings.start_concurrency
        self._supervisor.drain_timeout = settings.drain_timeout
        self._open_books()
        todo = self._supervisor.apply(settings.servers)
        self._rebuild()
        for name in todo.stop:
            self._told.pop(name, None)
            self._warned.pop(name, None)
            self.events.publish(LinkRemoved(name))
        for name in todo.replace:
            self._warned.pop(name, None)
            self._tell_state(name)
        return todo

    async def settled(self) -> None:
        """Wait until every server has answered, failed or timed out, successors included."""
        while not self._supervisor.settled:
            await self._changed.wait()

    async def changed(self) -> None:
        """Wait until anything about the servers changes."""
        await self._changed.wait()

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext = _NOBODY,
    ) -> ToolResult:
        """Call one tool by its catalog name, or by its own where no other tool is called so.

        A call to a server that is still starting waits for it, within its timeout. A tool that
        fails returns a result with `success` False and the server's own words.

        Raises:
            UnknownName: There is no such tool, or it is hidden from this caller.
            BadArguments: The arguments do not fit its schema.
            UpstreamError: The server could not answer; which one says why.
        """
        self._open()
        tool, deadline = self.catalog.tools.get(name), None
        if tool is None:
            since = anyio.current_time()
            tool = await self.find_tool(name, context=context)
            deadline = self._route(tool).deadline(context, since)
        try:
            result = await self.calls.make(self._route(tool), arguments or {}, context, deadline)
        except Unavailable:
            if self._closed:
                raise HubClosed("the hub was closed during the call") from None
            raise
        return result.capped(cap_of(tool, self.settings.result_cap), self._kept)

    async def find_tool(self, name: str, *, context: CallContext = _NOBODY) -> Tool:
        """The tool that `call` would call; servers that may have it are waited for.

        Raises:
            UnknownName: There is no such tool, or it is hidden.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        self._open()
        tool = await self.wait_for(
            lambda: router.look_up(self.catalog, name), name, context=context, defaults=LIBRARY
        )
        if tool is None:
            raise router.unknown(self.catalog.tools, name)
        return tool

    async def wait_for(
        self,
        find: Callable[[], _Found | None],
        name: str | None,
        *,
        defaults: CallDefaults,
        context: CallContext = _NOBODY,
        has: Callable[[str], bool] = lambda _: True,
    ) -> _Found | None:
        """What `find` finds, once the servers are up that are still starting and may have it.

        Whose a name is may be remembered; if not, the name itself shows whose it can be. An
        address, and a bare name, may be any server's.

        Args:
            find: Looks for it.
            name: Of the tool or prompt; None: it is a resource.
            defaults: How long to wait for servers that do not say it themselves.
            context: Who wants it.
            has: Whether a server counts for them.

        Raises:
            Unavailable: The server that may have it failed, or is not up in time.
        """
        if (found := find()) is not None:
            return found
        known = self._books.owners(name) if name is not None else set[str]()
        is_telling = bool(known) or (name is not None and self.settings.naming is not Naming.BARE)
        waited: dict[Link, None] = {}
        since = anyio.current_time()
        deadline: Deadline | None = None
        while True:
            names = [*(known or self.links)]
            if name is not None:
                names = likely_owners(name, names, self.settings.naming)
            unseen = [
                link
                for link in map(self.links.get, names)
                if link is not None and link.offers is None and has(link.name)
            ]
            starting = [link for link in unseen if not link.settled]
            if not starting:
                break
            waited.update(dict.fromkeys(starting))
            if deadline is None:
                limits = (
                    defaults.deadline(x.config, context=context, since=since) for x in starting
                )
                deadline = max(limits, key=lambda limit: limit.at)
            with anyio.move_on_after(deadline.at - anyio.current_time()) as clock:
                await self._changed.wait()
            if (found := find()) is not None:
                return found
            if clock.cancelled_caught:
                raise Unavailable(
                    starting[0].name,
                    still_starting(deadline),
                    hint="call again in a moment, or raise `timeout`",
                )
        for link in unseen:
            if (failure := link.failure) is not None and (is_telling or link in waited):
                raise Unavailable(link.name, str(failure), hint=failure.hint, failure=failure)
        return None

    def twin(self, server: str, config: ServerConfig) -> Link:
        """A second link to a server, with a session of its own; whoever asks for it runs it."""
        return self._make_link(server, config, on_change=lambda _: None)

    @cached_property
    def tools(self) -> ToolRegistry:
        """The tools of all servers as an agent uses them; functions can be registered beside."""
        from multitap.tools import HubTools, ToolRegistry  # noqa: PLC0415 - a gateway needs none

        registry = ToolRegistry()
        registry.attach(HubTools(self))
        return registry

    async def read(
        self, uri: str, *, server: str | None = None, context: CallContext = _NOBODY
    ) -> types.ReadResourceResult:
        """Read a resource from the server that has it.

        Args:
            uri: Which one.
            server: Whose, where several have the same.
            context: On whose behalf, and how long it may take.

        Raises:
            UnknownName: No server has it.
            UpstreamError: The server could not answer.
        """
        self._open()
        since = anyio.current_time()
        resource = await self.wait_for(
            lambda: self.catalog.find_resource(uri, server),
            None,
            defaults=LIBRARY,
            context=context,
            has=lambda name: server in {None, name},
        )
        if resource is None:
            raise UnknownName(
                f"no server offers the resource {quoted(uri)}",
                hint="`multitap resources` lists what there is",
            )
        params = {"uri": resource.uri}
        result = await _asked(resource.link, "resources/read", params, context, since)
        return _typed(types.ReadResourceResult, result, resource.server)

    async def prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        context: CallContext = _NOBODY,
    ) -> types.GetPromptResult:
        """Fill in a prompt by its catalog name.

        Raises:
            UnknownName: There is no such prompt.
            UpstreamError: The server could not answer.
        """
        since = anyio.current_time()
        prompt = await self.find_prompt(name, context=context)
        params = {"name": prompt.raw_name, "arguments": arguments or {}}
        result = await _asked(prompt.link, "prompts/get", params, context, since)
        return _typed(types.GetPromptResult, result, prompt.server)

    async def find_prompt(self, name: str, *, context: CallContext = _NOBODY) -> Prompt:
        """A prompt by its catalog name; servers that may have it are waited for.

        Raises:
            UnknownName: There is no such prompt.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        self._open()
        prompt = await self.wait_for(
            lambda: self.catalog.prompts.get(name), name, context=context, defaults=LIBRARY
        )
        if prompt is None:
            near = get_close_matches(name, self.catalog.prompts, n=1)
            hint = f"did you mean {quoted(near[0])}? " if near else ""
            raise UnknownName(
                f"no prompt named {quoted(name)}",
                hint=f"{hint}`multitap prompts` lists what there is",
            )
        return prompt

    async def complete(
        self,
        reference: str,
        argument: str,
        value: str,
        *,
        known: Mapping[str, str] | None = None,
    ) -> types.CompleteResult:
        """Suggestions for an argument of a prompt or of a resource template.

        Args:
            reference: The prompt's catalog name, or the template.
            argument: Which argument.
            value: What was typed so far.
            known: Arguments already filled in.

        Raises:
            UnknownName: There is no such prompt or template.
            UpstreamError: The server could not answer.
        """
        self._open()
        if prompt := self.catalog.prompts.get(reference):
            link, ref = prompt.link, {"type": "ref/prompt", "name": prompt.raw_name}
        else:
            templates = self.catalog.templates
            template = next((one for one in templates if one.address == reference), None)
            if template is None:
                raise UnknownName(f"no prompt or resource template named {quoted(reference)}")
            link, ref = template.link, {"type": "ref/resource", "uri": template.uri}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if known:
            params["context"] = {"arguments": known}
        since = anyio.current_time()
        result = await _asked(link, "completion/complete", params, _NOBODY, since)
        return _typed(types.CompleteResult, result, link.name)

    async def subscribe(self, uri: str, *, server: str | None = None) -> None:
        """Publish a `ResourceUpdated` event whenever the resource changes, also after restarts."""
        link, raw = self._owner(uri, server)
        await link.subscribe(raw)

    async def unsubscribe(self, uri: str, *, server: str | None = None) -> None:
        link, raw = self._owner(uri, server)
        await link.unsubscribe(raw)

    def result(self, result_id: str) -> KeptResult:
        """The whole of a result whose text was cut.

        Raises:
            UnknownName: It was never there, or had to make room.
        """
        return self._kept.result(result_id)

    def restart(self, server: str) -> None:
        """Restart a server now, ignoring back-off.

        If its changed configuration is not in force yet, that is tried again; what serves stays.

        Raises:
            UnknownName: No such server is configured.
            Unavailable: It is disabled.
        """
        link = self._supervisor.coming.get(server) or self._link(server)
        if not link.config.enabled:
            raise Unavailable(server, "it is disabled", hint="set `enabled` in its configuration")
        link.restart()

    def snapshot(self) -> Snapshot:
        """Everything a screen would show, as it is now."""
        return Snapshot(
            self.catalog.revision,
            tuple(self._link_snapshot(link) for link in self.links.values()),
        )

    def close(self) -> None:
        """Refuse further calls; `open_hub` calls it when its block is left."""
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise HubClosed("the hub is closed", hint="use it inside its `async with` block")

    def _link(self, server: str) -> Link:
        try:
            return self.links[server]
        except KeyError:
            raise UnknownName(
                f"no server named {quoted(server)}", hint="`multitap status` lists what there is"
            ) from None

    def _owner(self, uri: str, server: str | None) -> tuple[Link, str]:
        self._open()
        if server is not None:
            return self._link(server), uri
        resource = self.catalog.find_resource(uri)
        if resource is None:
            raise UnknownName(f"no server offers the resource {quoted(uri)}")
        return resource.link, resource.uri

    def _make_link(
        self,
        name: str,
        config: ServerConfig,
        on_change: Callable[[Link], None] | None = None,
    ) -> Link:
        return Link(
            name,
            config,
            dial=self._dial,
            expand=self._expand,
            handlers=self._handlers,
            known=self._recalled(name, config),
            starts=self._starts,
            health_interval=self.settings.health_interval,
            on_change=on_change or self._link_changed,
            on_event=self.events.publish,
        )

    def _recalled(self, name: str, config: ServerConfig) -> Known:
        key = (name, fingerprint(config))
        stored, habits = self._known.get(key), self._habits_of(key)
        if stored is None:
            return Known(was_up=self._outcomes.get(key), habits=habits)
        listed = self._recall or config.start == "lazy"
        return Known(
            Era(stored.era),
            _offers(stored) if listed else None,
            was_up=self._outcomes.get(key, True),  # else nothing of it would be stored
            habits=habits,
        )

    def _habits_of(self, key: CatalogKey) -> Habits:
        if (habits := self._habits.get(key)) is None:
            habits = self._habits[key] = Habits(
                asks=key in self._asking, on_learned=lambda: self._store.save_asking(*key)
            )
        return habits

    def _link_changed(self, link: Link) -> None:
        self._supervisor.link_changed(link)
        self._tell_state(link.name)
        self._tell_pending(link.name)
        if link.state is LinkState.CONNECTED and link.offers is not None:
            self._remember(link, link.offers)
        self._note_outcome(link)
        self._rebuild()

    def _note_outcome(self, link: Link) -> None:
        if link.was_up is None or link.config.transport == "local":
            return
        key = (link.name, fingerprint(link.config))
        if self._outcomes.get(key) is not link.was_up:
            self._outcomes[key] = link.was_up
            self._store.save_outcome(*key, is_up=link.was_up)

    def _tell_state(self, name: str) -> None:
        if (link := self.links.get(name)) is None:
            return
        news = LinkChanged(name, link.state, link.failure)
        if self._told.get(name) != (link, news):
            self._told[name] = (link, news)
            self.events.publish(news)

    def _tell_pending(self, name: str) -> None:
        successor = self._supervisor.coming.get(name)
        if successor is None or successor.failure is None:
            return
        text = pending_words(successor.failure)
        if self._warned.get(name) != text:  # it is tried again and again, mostly for one reason
            self._warned[name] = text
            self.events.publish(Warned(name, text))

    def _remember(self, link: Link, offers: Offers) -> None:
        session = link.session
        if session is None or link.config.transport == "local":
            return
        self._store.save_catalog(
            link.name,
            fingerprint(link.config),
            StoredCatalog(
                era=session.era.value,
                protocol_version=session.protocol_version,
                tools=link.redacted_data(list(offers.tools)),
                resources=link.redacted_data(list(offers.resources)),
                templates=link.redacted_data(list(offers.templates)),
                prompts=link.redacted_data(list(offers.prompts)),
                instructions=session.instructions and link.redacted(session.instructions),
                saved_at=time.time(),
            ),
        )

    def _open_books(self) -> None:
        """Have names for the configured servers; those that are given already stay."""
        servers, naming = self.settings.servers, self.settings.naming
        books = self._books
        if books.servers == frozenset(servers) and books.naming is naming:
            return
        given = {kind: book.choices for kind, book in books.by_kind.items()}
        if books.naming is not naming:
            self._shelves = {}
        self._fill_books(given)

    def _reread_choices(self) -> None:
        """Give the names that another process gave first."""
        if not self._closed:
            self._shelves = {}
            self._fill_books({})
            self._rebuild()

    def _fill_books(self, given: Mapping[str, Choices]) -> None:
        """Names for what is known: what is given, then what is remembered, then what is stored."""
        stored = self._store.load_choices()
        choices = {
            kind: {**(mine := given.get(kind, {})), **_without(stored.get(kind, {}), mine)}
            for kind in given.keys() | stored.keys()
        }
        servers = self.settings.servers
        lasting = self._store.path is not None
        self._books = Books(servers, self.settings.naming, choices, lasting=lasting)
        for name, config in servers.items():
            if (offers := self._last_known(name, config)) is not None:
                catalog.reserve(name, offers, self._books)

    def _last_known(self, name: str, config: ServerConfig) -> Offers | None:
        """What a server offers now or offered last, even if it was configured otherwise then."""
        if (link := self.links.get(name)) is not None and link.offers is not None:
            return link.offers
        stored = self._known.get((name, fingerprint(config)))
        if stored is None:
            older = [one for (server, _), one in self._known.items() if server == name]
            stored = max(older, key=lambda one: one.saved_at, default=None)
        return _offers(stored) if stored is not None else None

    def _rebuild(self) -> None:
        """Publish a new catalog if anything in it differs; only changed servers are looked at."""
        links, stale = self.links, self._shelves
        shelves: dict[Link, Shelf] = {}
        for link in links.values():
            if (offers := link.offers) is None:
                continue
            shelf = stale.get(link)
            if shelf is None or shelf.offers is not offers:
                shelf = catalog.stock(link, offers, self._books)
            shelves[link] = shelf
        self._shelves = shelves
        if chosen := self._books.take_unsaved():
            self._store.save_choices(chosen, self._books.servers)
        fresh = catalog.build(shelves.items(), self.catalog.revision + 1, self._books, links)
        if not _same(fresh, self.catalog):
            self.catalog = fresh
            self._routes = {}
            self.events.publish(CatalogChanged(fresh.revision))
        elif (fresh.directory, fresh.links) != (self.catalog.directory, self.catalog.links):
            self.catalog = replace(fresh, revision=self.catalog.revision)
        self._changed.ring()

    def _link_snapshot(self, link: Link) -> ServerSnapshot:
        shelf = self._shelves.get(link)
        tools = len(shelf.tools) if shelf else 0
        snapshot = link.snapshot(tools=tools, warnings=shelf.warnings if shelf else ())
        successor = self._supervisor.coming.get(link.name)
        return replace(snapshot, pending=successor.failure) if successor else snapshot

    def _record(self, event: Event) -> None:
        record = LogRecord.of(event, at=time.time())
        if record is not None:
            self._store.log(record)

    def _call_done(self, record: CallRecord) -> None:
        self.metrics.record(record)
        self._store.log_call(record)
        if self.events.watched:
            self.events.publish(
                CallDone(
                    record.server,
                    record.tool,
                    record.seconds,
                    record.outcome,
                    record.bytes_in,
                    record.error,
                    record.agent,
                    record.session,
                )
            )

    def _route(self, tool: Tool) -> Route:
        """The way to a tool for the library's own callers."""
        route = self._routes.get(tool)
        if route is None:
            route = self._routes[tool] = route_to(tool, LIBRARY)
        return route


async def _asked(
    link: Link, method: str, params: Mapping[str, Any], context: CallContext, since: float
) -> Raw:
    """Ask a server for something that changes nothing there.

    Args:
        link: Which server.
        method: What to ask for.
        params: Its parameters.
        context: On whose behalf, and how long it may take.
        since: When the time began, by the loop's clock.
    """
    deadline = LIBRARY.deadline(link.config, context=context, since=since)
    request = made(method, params, deadline, call=context, repeatable=True)
    request.on_progress = context.on_progress
    return await link.request(request)


def _expanded(_: str, config: ServerConfig) -> ServerConfig:
    return expand_server(config, Scope(os.environ, Path.cwd(), Path.home()))


def _starts_now(config: ServerConfig) -> bool:
    """Whether a program is started without a call that needs it."""
    return isinstance(config, StdioServer) and config.enabled and config.start != "lazy"


def _offers(stored: StoredCatalog) -> Offers:
    return Offers(
        tools=tuple(stored.tools),
        resources=tuple(stored.resources),
        templates=tuple(stored.templates),
        prompts=tuple(stored.prompts),
    )


def _without(choices: Choices, others: Choices) -> Choices:
    return {pair: name for pair, name in choices.items() if pair not in others}


def _same(one: Catalog, other: Catalog) -> bool:
    return (
        one.tools.items() == other.tools.items()
        and one.prompts.items() == other.prompts.items()
        and one.resources == other.resources
        and one.templates == other.templates
        and one.absent.keys() == other.absent.keys()
        and one.hidden == other.hidden
    )


def _typed(model: type[_Model], result: Any, server: str) -> _Model:
    try:
        return model.model_validate_json(bytes(result))
    except pydantic.ValidationError as exc:
        raise BadAnswer(server, f"its answer misses what MCP demands: {_mistakes(exc)}") from None


def _mistakes(exc: pydantic.ValidationError) -> str:
    """What is wrong with an answer, without quoting it."""
    first = exc.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{shortened(where, LONGEST_QUOTE)}: {first['msg']}"


@asynccontextmanager
async def open_hub(
    settings: Settings,
    *,
    handlers: Handlers = Handlers(),
    dial: Dial | None = None,
    expand: Expand | None = None,
    recall: bool = False,
    files: Collection[str] = (),
) -> AsyncGenerator[Hub]:
    """A running hub; leaving the block closes every server.

    It returns at once, while the servers start side by side: `await hub.settled()` waits for them.

    Args:
        settings: Which servers, and by which rules.
        handlers: Who answers what servers ask of the host.
        dial: How servers are reached, in place of pipes and sockets.
        expand: Puts in the variables of a server's configuration, in place of this process's.
        recall: Whether what a server had last time is listed while it starts.
        files: What the settings are written in: each configuration has logs of its own.
    """
    state = settings.state_dir or Path(platformdirs.user_state_dir("multitap"))
    with ungrouped():
        async with AsyncExitStack() as stack:
            spawner = await stack.enter_async_context(open_spawner())
            if dial is None and any(map(_starts_now, settings.servers.values())):
                spawner.prepare()
            store = await stack.enter_async_context(open_store(state))
            if dial is None:
                servers = (f"{name} {fingerprint(one)}" for name, one in settings.servers.items())
                logs = log_folder(state, files, servers)
                await to_thread.run_sync(tidy, logs.parent, abandon_on_cancel=True)
                dial = Dialer(spawner, logs, handlers.login)
            tasks = await stack.enter_async_context(Tasks())
            hub = Hub(
                tasks,
                settings,
                dial=dial,
                expand=expand,
                handlers=handlers,
                store=store,
                recall=recall,
            )
            try:
                yield hub
            finally:
                hub.close()
