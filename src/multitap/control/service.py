"""Answers what a running gateway is asked, for its commands, screens and other workers."""

import asyncio
import math
import os
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
)
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.control.access import AccessControl
from multitap.control.actions import CommandUser, RemoteUser, cancel_task, task_line, task_lines
from multitap.control.editing import AdditionReview, ConfigEditor, FoundServers, NewServer
from multitap.control.messages import (
    About,
    ClientFigures,
    Delivery,
    Figures,
    GatewayState,
    ListCost,
    PersonReply,
    PromptLine,
    ReloadReport,
    ResourceLine,
    ServerFigures,
    ShapedResults,
    TaskLine,
    ToolLine,
)
from multitap.control.methods import NOBODY, ActionUser, WorkerControl
from multitap.control.overview import GatewayOverview, Pulse, WorkerFigures
from multitap.errors import MultitapError, UnknownName
from multitap.events import CallDone, Event, LinkState, Reloaded
from multitap.gateway.client import Client, abilities
from multitap.gateway.gateway import Gateway
from multitap.gateway.metrics import shaped_tokens
from multitap.gateway.person_questions import OpenQuestion
from multitap.gateway.readiness import reasons
from multitap.hub.calls import cap_of
from multitap.hub.hub import Hub
from multitap.hub.reload import Reloader
from multitap.hub.routes import LIBRARY, route_to
from multitap.store.queries import CallHistory, Page, RecordFilter
from multitap.store.tables import Activity, CallRecord, LogRecord, RecordedExchange
from multitap.telemetry.spans import Span
from multitap.trust.project_review import review
from multitap.trust.projects import Projects
from multitap.trust.tokens import TokenNames
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext
from multitap.upstream.tracing import TracedMessage, follow_messages
from multitap.version import VERSION
from multitap.wire.stderr_log import last_lines, log_path

if TYPE_CHECKING:
    from multitap.cluster.worker_peers import WorkerPeers

BACKLOG = 4096
"""Events that wait to be read; further ones are dropped."""
SHORTEST = 0.05
"""The least seconds between two pulses, whatever a screen asks for."""
LOOK = 1.0
"""Seconds between two pulses with an overview."""

Feed = Literal["events", "trace"]
"""What can be followed at all workers."""

# clients choose their own names, and may choose long ones
_LONGEST_WORD = 100
_NEW_KEY = "`multitap console --no-open` prints a new one"
_NULL, _NO_ARGUMENTS = Raw(b"null"), Raw(b"{}")
_arguments = msgspec.json.Decoder(dict[str, Any]).decode
_Answer = TypeVar("_Answer")


class LinkKeys(Protocol):
    """The keys to the web console."""

    def take(self, digest: bytes) -> bool: ...

    async def spend(self, key: str) -> bool: ...

    async def wait_for_token(self, token_id: str) -> None: ...


class ControlService(AccessControl, WorkerControl):
    """Answers for one gateway.

    Args:
        url: Its address for clients; None if it serves its own pipes.
        editor: Makes what changes its files, once it is needed; None if it has none.
    """

    workers: "WorkerPeers | None" = None
    """The other workers of the gateway, if it has any; answers cover all of them."""
    keys: LinkKeys | None = None
    new_link: Callable[[], Awaitable[str]] | None = None
    """Makes a link to the web console; None if there is no console."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        reloader: Reloader | None = None,
        url: str | None = None,
        sessions: Callable[[], Collection[str]] | None = None,
        editor: Callable[[], ConfigEditor] | None = None,
        background: bool = False,
    ) -> None:
        super().__init__(gateway)
        self._reloader = reloader
        self._url = url
        self._sessions = sessions
        self._editor = editor
        self._background = background
        self.conversations: dict[str, RemoteUser] = {}
        """The actions whose person may be asked something, by their ids."""

    async def about(self) -> About:
        return About(
            # the parent of workers is what a signal has to reach to stop all of them
            pid=os.getpid() if self.workers is None else os.getppid(),
            version=VERSION,
            started=self.gateway.started,
            files=self._reloader.loaded.files if self._reloader else None,
            url=self._url,
            folder=str(self._reloader.loaded.search.folder) if self._reloader else None,
            is_background=self._background,
        )

    async def state(self) -> GatewayState:
        hub = self.gateway.hub
        return GatewayState(hub.snapshot(), _asleep(hub), reasons(hub))

    async def tools(self) -> list[ToolLine]:
        return [*map(ToolLine.of, self.gateway.hub.catalog.tools.values())]

    async def resources(self) -> list[ResourceLine]:
        catalog = self.gateway.hub.catalog
        return [*map(ResourceLine.of, (*catalog.resources, *catalog.templates))]

    async def prompts(self) -> list[PromptLine]:
        return [*map(PromptLine.of, self.gateway.hub.catalog.prompts.values())]

    async def figures(self) -> Figures:
        workers = self.workers
        figures = await (self.figures_here() if workers is None else workers.figures())
        metrics = figures.metrics
        shaped = {
            server: ShapedResults(*counts)
            for server, counts in shaped_tokens(figures.samples).items()
        }
        return Figures(
            servers={
                name: ServerFigures(total, metrics.tools(name), shaped.get(name, ShapedResults()))
                for name, total in metrics.servers().items()
            },
            clients=figures.clients,
            # on pipes, the client is the session
            sessions=len(figures.clients) if self._sessions is None else len(figures.sessions),
            waiting=figures.waiting,
            private_links=figures.private_links,
            missing_workers=figures.missing,
            lists=tuple(map(self._list_cost, ("", *self.gateway.hub.settings.profiles))),
        )

    def _list_cost(self, profile: str) -> ListCost:
        view = self.gateway.view(Audience.of(profile or None))
        return ListCost(profile, view.mode, len(view.tools), view.listed_tokens, view.all_tokens)

    async def figures_here(self) -> WorkerFigures:
        gateway = self.gateway
        clients = gateway.subscriptions.clients
        has_tokens = any(client.principal.key for client in clients)
        names = await self.token_names() if has_tokens else TokenNames(())
        return WorkerFigures(
            gateway.hub.metrics.rows,
            tuple(_client(client, names) for client in clients),
            frozenset(self._sessions() if self._sessions is not None else ()),
            len(gateway.parked_calls),
            len(gateway.private),
            gateway.metrics.samples(),
        )

    async def reload(self) -> ReloadReport:
        if self._reloader is None:
            raise MultitapError("the gateway has no files to reload")
        report = await self._reloader.reload(self.gateway.hub)
        missing = 0 if self.workers is None else await self.workers.reload()
        if isinstance(report, Reloaded):
            return ReloadReport(
                taken=True,
                plan=report.plan,
                problems=report.problems,
                kept=report.kept,
                missing_workers=missing,
            )
        return ReloadReport(taken=False, problems=report.problems)

    async def reload_here(self) -> None:
        if self._reloader is not None:
            await self._reloader.reload(self.gateway.hub)

    async def restart(self, server: str) -> None:
        self.gateway.hub.restart(server)

    async def switch(self, server: str, on: bool) -> ReloadReport:  # noqa: FBT001 - as in `Control`
        # another change of the file may come before the reload, which then takes both
        await self._editor_for(server).switch(server, on=on)
        return await self.reload()

    async def remove_server(self, server: str) -> ReloadReport:
        await self._editor_for(server).remove(server)
        return await self.reload()

    async def rename_server(self, server: str, name: str) -> ReloadReport:
        await self._editor_for(server).rename(server, name)
        return await self.reload()

    async def change_tool(
        self, server: str, tool: str, name: str | None = None, description: str | None = None
    ) -> ReloadReport:
        await self._editor_for(server).change_tool(server, tool, name, description)
        return await self.reload()

    async def find_servers(self, text: str = "") -> FoundServers:
        return await self._editor_for().search(text)

    async def review_server(self, new: NewServer) -> AdditionReview:
        return await self._editor_for().review_new(new)

    async def add_server(self, new: NewServer, digest: str, *, person: ActionUser = NOBODY) -> str:
        del person  # the person who asks has agreed
        name = await self._editor_for().add(new, digest)
        await self.reload()
        return name

    async def review_disabled(self, server: str) -> AdditionReview:
        return await self._editor_for(server).review_disabled(server)

    async def enable_reviewed(
        self, server: str, digest: str, key: str, *, person: ActionUser = NOBODY
    ) -> ReloadReport:
        del person
        # before the key is spent: a name that is mistyped must not cost one
        editor = self._editor_for(server)
        if self.keys is None or not await self.keys.spend(key):
            raise MultitapError("this key was used already, or is too old", hint=_NEW_KEY)
        await editor.enable_reviewed(server, digest)
        return await self.reload()

    def _editor_for(self, server: str | None = None) -> ConfigEditor:
        if self._editor is None:
            raise MultitapError("the gateway has no files to change")
        if server is not None and server not in self.gateway.hub.settings.servers:
            raise UnknownName(f"the gateway has no server named {server!r}")
        return self._editor()

    async def _ask_others(
        self, question: Callable[[WorkerControl], Awaitable[_Answer]]
    ) -> Collection[_Answer]:
        """The answers of the other workers, if there are any."""
        return () if self.workers is None else (await self.workers.ask(question)).values()

    async def _is_answered(self, reply: Callable[[WorkerControl], Awaitable[bool]]) -> bool:
        """Deliver a person's answer here or to another worker; False if nobody waits for it."""
        return await reply(self) or any(await self._ask_others(reply))

    async def console(self) -> str:
        if self.new_link is None:
            raise MultitapError(
                "the gateway has no web console",
                hint="`multitap serve --http` has one, unless you use `--no-console`",
            )
        return await self.new_link()

    async def take_key_here(self, digest: bytes) -> bool:
        return self.keys is not None and self.keys.take(digest)

    async def wait_for_token_here(self, token_id: str) -> None:
        if self.keys is not None:
            await self.keys.wait_for_token(token_id)

    async def calls(
        self, query: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[CallRecord]:
        records = RecordFilter.parse(query)
        return await self.gateway.hub.store.calls(filter=records, limit=limit, cursor=cursor)

    async def log(
        self, query: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[Activity]:
        records = RecordFilter.parse(query)
        return await self.gateway.hub.store.logs(filter=records, limit=limit, cursor=cursor)

    async def exchange(self, exchange_id: str) -> RecordedExchange | None:
        # the store writes in batches: a call that just ended is only in memory yet
        if (exchange := await self.exchange_here(exchange_id)) is not None:
            return exchange
        others = await self._ask_others(lambda worker: worker.exchange_here(exchange_id))
        for exchange in filter(None, others):
            return exchange
        return await self.gateway.hub.store.exchange(exchange_id)

    async def exchange_here(self, exchange_id: str) -> RecordedExchange | None:
        for record in reversed(self.gateway.hub.calls.latest()):
            exchange = record.exchange
            if isinstance(exchange, RecordedExchange) and exchange.id == exchange_id:
                return exchange
        return None

    async def spans(self, trace_id: str = "", most: int = 20) -> list[Span]:
        spans = await self.spans_here(trace_id, most)
        for others in await self._ask_others(lambda worker: worker.spans_here(trace_id, most)):
            spans += others
        # each worker has sent as many as were asked for; a trace is shown whole
        return sorted(spans, key=lambda span: span.start)[-most if not trace_id else 0 :]

    async def spans_here(self, trace_id: str, most: int) -> list[Span]:
        spans = self.gateway.hub.spans
        if spans is None:
            raise MultitapError(
                "this gateway records no traces",
                hint='set `traces = "memory"` (or `"otlp"`) under `[telemetry]`, and restart it',
            )
        return spans.of(trace_id) if trace_id else spans.last(most)

    async def history(self, span: float = 900.0) -> CallHistory:
        return await self.gateway.hub.store.history(span)

    async def stderr(self, server: str) -> str:
        logs = self.gateway.hub.logs
        if logs is None:
            return ""
        return await to_thread.run_sync(last_lines, log_path(logs, server))

    async def pulse(self, seen: int = 0, most: int = 100) -> Pulse:
        if self.workers is None:
            return await self.pulse_here(seen, most)
        return await self.workers.calls.pulse(seen, most)

    async def pulse_here(self, seen: int, most: int) -> Pulse:
        hub = self.gateway.hub
        calls = hub.calls
        # `seen` comes from outside, and may be from before a restart
        new = min(max(calls.made - seen, 0), most)
        return Pulse(
            calls.made,
            tuple(map(_brief, calls.latest(new))),
            hub.catalog.revision,
            sum(
                link.requests.slots.working
                for link in hub.links.values()
                # the worker that runs the server counts those as well
                if self.workers is None or not _is_forwarded(link)
            ),
        )

    @asynccontextmanager
    async def pulses(
        self, seen: int = 0, most: int = 100, every: float = 0.1
    ) -> AsyncGenerator[AsyncIterator[Pulse]]:
        yield self._beat(seen, most, max(every, SHORTEST))

    async def _beat(self, seen: int, most: int, pause: float) -> AsyncGenerator[Pulse]:
        clock = asyncio.get_running_loop().time
        before, looked = (-1, -1, -1), -math.inf
        while True:
            overview = None
            if clock() - looked >= LOOK:
                overview, looked = await self.overview(), clock()
            pulse = await self.pulse(seen, most)
            if overview is not None:
                pulse = msgspec.structs.replace(pulse, overview=overview)
            now = (pulse.made, pulse.in_flight, pulse.revision)
            if now != before or overview is not None:
                yield pulse
                seen, before = pulse.made, now
            await asyncio.sleep(pause)

    async def overview(self) -> GatewayOverview:
        """What a screen shows beside the counters; also notes that a person is present."""
        questions = tuple(await self.questions())
        figures, state = await self.figures(), await self.state()
        if figures.gap:
            state = msgspec.structs.replace(state, degraded=(*state.degraded, figures.gap))
        return GatewayOverview(await self.about(), state, figures, questions)

    @asynccontextmanager
    async def events(self, server: str | None = None) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self._follow("events", server) as events:
            yield events

    @asynccontextmanager
    async def trace(self, server: str) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self._follow("trace", server) as messages:
            yield messages

    @asynccontextmanager
    async def _follow(self, feed: Feed, server: str | None) -> AsyncGenerator[AsyncIterator[Any]]:
        if self.workers is None:
            with self.feed_here(feed, server) as items:
                yield items
        else:
            async with self.workers.feeds.follow(feed, server) as items:
                yield items

    @contextmanager
    def feed_here(self, feed: Feed, server: str | None) -> Generator[AsyncIterator[Any]]:
        """Events, or messages to and from a server, of this process alone.

        Raises:
            UnknownName: There is no such server.
        """
        hub = self.gateway.hub
        if feed == "events":
            with hub.events.subscribe(BACKLOG) as events:
                yield _to_log_records(events, server)
            return
        if server is None or server not in hub.links:
            raise UnknownName(
                f"the gateway has no server named {server!r}",
                hint="`multitap status` lists all servers",
            )
        with follow_messages(hub.tracings[server]) as messages:
            # those that go to another worker are traced there
            yield messages if self.workers is None else _without_forwarded(messages)

    async def trust_review(self) -> str:
        if self._reloader is None:
            return ""
        folder = self._reloader.loaded.search.folder
        return await to_thread.run_sync(_review_text, folder, abandon_on_cancel=True)

    async def questions(self) -> list[OpenQuestion]:
        questions = await self.questions_here()
        for others in await self._ask_others(lambda worker: worker.questions_here()):
            questions += others
        return sorted(questions, key=lambda question: question.asked)

    async def questions_here(self) -> list[OpenQuestion]:
        return [*self.gateway.person.look()]

    async def answer_question(
        self, number: int, result: Raw = _NULL, error: str | None = None
    ) -> bool:
        return await self._is_answered(
            lambda worker: worker.answer_question_here(number, result, error)
        )

    async def answer_question_here(self, number: int, result: Raw, error: str | None) -> bool:
        return self.gateway.person.reply(number, result, error)

    async def tool(
        self, name: str, timeout: float | None = None, *, person: ActionUser = NOBODY
    ) -> ToolLine:
        context = _context(CommandUser(person), timeout)
        return ToolLine.of(await self.gateway.hub.lookup.find_tool(name, context=context))

    async def prompt(
        self, name: str, timeout: float | None = None, *, person: ActionUser = NOBODY
    ) -> PromptLine:
        context = _context(CommandUser(person), timeout)
        return PromptLine.of(await self.gateway.hub.lookup.find_prompt(name, context=context))

    async def call(
        self,
        name: str,
        arguments: Raw = _NO_ARGUMENTS,
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,
    ) -> Delivery:
        hub = self.gateway.hub
        context = _context(CommandUser(person), timeout)
        tool = await hub.lookup.find_tool(name, context=context)
        # from here on this server may ask the person; before, it was not known which one
        context = _context(CommandUser(person, tool.server), timeout)
        # many servers can ask during a call only in the handshake era
        link = await self.gateway.private.askable(tool.link) if person.can_answer else tool.link
        route = route_to(tool, LIBRARY).over(link)
        called = await hub.calls.make(route, _arguments(arguments), context)
        cap = cap_of(tool, hub.settings.result_cap)
        return Delivery(Raw(called.raw), called.server, called.tool, cap)

    async def start(self, name: str, arguments: Raw = _NO_ARGUMENTS) -> str:
        decoded = msgspec.json.decode(arguments, type=dict[str, Any])
        return (await self.gateway.hub.start(name, decoded)).id

    async def tasks(self) -> list[TaskLine]:
        return await task_lines(self.gateway)

    async def task(self, task_id: str) -> TaskLine:
        return await task_line(self.gateway, task_id)

    async def cancel_task(self, task_id: str) -> TaskLine:
        return await cancel_task(self.gateway, task_id)

    async def read(
        self,
        uri: str,
        server: str | None = None,
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,
    ) -> Delivery:
        context = _context(CommandUser(person), timeout)
        content = await self.gateway.hub.read(uri, server=server, context=context)
        return Delivery.of(content)

    async def fill(
        self,
        name: str,
        arguments: dict[str, str],
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,
    ) -> Delivery:
        context = _context(CommandUser(person), timeout)
        prompt = await self.gateway.hub.prompt(name, arguments, context=context)
        return Delivery.of(prompt)

    async def login(
        self, server: str, timeout: float | None = None, *, person: ActionUser = NOBODY
    ) -> None:
        del timeout  # a login has its own
        await self.gateway.logins.log_in(server, None, CommandUser(person, server))

    async def answer(
        self, action: str, number: int, result: Raw = _NULL, error: str | None = None
    ) -> bool:
        # the action may run in another worker than the one that got the answer
        return await self._is_answered(
            lambda worker: worker.answer_here(action, number, result, error)
        )

    async def answer_here(self, action: str, number: int, result: Raw, error: str | None) -> bool:
        conversation = self.conversations.get(action)
        return conversation is not None and conversation.on_reply(
            number, PersonReply(result, error)
        )


def _context(user: CommandUser, timeout: float | None) -> CallContext:
    return CallContext(timeout=timeout, on_progress=user.on_progress, client=user)


def _review_text(folder: Path) -> str:
    reviews, _ = review(folder, Projects())
    lines = (line for project in reviews if project.news for line in (*project.lines(), ""))
    return "\n".join(lines).strip()


def _asleep(hub: Hub) -> tuple[str, ...]:
    return tuple(
        link.name
        for link in hub.links.values()
        if link.config.start == "lazy"
        and link.state is LinkState.DISCONNECTED
        and link.failure is None
    )


def _is_forwarded(link: Link) -> bool:
    return link.session is not None and link.session.wire.kind == "cluster"


def _brief(record: CallRecord) -> CallRecord:
    """A call record without its exchange, which may be long: `exchange` returns that."""
    if not isinstance(record.exchange, RecordedExchange):
        return record
    return msgspec.structs.replace(record, exchange=record.exchange.id)


async def _without_forwarded(
    messages: AsyncIterator[TracedMessage],
) -> AsyncIterator[TracedMessage]:
    async for message in messages:
        if not message.is_forwarded:
            yield message


async def _to_log_records(
    events: AsyncIterator[Event], server: str | None
) -> AsyncIterator[LogRecord]:
    async for event in events:
        at = time.time()
        record = (
            Activity.of_call(event, at=at)
            if isinstance(event, CallDone)
            else LogRecord.of(event, at=at)
        )
        if record is not None and server in {None, record.server}:
            yield record


def _client(client: Client, names: TokenNames) -> ClientFigures:
    principal = client.principal.name if client.principal.key else ""
    return ClientFigures(
        name=_word(client.info.get("title") or client.info.get("name")),
        version=_word(client.info.get("version")),
        protocol_version=client.version,
        profile=client.audience.profile,
        requests=len(client.scopes),
        principal=principal,
        label=names(principal),
        capabilities=abilities(client.capabilities),
    )


def _word(value: object) -> str:
    return value[:_LONGEST_WORD] if isinstance(value, str) else ""
