"""Talks to a gateway's control socket without blocking the screen."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from multitap.errors import MultitapError
from multitap.gateway.fronts.control_answers import content, decode_answer
from multitap.gateway.fronts.control_messages import (
    About,
    AskEvents,
    AskTool,
    CommandReply,
    ControlAnswer,
    Delivery,
    GatewayAction,
    ProgressStep,
    Question,
    ServerQuestion,
    ToolLine,
)
from multitap.store.log_records import Happening

PATIENCE = 40.0
"""Seconds for an answer: a reload may take a while."""
MAX_ANSWER = 256 * 1024 * 1024

OnStep = Callable[[ProgressStep], None]
OnQuestion = Callable[[ServerQuestion], Awaitable[CommandReply]]
_Said = TypeVar("_Said")
_GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, OSError)


class GatewayClient:
    """Asks one gateway; each question has a connection of its own, so none waits for another.

    Args:
        path: Its control socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, question: Question, kind: type[_Said]) -> _Said:
        """The answer to a question.

        Raises:
            MultitapError: The gateway refuses, or is gone.
        """
        async with self._asking(question) as (_, received):
            return content(await _line(received), kind)

    async def act(
        self,
        action: GatewayAction,
        on_step: OnStep = lambda _: None,
        on_question: OnQuestion | None = None,
    ) -> tuple[Delivery, bytes]:
        """Have the gateway call, read or fill in something; being cancelled cancels it there.

        Args:
            action: What.
            on_step: Told of progress.
            on_question: Answers what a server asks in the meantime.

        Raises:
            MultitapError: It failed, or the gateway is gone.
        """
        async with self._asking(action) as (stream, received):
            answer = await _last(stream, received, on_step, on_question)
            delivery = content(answer, Delivery)
            if delivery.size > MAX_ANSWER:
                raise MultitapError("the result is too long to be shown")
            with anyio.fail_after(PATIENCE):
                return delivery, await received.receive_exactly(delivery.size)

    async def tool(self, name: str) -> ToolLine:
        """A tool, once its server is up.

        Raises:
            MultitapError: There is none of that name, or the gateway is gone.
        """
        async with self._asking(AskTool(name)) as (stream, received):
            return content(await _last(stream, received), ToolLine)

    async def happenings(self, server: str | None = None) -> AsyncIterator[Happening]:
        """What happens from now on, calls included, until the gateway is gone."""
        async with self._asking(AskEvents(server)) as (_, received):
            content(await _line(received), About)
            while True:
                data = await received.receive_until(b"\n", MAX_ANSWER)
                yield content(decode_answer(data, ControlAnswer), Happening)

    @asynccontextmanager
    async def _asking(
        self, question: Question
    ) -> AsyncGenerator[tuple[SocketStream, BufferedByteReceiveStream]]:
        try:
            async with await anyio.connect_unix(self._path) as stream:
                await stream.send(msgspec.json.encode(question) + b"\n")
                yield stream, BufferedByteReceiveStream(stream)
        except TimeoutError:  # an `OSError` too
            raise MultitapError("the gateway does not answer") from None
        except _GONE:
            raise MultitapError(
                "the gateway is gone", hint="`multitap serve --http 3000` starts one"
            ) from None


async def _line(received: BufferedByteReceiveStream) -> ControlAnswer:
    with anyio.fail_after(PATIENCE):
        return decode_answer(await received.receive_until(b"\n", MAX_ANSWER), ControlAnswer)


async def _last(
    stream: SocketStream,
    received: BufferedByteReceiveStream,
    on_step: OnStep = lambda _: None,
    on_question: OnQuestion | None = None,
) -> ControlAnswer:
    """The last line of an answer, those before it taken care of."""
    while (answer := await _line(received)).more:
        if answer.question is not None and on_question is not None:
            reply = await on_question(answer.question)
            await stream.send(msgspec.json.encode(reply) + b"\n")
        elif bytes(answer.ok) != b"null":
            on_step(decode_answer(answer.ok, ProgressStep))
    return answer
