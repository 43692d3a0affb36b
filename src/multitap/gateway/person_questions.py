"""Questions that no client can answer, kept for the person who runs the gateway."""

import asyncio
import time
from collections.abc import Mapping
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Raw

from multitap.upstream.questions import client_of
from multitap.wire.jsonrpc import INVALID_REQUEST, RpcError
from multitap.wire.wire import SEVERAL

ATTENTION = 5.0
"""Seconds after a look at the open questions for which a person counts as present: screens look
every second, and may miss a few."""
PATIENCE = 300.0
"""Seconds for an answer; after that, the question counts as unanswered."""
MOST = 64
"""Questions that may be open at a time; further ones are not asked."""
LARGEST = 1024 * 1024
"""Bytes of one question, which every screen receives again and again."""

QuestionKind = Literal["policy", "server"]
"""A call needs permission, or a server asks something that its client cannot answer."""
_encode = msgspec.json.Encoder().encode


class OpenQuestion(msgspec.Struct, frozen=True):
    """A question that waits for a person's answer."""

    number: int
    kind: QuestionKind
    server: str
    method: str
    """`elicitation/create` or `sampling/createMessage`; a policy question is a form, too."""
    params: Raw
    client: str = ""
    """The client that the call is made for, as a label."""
    asked: float = 0.0
    """When, in seconds since the epoch."""


class PersonQuestions:
    """Asks the person at a screen, while one is open.

    Screens fetch the open questions about once a second. Without a recent fetch there is no person
    to ask, and no question waits.

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
        """The open questions, oldest first; also notes that a person is present."""
        self._looked = time.monotonic()
        return [open_question for open_question, _ in self._open.values()]

    def reply(self, number: int, result: Raw, error: str | None = None) -> bool:
        """Answer a question; returns whether it was still open."""
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
        """The person's answer; None if no screen is open.

        Raises:
            RpcError: They refuse.
        """
        # not asked: the question may belong to any of several clients
        if not self.is_watched or call is SEVERAL or len(self._open) >= MOST:
            return None
        encoded = _encode(params)
        if len(encoded) > LARGEST:
            return None
        client = client_of(call)
        number = next(self._numbers)
        open_question = OpenQuestion(
            number,
            kind,
            server,
            method,
            Raw(encoded),
            "" if client is None else client.caller,
            time.time(),
        )
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._open[number] = open_question, answer
        try:
            return await self._wait(answer)
        finally:
            del self._open[number]

    async def _wait(self, answer: "asyncio.Future[Raw]") -> Raw | None:
        """The answer; None if the screen was closed, or there is no answer in time."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and (self.is_watched or answer.done()):
            # in steps: a closed screen sends no message
            done, _ = await asyncio.wait((answer,), timeout=1.0)
            if done:
                return answer.result()
        return None
