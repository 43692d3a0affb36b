"""The local socket on which a running gateway tells commands about itself."""

import contextlib
import logging
import os
import socket
import struct
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, assert_never

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Raw

from multitap.errors import MultitapError, ungrouped
from multitap.events import CallDone, Event, LinkState, Reloaded
from multitap.gateway.client import Client
from multitap.gateway.degradation import reasons
from multitap.gateway.fronts import control_actions, control_places
from multitap.gateway.fronts.control_actions import (
    CALM,
    CommandProgress,
    prompt_lines,
    refusal,
    resource_lines,
    tool_line,
)
from multitap.gateway.fronts.control_messages import (
    MAX_QUESTION,
    About,
    AnyQuestion,
    AskAbout,
    AskEvents,
    AskFigures,
    AskPicture,
    AskPrompts,
    AskReload,
    AskResources,
    AskRestart,
    AskTools,
    ClientFigures,
    ControlAnswer,
    Figures,
    GatewayAction,
    GatewayPicture,
    Quick,
    ReloadReport,
    ServerFigures,
    files_of,
)
from multitap.gateway.gateway import Gateway
from multitap.hub.reload import Reloader
from multitap.store.log_records import Happening, LogRecord
from multitap.version import VERSION
from multitap.wire.jsonrpc.envelope import UNPARSABLE

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds for a command to ask, and to read a line of the answer."""
WORK = 30.0
"""Seconds for an answer to be found."""
MOST = 32
"""Commands at the same time."""
MOST_ERRANDS = 24
"""Those among them that wait for servers, so that others still get an answer."""
PIECE = 256 * 1024
"""Bytes of a result that are handed over in one turn of the loop."""
BACKLOG = 4096
"""Events that wait for a command to read them; what comes when it is full is not told."""

_PAUSE = 1.0
_LONGEST_WORD = 100
_CHATTER = 64 * 1024
_GONE = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    TimeoutError,
)
_CREDENTIALS = struct.Struct("3i")

_parse = msgspec.json.Decoder(AnyQuestion).decode
_encode = msgspec.json.Encoder().encode


class Control:
    """Answers the commands of the person who runs the gateway.

    Args:
        gateway: About whom.
        reloader: Its files; None: it has none.
        url: Where clients reach it; None: on its own pipes.
        sessions: How many of them have a session.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        reloader: Reloader | None = None,
        url: str | None = None,
        sessions: Callable[[], int] | None = None,
    ) -> None:
        self._gateway = gateway
        self._reloader = reloader
        self._url = url
        self._sessions = sessions or (lambda: len(gateway.subscriptions.clients))
        self._started = time.time()
        self._meetings = 0
        self._parked_calls = 0
        self._turn = anyio.Lock()

    async def serve(self, listener: SocketListener, tasks: TaskGroup) -> None:
        """Answer everyone who connects, until cancelled."""
        while True:
            try:
                await listener.serve(self._meet, tasks)
            except anyio.BrokenResourceError as exc:  # no descriptor left, say
                logger.warning("a command cannot be accepted: %s", exc.__cause__)
                await anyio.sleep(_PAUSE)

    async def _meet(self, stream: SocketStream) -> None:
        self._meetings += 1
        try:
            with ungrouped():
                async with stream:
                    if self._meetings <= MOST and _is_the_user(stream):
                        await self._converse(stream)
        except _GONE:
            return  # it left, or does not read
        except Exception:  # boundary: a command is its own problem
            logger.exception("a command could not be answered")
        finally:
            self._meetings -= 1

    async def _converse(self, stream: SocketStream) -> None:
        try:
            with anyio.fail_after(PATIENCE):
                received = BufferedByteReceiveStream(stream)
                question = _parse(await received.receive_until(b"\n", MAX_QUESTION))
        except anyio.DelimiterNotFound:
            await _say(stream, ControlAnswer(error=f"a question has at most {MAX_QUESTION} bytes"))
            return
        except UNPARSABLE as exc:
            await _say(stream, ControlAnswer(error=f"unknown question: {exc}"))
            return
        async with self._turn:
            # a long list takes a while to write down: one answer in a turn of the loop, however
            # many ask at once
            await anyio.lowlevel.checkpoint()
        if isinstance(question, AskEvents):
            await self._tell(stream, question.server)
        elif isinstance(question, GatewayAction):
            await self._run(stream, question)
        else:
            await _say(stream, await self._answer(question))

    async def _run(self, stream: SocketStream, action: GatewayAction) -> None:
        """Do what takes a server's time, until it is done or the command is gone."""
        if self._parked_calls >= MOST_ERRANDS:
            words = f"{MOST_ERRANDS} commands are already waiting for servers"
            await _say(stream, ControlAnswer(error=words, kind="unavailable"))
            return
        self._parked_calls += 1
        try:
            await self._do(stream, action)
        finally:
            self._parked_calls -= 1

    async def _do(self, stream: SocketStream, action: GatewayAction) -> None:
        progress = CommandProgress()
        ended: list[tuple[ControlAnswer, bytes | Raw]] = []

        async def work() -> None:
            ended.append(await control_actions.run(self._gateway.hub, action, progress))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, stream, tasks.cancel_scope)
            tasks.start_soon(work)
            while (line := await progress.next()) is not None:
                await _say(stream, line)
                await anyio.sleep(CALM)
            for answer, result in ended:
                await _say(stream, answer)
                await _hand_over(stream, memoryview(result))
            # The command leaves now, which ends it all. To cancel what waits for that at the very
            # moment when it happens makes uvloop complain of a future that is cancelled already.
            await anyio.sleep(PATIENCE)
            tasks.cancel_scope.cancel()

    async def _answer(self, question: Quick) -> ControlAnswer:
        try:
            with anyio.fail_after(WORK):
                return _ok(await self._found(question))
        except MultitapError as exc:
            return refusal(exc)
        except TimeoutError:
            return ControlAnswer(error=f"it took more than {WORK:g} seconds")

    async def _found(self, question: Quick) -> Any:  # noqa: PLR0911 - one line per question
        hub = self._gateway.hub
        match question:
            case AskAbout():
                return self._about()
            case AskPicture():
                return GatewayPicture(hub.snapshot(), self._asleep(), reasons(hub))
            case AskTools():
                return [tool_line(tool) for tool in hub.catalog.tools.values()]
            case AskResources():
                return resource_lines(hub)
            case AskPrompts():
                return prompt_lines(hub)
            case AskFigures():
                return self._figures()
            case AskReload():
                return await self._reload()
            case AskRestart(server):
                return hub.restart(server)
            case _:
                assert_never(question)

    async def _tell(self, stream: SocketStream, server: str | None) -> None:
        with self._gateway.hub.events.subscribe(BACKLOG) as events:
            await _say(stream, _ok(self._about()))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, stream, tasks.cancel_scope)
                async for event in events:
                    told = _told(event)
                    if told is not None and server in {None, told.server}:
                        await _say(stream, _ok(told))

    def _about(self) -> About:
        return About(
            pid=os.getpid(),
            version=VERSION,
            started=self._started,
            files=files_of(self._reloader.loaded) if self._reloader else None,
            url=self._url,
        )

    def _asleep(self) -> tuple[str, ...]:
        return tuple(
            link.name
            for link in self._gateway.hub.links.values()
            if link.config.start == "lazy"
            and link.state is LinkState.DISCONNECTED
            and link.failure is None
        )

    def _figures(self) -> Figures:
        gateway = self._gateway
        metrics = gateway.hub.metrics
        return Figures(
            servers={
                name: ServerFigures(total, metrics.tools(name))
                for name, total in metrics.servers().items()
            },
            clients=tuple(_client(client) for client in gateway.subscriptions.clients),
            sessions=self._sessions(),
            waiting=len(gateway.parked_calls),
            private_links=len(gateway.private),
        )

    async def _reload(self) -> ReloadReport:
        if self._reloader is None:
            raise MultitapError("the gateway has no files to reload")
        report = await self._reloader.reload(self._gateway.hub)
        if isinstance(report, Reloaded):
            return ReloadReport(
                taken=True, plan=report.plan, problems=report.problems, kept=report.kept
            )
        return ReloadReport(taken=False, problems=report.problems)


@asynccontextmanager
async def open_control(control: Control, state: Path) -> AsyncGenerator[None]:
    """Within the block, commands reach the gateway; where there can be no socket, only not.

    Args:
        control: Answers them.
        state: The state directory, by which they find it.
    """
    try:
        listener, path = await _listen(state)
    except OSError as exc:
        logger.warning("commands such as `multitap status` cannot reach the gateway: %s", exc)
        yield
        return
    with ungrouped():
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(control.serve, listener, tasks)
            try:
                yield
            finally:
                control_places.leave(path)
                tasks.cancel_scope.cancel()


async def _listen(state: Path) -> tuple[SocketListener, Path]:
    path = control_places.own_socket(state)
    control_places.sockets(state)  # away with what dead gateways left
    draft = path.with_suffix(".new")
    listener = await anyio.create_unix_listener(draft, mode=0o600, backlog=MOST)
    draft.replace(path)  # whoever finds it is answered, so that one that does not answer is dead
    return listener, path


async def _until_gone(stream: SocketStream, scope: anyio.CancelScope) -> None:
    """Notice that a command is gone; one that goes on talking is treated as if it were."""
    left = _CHATTER
    with contextlib.suppress(*_GONE):
        while left > 0:
            left -= len(await stream.receive())
    scope.cancel()


async def _say(stream: SocketStream, answer: ControlAnswer) -> None:
    with anyio.fail_after(PATIENCE):
        await stream.send(_encode(answer) + b"\n")


async def _hand_over(stream: SocketStream, result: memoryview) -> None:
    """A result of any size, as fast as it is read."""
    for start in range(0, len(result), PIECE):
        with anyio.fail_after(PATIENCE):
            await stream.send(bytes(result[start : start + PIECE]))
        await anyio.lowlevel.checkpoint()


def _ok(value: Any) -> ControlAnswer:
    return ControlAnswer(ok=Raw(_encode(value)))


def _told(event: Event) -> LogRecord | None:
    at = time.time()
    if isinstance(event, CallDone):
        return Happening.of_call(event, at=at)
    return LogRecord.of(event, at=at)


def _client(client: Client) -> ClientFigures:
    return ClientFigures(
        name=_word(client.info.get("title") or client.info.get("name")),
        version=_word(client.info.get("version")),
        protocol_version=client.version,
        profile=client.profile,
        requests=len(client.scopes),
    )


def _word(value: object) -> str:
    return value[:_LONGEST_WORD] if isinstance(value, str) else ""


def _is_the_user(stream: SocketStream) -> bool:
    """Whether who connects is who runs us; where the system does not tell, the folder decides."""
    if sys.platform != "linux":
        return True
    ours = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - anyio's, not Django's
    given = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(given)
    return bool(uid == os.getuid())
