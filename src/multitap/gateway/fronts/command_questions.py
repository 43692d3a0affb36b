"""Forwards what servers ask during a command's call to the person who typed it."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from multitap.gateway.fronts.control_messages import CommandReply, ServerQuestion
from multitap.wire.jsonrpc.vocabulary import INVALID_REQUEST, METHOD_NOT_FOUND
from multitap.wire.wire import RpcError

CAPABILITIES = Raw(b'{"elicitation":{"form":{},"url":{}},"sampling":{}}')
"""The capabilities of a person at a terminal."""
NONE = Raw(b"{}")
COMMAND_LINE = "command line"

_encode = msgspec.json.Encoder().encode


class CommandQuestions:
    """The open questions of one call.

    Args:
        on_question: Called when there is one to send.
    """

    def __init__(self, on_question: Callable[[], None]) -> None:
        self._on_question = on_question
        self._numbers = count(1)
        self._unsent: deque[ServerQuestion] = deque()
        self._open: dict[int, asyncio.Future[CommandReply]] = {}

    async def ask(self, server: str, method: str, params: Mapping[str, Any]) -> Raw:
        """The person's answer.

        Raises:
            RpcError: The person refuses, or has left.
        """
        number = next(self._numbers)
        reply: asyncio.Future[CommandReply] = asyncio.get_running_loop().create_future()
        # before it is announced: the answer must find it
        self._open[number] = reply
        self._unsent.append(ServerQuestion(number, server, method, Raw(_encode(params))))
        self._on_question()
        try:
            said = await reply
        finally:
            self._open.pop(number, None)
        if said.error is not None:
            raise RpcError(INVALID_REQUEST, said.error)
        return said.result

    def close(self) -> None:
        """Fail the open questions, for which a login may wait in its own task."""
        for reply in self._open.values():
            if not reply.done():
                reply.set_exception(RpcError(INVALID_REQUEST, "the person left"))

    def next(self) -> ServerQuestion | None:
        """The next one to send, if there is one."""
        return self._unsent.popleft() if self._unsent else None

    def on_reply(self, reply: CommandReply) -> bool:
        """Deliver an answer; False if no question has this number."""
        # removed: a second answer to the same question is ignored
        waiting = self._open.pop(reply.number, None)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(reply)
        return True


class CommandUser:
    """The user of a command; an `OnBehalfOf` that can be asked if a person is there.

    Args:
        server: The server that is called, to be named in questions.
        questions: The open questions; None if nobody can be asked.
        caller: A label for the user's terminal.
    """

    principal = ""
    holder = ""
    log_level = None
    drives_rounds = False

    def __init__(
        self,
        server: str = "",
        questions: CommandQuestions | None = None,
        *,
        caller: str = COMMAND_LINE,
    ) -> None:
        self.caller = caller
        self._server = server
        self._questions = questions
        self.capabilities = NONE if questions is None else CAPABILITIES

    @property
    def owner(self) -> object:
        return self

    @property
    def slot_holder(self) -> object:
        return self

    def on_notification(self, method: str, params: Raw) -> None:
        """Ignore notifications of the call: progress has its own callback."""

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        if self._questions is None:
            raise RpcError(METHOD_NOT_FOUND, "a command line cannot answer questions", None)
        return await self._questions.ask(self._server, method, params)
