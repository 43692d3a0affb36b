"""What no client can answer, kept until the person who runs the gateway does."""

import asyncio
import time
from collections.abc import Mapping
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Raw

from multitap.upstream.on_behalf_of import client_of
from multitap.wire.jsonrpc.vocabulary import INVALID_REQUEST
from multitap.wire.wire import SEVERAL, RpcError

ATTENTION = 5.0
"""Seconds after a look at the open questions for which a person counts as present: screens look
every second, and may miss a few."""
PATIENCE = 300.0
"""Seconds for an answer; then it is as if nobody had been there."""
MOST = 64
"""Questions that are open at a time; nobody is asked further ones."""
LARGEST = 1024 * 1024
"""Bytes of one; nobody reads more than that, and every screen is sent it again and again."""

QuestionKind = Literal["policy", "server"]
"""A call needs somebody's word; or a server asks something that its client cannot answer."""
_encode = msgspec.json.Encoder().encode


class OpenQuestion(msgspec.Struct, frozen=True):
    """Something that waits for a person's answer."""

    number: int
    kind: QuestionKind
    server: str
    method: str
    """`elicitation/create` or `sampling/createMessage`; a policy question is a form, too."""
    params: Raw
    client: str = ""
    """For whom the call is made, in words."""
    asked: float = 0.0
    """When, in seconds since the epoch."""


class PersonQuestions:
    """Asks the person at a screen, as long as there is one.

    Nobody waits for a screen that is not open: a screen looks at the questions every second or so,
    and without such a look there is no person to ask.

    Args:
        first: The number of the first question; those of several processes must differ.
    """

    def __init__(self, first: int = 1) -> None:
        self._numbers = count(first)
        self._open: dict[int, tuple[OpenQuestion, asyncio.Future[Raw]]] = {}
        self._looked = float("-inf")

    @property
    def is_watched(self) -> bool:
        """Whether a person would see a question."""
        return time.monotonic() - self._looked < ATTENTION

    def look(self) -> list[OpenQuestion]:
        """What is open, oldest first; a person is there from now on."""
        self._looked = time.monotonic()
        return [one for one, _ in self._open.values()]

    def reply(self, number: int, result: Raw, error: str | None = None) -> bool:
        """Take a person's answer; whether the question was still open."""
        _, answer = self._open.get(number, (None, None))
        if answer is None or answer.done():
            return False
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(RpcError(INVALID_REQUEST, error))
        return True

    async def ask(
        self,
        kind: QuestionKind,
        server: str,
        method: str,
        params: Mapping[str, Any],
        call: object | None,
    ) -> Raw | None:
        """The person's answer; None if nobody is there to be asked.

        Args:
            kind: What the question is about.
            server: Who asks, or whose tool is to be called.
            method: The method that the answer belongs to.
            params: Its parameters.
            call: The context of the call.

        Raises:
            RpcError: They refuse.
        """
        # nobody is asked a question that may belong to any of several clients
        if not self.is_watched or call is SEVERAL or len(self._open) >= MOST:
            return None
        told = _encode(params)
        if len(told) > LARGEST:
            return None
        client = client_of(call)
        number = next(self._numbers)
        asked = OpenQuestion(
            number,
            kind,
            server,
            method,
            Raw(told),
            "" if client is None else client.caller,
            time.time(),
        )
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._open[number] = asked, answer
        try:
            return await self._wait(answer)
        finally:
            del self._open[number]

    async def _wait(self, answer: "asyncio.Future[Raw]") -> Raw | None:
        """The answer; None if the person left, or does not answer for too long."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and (self.is_watched or answer.done()):
            # in steps: a person who closes the screen says nothing
            done, _ = await asyncio.wait((answer,), timeout=1.0)
            if done:
                return answer.result()
        return None
