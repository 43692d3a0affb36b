"""Answers control requests about a running gateway, from any front end."""

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import anyio
import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.errors import MultitapError, UnknownName
from multitap.events import CallDone, Event, LinkState, Reloaded
from multitap.gateway.client import Client, abilities
from multitap.gateway.degradation import reasons
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.access_service import AccessService
from multitap.gateway.fronts.control_actions import (
    prompt_lines,
    refusal,
    resource_lines,
    tool_line,
)
from multitap.gateway.fronts.control_overview import GatewayOverview, Pulse
from multitap.gateway.fronts.worker_figures import WorkerFigures
from multitap.gateway.gateway import Gateway
from multitap.hub.hub import Hub
from multitap.hub.reload import Reloader
from multitap.store.call_records import CallRecord
from multitap.store.exchanges import RecordedExchange
from multitap.store.log_records import Activity, LogRecord
from multitap.store.record_filter import RecordFilter
from multitap.trust.projects.project_review import review
from multitap.trust.projects.trusted_projects import Projects
from multitap.upstream.link import Link
from multitap.upstream.traced_wire import TracedMessage
from multitap.upstream.tracing import follow_messages
from multitap.version import VERSION
from multitap.wire.process.stderr_log import last_lines, log_path

if TYPE_CHECKING:
    from multitap.gateway.fronts.worker_feeds import Followed
    from multitap.gateway.fronts.worker_peers import WorkerPeers, WorkerQuestion

WORK = 30.0
"""Seconds for one answer: a question must not occupy its place forever."""
BACKLOG = 4096
"""Events that wait to be read; further ones are dropped."""

Switch = Callable[[str, bool], None]
"""Enables or disables a server in its configuration file."""

# clients choose their own names, and may choose long ones
_LONGEST_WORD = 100
_encode = msgspec.json.Encoder().encode


class ControlService:
    """Answers questions about one gateway; the socket and the page carry them.

    Args:
        gateway: The gateway.
        reloader: Reloads its files; None if it has none.
        url: Its address for clients; None if it serves its own pipes.
        sessions: The ids of its sessions.
        switch: Enables or disables a server in its file, which blocks; None if there is no file.
        link: Makes a new link to the web console; None if there is no console.
    """

    workers: "WorkerPeers | None" = None
    """The other workers of the gateway, if it has any; answers cover all of them."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        reloader: Reloader | None = None,
        url: str | None = None,
        sessions: Callable[[], Collection[str]] | None = None,
        switch: Switch | None = None,
        link: Callable[[], str] | None = None,
    ) -> None:
        self.gateway = gateway
        self._reloader = reloader
        self._url = url
        self._sessions = sessions
        self._switch = switch
        self._link = link
        self._access = AccessService(gateway)
        self._started = time.time()

    def about(self) -> protocol.About:
        return protocol.About(
            pid=os.getpid() if self.workers is None else os.getppid(),
            version=VERSION,
            started=self._started,
            files=protocol.files_of(self._reloader.loaded) if self._reloader else None,
            url=self._url,
        )

    async def answer(self, question: protocol.Quick) -> protocol.ControlAnswer:
        """The answer to a question, or an error, as a line for the socket."""
        try:
            return ok(await self.find(question))
        except MultitapError as exc:
            return refusal(exc)

    async def find(self, question: protocol.Quick) -> Any:
        """The answer to a question as a value, for callers in this process.

        Raises:
            MultitapError: The question cannot be answered.
        """
        try:
            with anyio.fail_after(WORK):
                return await self._find(question)
        except TimeoutError:
            raise MultitapError(f"it took more than {WORK:g} seconds") from None

    async def find_here(self, question: "WorkerQuestion") -> Any:
        """The answer of this process alone, as a value."""
        match question:
            case protocol.AskPulse(seen, most):
                return self.pulse(seen, most)
            case protocol.AskExchange(exchange_id):
                return _recent(self.gateway.hub.calls.latest(), exchange_id)
            case _:
                return await self._access.answer(question)

    async def ask_all(self, question: "WorkerQuestion") -> Any:
        """The answer of all workers together, as a value."""
        if self.workers is None:
            return await self.find_here(question)
        return await self.workers.find(question)

    @asynccontextmanager
    async def follow(self, question: "Followed") -> AsyncGenerator[AsyncIterator[Any]]:
        """Within the block, iterate over events, or messages to and from a server.

        Raises:
            UnknownName: There is no such server.
        """
        if self.workers is None:
            with self.feed(question) as events:
                yield events
        else:
            async with self.workers.feeds.follow(question) as events:
                yield events

    @contextmanager
    def feed(self, question: "Followed") -> Generator[AsyncIterator[Any]]:
        """The same for this process alone.

        Raises:
            UnknownName: There is no such server.
        """
        hub = self.gateway.hub
        if isinstance(question, protocol.AskEvents):
            with hub.events.subscribe(BACKLOG) as events:
                yield _to_log_records(events, question.server)
            return
        server = question.server
        if server not in hub.links:
            raise UnknownName(
                f"the gateway has no server named {server!r}",
                hint="`multitap status` lists all servers",
            )
        with follow_messages(hub.tracings[server]) as messages:
            # those that go to another worker are traced there
            yield messages if self.workers is None else _without_forwarded(messages)

    async def _find(self, question: protocol.Quick) -> Any:  # noqa: PLR0911 - one line per question
        hub = self.gateway.hub
        match question:
            case protocol.AskAbout():
                return self.about()
            case protocol.AskState():
                return self._state()
            case protocol.AskTools():
                return [tool_line(tool) for tool in hub.catalog.tools.values()]
            case protocol.AskResources():
                return resource_lines(hub)
            case protocol.AskPrompts():
                return prompt_lines(hub)
            case protocol.AskFigures():
                return await self._all_figures()
            case (
                protocol.AskReload()
                | protocol.AskRestart()
                | protocol.AskSwitch()
                | protocol.AskConsole()
            ):
                return await self._did(question)
            case (
                protocol.AskPulse()
                | protocol.AskCalls()
                | protocol.AskLog()
                | protocol.AskExchange()
                | protocol.AskHistory()
                | protocol.AskStderr()
                | protocol.AskTrustReview()
            ):
                return await self._recall(question)
            case _:
                if isinstance(question, protocol.AskOpenQuestions | protocol.AskReply):
                    return await self.ask_all(question)
                return await self._access.answer(question)

    async def _did(
        self,
        wish: protocol.AskReload | protocol.AskRestart | protocol.AskSwitch | protocol.AskConsole,
    ) -> Any:
        match wish:
            case protocol.AskReload():
                return await self._reload()
            case protocol.AskRestart(server):
                return self.gateway.hub.restart(server)
            case protocol.AskSwitch(server, on):
                return await self._switch_server(server, on=on)
            case protocol.AskConsole():
                return self._console()
            case _:
                assert_never(wish)

    async def _recall(self, question: protocol.Recall) -> Any:  # noqa: PLR0911 - one line per question
        store = self.gateway.hub.store
        match question:
            case protocol.AskCalls(text, limit, cursor):
                wanted = RecordFilter.parse(text)
                return await store.calls(filter=wanted, limit=limit, cursor=cursor)
            case protocol.AskLog(text, limit, cursor):
                wanted = RecordFilter.parse(text)
                return await store.logs(filter=wanted, limit=limit, cursor=cursor)
            case protocol.AskPulse():
                return await self.ask_all(question)
            case protocol.AskExchange(exchange_id):
                # the store writes in batches: a call that just ended is only in memory yet
                found: list[RecordedExchange] = await self.ask_all(question)
                return found[0] if found else await store.exchange(exchange_id)
            case protocol.AskHistory(span):
                return await store.history(span)
            case protocol.AskStderr(server):
                return await self._stderr(server)
            case protocol.AskTrustReview():
                return await _review_projects(self._reloader)
            case _:
                assert_never(question)

    def pulse(self, seen: int, most: int) -> Pulse:
        """The counters of this process, and its latest calls after `seen`."""
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

    async def overview(self) -> GatewayOverview:
        """What a screen shows beside the counters; also notes that a person is present."""
        questions = tuple(await self.ask_all(protocol.AskOpenQuestions()))
        figures, state = await self._all_figures(), self._state()
        if figures.gap:
            state = msgspec.structs.replace(state, degraded=(*state.degraded, figures.gap))
        return GatewayOverview(self.about(), state, figures, questions)

    def _console(self) -> str:
        if self._link is None:
            raise MultitapError(
                "the gateway has no web console",
                hint="`multitap serve --http` has one, unless you use `--no-console`",
            )
        return self._link()

    async def _switch_server(self, server: str, *, on: bool) -> protocol.ReloadReport:
        if self._switch is None:
            raise MultitapError("the gateway has no files to change")
        if server not in self.gateway.hub.settings.servers:
            raise UnknownName(f"the gateway has no server named {server!r}")
        # another change of the file may come before the reload, which then takes both
        await to_thread.run_sync(self._switch, server, on)
        return await self._reload()

    async def _stderr(self, server: str) -> str:
        logs = self.gateway.hub.logs
        if logs is None:
            return ""
        return await to_thread.run_sync(last_lines, log_path(logs, server))

    def _state(self) -> protocol.GatewayState:
        hub = self.gateway.hub
        return protocol.GatewayState(hub.snapshot(), _asleep(hub), reasons(hub))

    def figures(self) -> WorkerFigures:
        """The figures of this process."""
        gateway = self.gateway
        return WorkerFigures(
            gateway.hub.metrics.rows,
            tuple(_client(client) for client in gateway.subscriptions.clients),
            frozenset(self._sessions() if self._sessions is not None else ()),
            len(gateway.parked_calls),
            len(gateway.private),
        )

    async def _all_figures(self) -> protocol.Figures:
        told = self.figures() if self.workers is None else await self.workers.figures()
        metrics = told.metrics
        return protocol.Figures(
            servers={
                name: protocol.ServerFigures(total, metrics.tools(name))
                for name, total in metrics.servers().items()
            },
            clients=told.clients,
            # on pipes, the client is the session
            sessions=len(told.clients) if self._sessions is None else len(told.sessions),
            waiting=told.waiting,
            private_links=told.private_links,
            missing_workers=told.missing,
        )

    async def _reload(self) -> protocol.ReloadReport:
        if self._reloader is None:
            raise MultitapError("the gateway has no files to reload")
        report = await self._reloader.reload(self.gateway.hub)
        missing = 0 if self.workers is None else await self.workers.reload()
        if isinstance(report, Reloaded):
            return protocol.ReloadReport(
                taken=True,
                plan=report.plan,
                problems=report.problems,
                kept=report.kept,
                missing_workers=missing,
            )
        return protocol.ReloadReport(taken=False, problems=report.problems)


async def _review_projects(reloader: Reloader | None) -> str:
    if reloader is None:
        return ""
    folder = reloader.loaded.search.folder
    return await to_thread.run_sync(_review_text, folder, abandon_on_cancel=True)


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


def _recent(calls: Sequence[CallRecord], exchange_id: str) -> list[RecordedExchange]:
    """The exchange of a recent call, which may not be in the store yet; empty if unknown."""
    kept = (record.exchange for record in reversed(calls))
    return [one for one in kept if isinstance(one, RecordedExchange) and one.id == exchange_id]


def _brief(record: CallRecord) -> CallRecord:
    """A call record without its exchange, which may be long: `AskExchange` returns that."""
    if not isinstance(record.exchange, RecordedExchange):
        return record
    return msgspec.structs.replace(record, exchange=record.exchange.id)


def ok(value: Any) -> protocol.ControlAnswer:
    """A successful answer with this value."""
    return protocol.ControlAnswer(ok=Raw(_encode(value)))


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
        told = (
            Activity.of_call(event, at=at)
            if isinstance(event, CallDone)
            else LogRecord.of(event, at=at)
        )
        if told is not None and server in {None, told.server}:
            yield told


def _client(client: Client) -> protocol.ClientFigures:
    return protocol.ClientFigures(
        name=_word(client.info.get("title") or client.info.get("name")),
        version=_word(client.info.get("version")),
        protocol_version=client.version,
        profile=client.audience.profile,
        requests=len(client.scopes),
        principal=client.principal,
        capabilities=abilities(client.capabilities),
    )


def _word(value: object) -> str:
    return value[:_LONGEST_WORD] if isinstance(value, str) else ""
