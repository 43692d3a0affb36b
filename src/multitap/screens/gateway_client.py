"""Talks to a gateway's control socket without blocking the screen."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from multitap.errors import MultitapError
from multitap.gateway.fronts.control_answers import content, decode_answer
from multitap.gateway.fronts.control_messages import (
    AskPulses,
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
from multitap.gateway.fronts.control_overview import Pulse

PATIENCE = 40.0
"""Seconds for an answer: a reload may take a while."""
MAX_ANSWER = 256 * 1024 * 1024  # bytes; the largest result that a server may send

OnStep = Callable[[ProgressStep], None]
OnQuestion = Callable[[ServerQuestion], Awaitable[CommandReply]]
_Said = TypeVar("_Said")
_GONE = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError)


class GatewayClient:
    """Asks one gateway; each question has a connection of its own, so none waits for another."""

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
            on_step: Called with each step of progress.
            on_question: Answers what a server asks in the meantime.

        Raises:
            MultitapError: It failed, or the gateway is gone.
        """
        async with self._asking(action) as (sent, received):
            answer = await _last(sent, received, on_step, on_question)
            delivery = content(answer, Delivery)
            # it would have to be held in memory as a whole to be shown
            if delivery.size > MAX_ANSWER:
                raise MultitapError("the result is too long to be shown")
            async with asyncio.timeout(PATIENCE):
                return delivery, await received.readexactly(delivery.size)

    async def tool(self, name: str) -> ToolLine:
        """A tool, once its server is up.

        Raises:
            MultitapError: There is none of that name, or the gateway is gone.
        """
        async with self._asking(AskTool(name)) as (sent, received):
            return content(await _last(sent, received), ToolLine)

    async def pulses(self, seen: int, *, most: int, every: float) -> AsyncGenerator[Pulse]:
        """How far the gateway has come, whenever there is anything new, until it is gone.

        Args:
            seen: The calls that are known already.
            most: Calls in one of them.
            every: Seconds between two of them.

        Raises:
            MultitapError: The gateway is gone.
        """
        async with self._asking(AskPulses(seen, most, every)) as (_, received):
            while True:
                yield content(await _line(received), Pulse)

    @asynccontextmanager
    async def _asking(
        self, question: Question
    ) -> AsyncGenerator[tuple[StreamWriter, StreamReader]]:
        try:
            # not anyio's: cancelled at the moment when something arrives, that one complains of a
            # future that is done already
            received, sent = await asyncio.open_unix_connection(self._path, limit=MAX_ANSWER)
            try:
                await _send(sent, question)
                yield sent, received
            finally:
                # the gateway notices, and cancels what it does for us
                sent.close()
        except TimeoutError:  # an `OSError` too
            raise MultitapError("the gateway does not answer") from None
        except _GONE:
            raise MultitapError(
                "the gateway is gone", hint="`multitap serve --http 3000` starts one"
            ) from None


async def _send(sent: StreamWriter, line: object) -> None:
    sent.write(msgspec.json.encode(line) + b"\n")
    async with asyncio.timeout(PATIENCE):
        await sent.drain()


async def _line(received: StreamReader) -> ControlAnswer:
    async with asyncio.timeout(PATIENCE):
        return decode_answer(await received.readuntil(b"\n"), ControlAnswer)


async def _last(
    sent: StreamWriter,
    received: StreamReader,
    on_step: OnStep = lambda _: None,
    on_question: OnQuestion | None = None,
) -> ControlAnswer:
    """The last line of an answer, those before it taken care of."""
    while (answer := await _line(received)).more:
        if answer.question is not None and on_question is not None:
            await _send(sent, await on_question(answer.question))
        # null only shows that the connection is alive
        elif bytes(answer.ok) != b"null":
            on_step(decode_answer(answer.ok, ProgressStep))
    return answer
