"""Calls that a person makes on the page: progress, servers' questions, the result."""

import secrets
from collections.abc import Awaitable, Callable

import anyio
import msgspec
from msgspec import Raw

from multitap.errors import ungrouped
from multitap.gateway.fronts import control_actions
from multitap.gateway.fronts.control_actions import CALM, CommandProgress
from multitap.gateway.fronts.control_messages import CommandReply, ControlAnswer, GatewayAction
from multitap.gateway.gateway import Gateway

MOST = 24
"""Concurrent actions of all pages together; further ones are refused at once."""
LARGEST = 16 * 1024 * 1024
"""Bytes of a result that is sent to a page; a browser would stall with more."""

Write = Callable[[bytes], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


class PageReply(msgspec.Struct, frozen=True):
    """A person's answer to a server's question during their call."""

    action: str
    number: int
    result: Raw = Raw(b"null")
    error: str | None = None


class PageActions:
    """Runs calls, reads and prompts for pages."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._running: dict[tuple[str, str], CommandProgress] = {}

    @property
    def is_full(self) -> bool:
        return len(self._running) >= MOST

    def reply(self, who: str, reply: PageReply) -> bool:
        """Accept an answer; False if there is no such question.

        Args:
            who: The token of the browser, which may answer only for its own calls.
            reply: The answer.
        """
        progress = self._running.get((who, reply.action))
        said = CommandReply(reply.number, reply.result, reply.error)
        return progress is not None and progress.questions.on_reply(said)

    async def run(self, who: str, action: GatewayAction, write: Write) -> None:
        """Run an action and send server-sent events, the last of which has the result.

        Args:
            who: The token of the browser.
            action: The action.
            write: Sends to the browser; raises if it has disconnected.
        """
        name, progress = secrets.token_hex(8), CommandProgress("console")
        self._running[who, name] = progress
        ended: list[tuple[ControlAnswer, bytes | Raw]] = []

        async def work() -> None:
            ended.append(await control_actions.run(self._gateway, action, progress))

        try:
            await write(_event(b"begun", _encode(name)))
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(work)
                    while (line := await progress.next()) is not None:
                        await write(_event(b"more", _encode(line)))
                        # a server may report progress a thousand times a second
                        await anyio.sleep(CALM)
            for answer, result in ended:
                await write(_event(b"answer", _answer(answer, result)))
        finally:
            # also if the browser has left: a server that waits needs an answer
            progress.end()
            del self._running[who, name]


def _answer(answer: ControlAnswer, result: bytes | Raw) -> bytes:
    if len(result) > LARGEST:
        words = f"the result has {len(result):,} bytes: too many to be shown on a page"
        return _encode(ControlAnswer(error=words, hint="`multitap call` writes it to a file"))
    if answer.error is not None or not len(result):
        return _encode(answer)
    return _encode({"ok": answer.ok, "result": Raw(result)})


def _event(kind: bytes, data: bytes) -> bytes:
    # line breaks in JSON are only between tokens
    line = data.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: %b\ndata: %b\n\n" % (kind, line)
