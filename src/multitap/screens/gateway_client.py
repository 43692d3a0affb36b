"""Talks to a gateway's control socket without blocking the screen."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from multitap.errors import MultitapError
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.control_answers import content, decode_answer
from multitap.gateway.fronts.control_overview import Pulse
from multitap.gateway.fronts.control_secret import prove

PATIENCE = 40.0
"""Seconds for an answer: a reload may take a while."""
MAX_ANSWER = 256 * 1024 * 1024  # bytes; the largest result that a server may send

OnStep = Callable[[protocol.ProgressStep], None]
OnQuestion = Callable[[protocol.ServerQuestion], Awaitable[protocol.CommandReply]]
_Said = TypeVar("_Said")
_GONE = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError)


class GatewayClient:
    """Asks one gateway; each question has its own connection, so none waits for another."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, question: protocol.Question, kind: type[_Said]) -> _Said:
        """The answer to a question.

        Raises:
            MultitapError: The gateway refuses, or has stopped.
        """
        async with self._asking(question) as (_, received):
            return content(await _line(received), kind)

    async def act(
        self,
        action: protocol.GatewayAction,
        on_step: OnStep = lambda _: None,
        on_question: OnQuestion | None = None,
    ) -> tuple[protocol.Delivery, bytes]:
        """Call a tool, read a resource or fill in a prompt; a cancellation cancels it there, too.

        Args:
            action: The request.
            on_step: Called with each step of progress.
            on_question: Answers questions of the server.

        Raises:
            MultitapError: It failed, or the gateway has stopped.
        """
        async with self._asking(action) as (sent, received):
            answer = await _last(sent, received, on_step, on_question)
            delivery = content(answer, protocol.Delivery)
            # showing it would require all of it in memory
            if delivery.size > MAX_ANSWER:
                raise MultitapError("the result is too long to be shown")
            async with asyncio.timeout(PATIENCE):
                return delivery, await received.readexactly(delivery.size)

    async def tool(self, name: str) -> protocol.ToolLine:
        """A tool, once its server is up.

        Raises:
            MultitapError: There is none of that name, or the gateway has stopped.
        """
        async with self._asking(protocol.AskTool(name)) as (sent, received):
            return content(await _last(sent, received), protocol.ToolLine)

    async def pulses(self, seen: int, *, most: int, every: float) -> AsyncGenerator[Pulse]:
        """A pulse of the gateway whenever there is anything new, until it stops.

        Args:
            seen: The number of known calls.
            most: Calls in one pulse.
            every: Seconds between two pulses.

        Raises:
            MultitapError: The gateway has stopped.
        """
        async with self._asking(protocol.AskPulses(seen, most, every)) as (_, received):
            while True:
                yield content(await _line(received), Pulse)

    @asynccontextmanager
    async def _asking(
        self, question: protocol.Question
    ) -> AsyncGenerator[tuple[StreamWriter, StreamReader]]:
        try:
            # not anyio's: if cancelled when data arrives, that raises an error about a future that
            # is already done
            received, sent = await asyncio.open_unix_connection(self._path, limit=MAX_ANSWER)
            try:
                sent.write(prove(self._path) + b"\n")
                await _send(sent, question)
                yield sent, received
            finally:
                # the gateway notices, and cancels the request
                sent.close()
        except TimeoutError:  # an `OSError` too
            raise MultitapError("the gateway does not answer") from None
        except _GONE:
            raise MultitapError(
                "the gateway has stopped", hint="`multitap serve --http 3000` starts one"
            ) from None


async def _send(sent: StreamWriter, line: object) -> None:
    sent.write(msgspec.json.encode(line) + b"\n")
    async with asyncio.timeout(PATIENCE):
        await sent.drain()


async def _line(received: StreamReader) -> protocol.ControlAnswer:
    async with asyncio.timeout(PATIENCE):
        return decode_answer(await received.readuntil(b"\n"), protocol.ControlAnswer)


async def _last(
    sent: StreamWriter,
    received: StreamReader,
    on_step: OnStep = lambda _: None,
    on_question: OnQuestion | None = None,
) -> protocol.ControlAnswer:
    """The last line of an answer, after handling the lines before it."""
    while (answer := await _line(received)).more:
        if answer.question is not None and on_question is not None:
            await _send(sent, await on_question(answer.question))
        # null only shows that the connection is alive
        elif bytes(answer.ok) != b"null":
            on_step(decode_answer(answer.ok, protocol.ProgressStep))
    return answer
