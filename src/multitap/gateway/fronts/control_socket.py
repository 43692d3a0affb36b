"""The local socket through which commands talk to a running gateway."""

import asyncio
import contextlib
import hmac
import logging
import math
import os
import socket
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Raw

from multitap.errors import MultitapError, UnknownName, ungrouped
from multitap.gateway.fronts import control_actions, control_places, control_secret
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.control_actions import CALM, CommandProgress
from multitap.gateway.fronts.control_overview import Pulse
from multitap.gateway.fronts.control_service import ControlService, ok
from multitap.wire.jsonrpc.envelope import UNPARSABLE

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds for a command to send its question, and to read a line of the answer."""
MOST = 32
"""Commands at the same time; further ones are closed without an answer."""
MOST_ACTIONS = 24
"""Commands among them that may wait for servers, so that others still get an answer."""
PIECE = 256 * 1024
"""Bytes of a result that are written in one turn of the loop."""

SHORTEST = 0.05
"""The least seconds between two pulses, whatever a screen asks for."""
LOOK = 1.0
"""Seconds between two pulses with an overview."""

_PAUSE = 1.0  # seconds; without descriptors, accepting fails again at once
_CHATTER = 64 * 1024  # bytes read from a command that should send nothing more
_GONE = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    TimeoutError,
)
_CREDENTIALS = struct.Struct("3i")
_UNPROVEN = protocol.ControlAnswer(
    error="this gateway answers only programs that know the secret of its user",
    hint="confined servers may not use it; commands need the gateway's HOME and XDG_STATE_HOME",
    kind="denied",
)

_parse = msgspec.json.Decoder(protocol.AnyQuestion).decode
_parse_reply = msgspec.json.Decoder(protocol.CommandReply).decode
_encode = msgspec.json.Encoder().encode


class ControlSocket:
    """Carries the questions of commands to the control, and its answers back.

    Args:
        control: Answers them.
        path: Where it listens.
    """

    def __init__(self, control: ControlService, path: Path) -> None:
        self._control = control
        self._path = path
        self._proof = control_secret.prove(path)
        self._meetings = 0
        self._actions = 0
        self._turn = anyio.Lock()

    async def serve(self, listener: SocketListener, tasks: TaskGroup) -> None:
        """Answer all connections until cancelled."""
        while True:
            try:
                await listener.serve(self._meet, tasks)
            except anyio.BrokenResourceError as exc:  # for example, no descriptor is left
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
        except Exception:  # boundary: a failed command must not stop the others
            logger.exception("a command could not be answered")
        finally:
            self._meetings -= 1

    async def _converse(self, stream: SocketStream) -> None:
        try:
            with anyio.fail_after(PATIENCE):
                received = BufferedByteReceiveStream(stream)
                if not await self._is_proven(received):
                    await _say(stream, _UNPROVEN)
                    return
                question = _parse(await received.receive_until(b"\n", protocol.MAX_QUESTION))
        except anyio.DelimiterNotFound:
            await _say(
                stream,
                protocol.ControlAnswer(
                    error=f"a question has at most {protocol.MAX_QUESTION} bytes"
                ),
            )
            return
        except UNPARSABLE as exc:
            await _say(stream, protocol.ControlAnswer(error=f"unknown question: {exc}"))
            return
        async with self._turn:
            # encoding a long list takes a while: one answer per turn of the loop, however
            # many ask at once
            await anyio.lowlevel.checkpoint()
        if isinstance(question, protocol.AskEvents | protocol.AskTrace):
            try:
                await self._tell(stream, self._control.follow(question))
            except UnknownName as exc:
                await _say(stream, control_actions.refusal(exc))
        elif isinstance(question, protocol.AskPulses):
            await self._beat(stream, question)
        elif isinstance(question, protocol.GatewayAction):
            await self._run(stream, question)
        else:
            await _say(stream, await self._control.answer(question))

    async def _is_proven(self, received: BufferedByteReceiveStream) -> bool:
        """Whether a client knows the secret, which no confined server can read."""
        try:
            proof = await received.receive_until(b"\n", control_secret.PROOF + 1)
        except anyio.DelimiterNotFound:
            return False
        if hmac.compare_digest(proof, self._proof):
            return True
        # the secret is new if somebody has removed the old one
        with contextlib.suppress(MultitapError):
            self._proof = control_secret.prove(self._path)
        return hmac.compare_digest(proof, self._proof)

    async def _run(self, stream: SocketStream, action: protocol.GatewayAction) -> None:
        """Run an action until it is done or the command is gone."""
        if self._actions >= MOST_ACTIONS:
            words = f"{MOST_ACTIONS} commands are already waiting for servers"
            await _say(stream, protocol.ControlAnswer(error=words, kind="unavailable"))
            return
        self._actions += 1
        try:
            await self._do(stream, action)
        finally:
            self._actions -= 1

    async def _do(self, stream: SocketStream, action: protocol.GatewayAction) -> None:
        progress = CommandProgress()
        ended: list[tuple[protocol.ControlAnswer, bytes | Raw]] = []

        async def work() -> None:
            ended.append(await control_actions.run(self._control.gateway, action, progress))

        async with anyio.create_task_group() as tasks:
            # beside the work: a command that leaves cancels its action
            tasks.start_soon(_hear, stream, tasks.cancel_scope, progress)
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

    async def _beat(self, stream: SocketStream, wanted: protocol.AskPulses) -> None:
        """Send pulses until the command is gone.

        Nothing is read meanwhile: a lost client is noticed when the next line is sent.
        """
        clock = asyncio.get_running_loop().time
        seen, told, looked = wanted.seen, (-1, -1, -1), -math.inf
        pause = max(wanted.every, SHORTEST)
        # one scope whose deadline moves: a scope for each line would cost more than the line
        with anyio.CancelScope() as scope:
            while True:
                overview = None
                if clock() - looked >= LOOK:
                    scope.deadline = math.inf  # other workers may have to be asked
                    overview, looked = await self._control.overview(), clock()
                    scope.deadline = looked + PATIENCE
                pulse: Pulse = await self._control.ask_all(protocol.AskPulse(seen, wanted.most))
                if overview is not None:
                    pulse = msgspec.structs.replace(pulse, overview=overview)
                new = (pulse.made, pulse.in_flight, pulse.revision)
                if new != told or overview is not None:
                    await stream.send(_encode(ok(pulse)) + b"\n")
                    seen, told = pulse.made, new
                await asyncio.sleep(pause)

    async def _tell(
        self, stream: SocketStream, told_of: AbstractAsyncContextManager[AsyncIterator[Any]]
    ) -> None:
        async with told_of as activities:
            await _say(stream, ok(self._control.about()))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, stream, tasks.cancel_scope)
                async for told in activities:
                    await _say(stream, ok(told))


@asynccontextmanager
async def open_control(control: ControlService, state: Path) -> AsyncGenerator[None]:
    """Within the block, commands reach the gateway, unless the socket cannot be created.

    Args:
        control: Answers them.
        state: The state directory, where commands look for the socket.
    """
    try:
        path = control_places.own_socket(state)
        plug = ControlSocket(control, path)
        control_places.sockets(state)  # remove the sockets of dead gateways
        listener = await _listen(path)
    except (OSError, MultitapError) as exc:
        logger.warning("commands such as `multitap status` cannot reach the gateway: %s", exc)
        yield
        return
    with ungrouped():
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(plug.serve, listener, tasks)
            try:
                yield
            finally:
                # before it stops answering: a socket that exists answers
                control_places.leave(path)
                tasks.cancel_scope.cancel()


async def _listen(path: Path) -> SocketListener:
    draft = path.with_suffix(".new")
    listener = await anyio.create_unix_listener(draft, mode=0o600, backlog=MOST)
    draft.replace(path)  # a socket that exists answers, so one that does not is dead
    return listener


async def _until_gone(stream: SocketStream, scope: anyio.CancelScope) -> None:
    """Cancel the scope once a command is gone, or sends anything more."""
    left = _CHATTER
    with contextlib.suppress(*_GONE):
        while left > 0:
            left -= len(await stream.receive())
    scope.cancel()


async def _hear(stream: SocketStream, scope: anyio.CancelScope, progress: CommandProgress) -> None:
    """Read answers to servers' questions until the command is gone, or sends anything else."""
    lines = BufferedByteReceiveStream(stream)
    with contextlib.suppress(anyio.DelimiterNotFound, *UNPARSABLE, *_GONE):
        while progress.questions.on_reply(
            _parse_reply(await lines.receive_until(b"\n", protocol.MAX_QUESTION))
        ):
            continue
    scope.cancel()


async def _say(stream: SocketStream, answer: protocol.ControlAnswer) -> None:
    with anyio.fail_after(PATIENCE):
        await stream.send(_encode(answer) + b"\n")


async def _hand_over(stream: SocketStream, result: memoryview) -> None:
    """Write a result of any size, as fast as it is read."""
    for start in range(0, len(result), PIECE):
        with anyio.fail_after(PATIENCE):
            await stream.send(bytes(result[start : start + PIECE]))
        await anyio.lowlevel.checkpoint()


def _is_the_user(stream: SocketStream) -> bool:
    """Whether the peer is our own user; if the system cannot tell, the folder protects us."""
    if sys.platform != "linux":
        return True
    ours = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - anyio's, not Django's
    given = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(given)
    return bool(uid == os.getuid())
