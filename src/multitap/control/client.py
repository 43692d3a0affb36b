"""Asks a running gateway over its local socket; commands without a loop of their own can wait."""

import asyncio
import re
from asyncio import StreamReader
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from multitap.control.messages import MAX_BODY, ControlFailure, ProgressStep, ServerQuestion
from multitap.control.methods import NOBODY, ActionUser, Control, Method
from multitap.control.places import prove
from multitap.errors import MultitapError

PATIENCE = 40.0
"""Seconds for an answer: more than a gateway takes, so that it can say why it has none."""
FIRST = 10.0
"""Seconds for a gateway to say which one it is: a command that takes a busy one for dead starts all
of its servers again."""
MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of an answer: more than the largest result that a server may send."""

_WITHOUT = "use `--no-live` if the command has it; `multitap serve --http 3000` starts a gateway"
_BUFFER = 1024 * 1024  # bytes that may wait to be read
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_T = TypeVar("_T")


class ControlClient(Control):
    """Asks one gateway; each request has its own connection, so none waits for another."""

    def __init__(
        self, path: Path, name: str = "the gateway", *, patience: float = PATIENCE
    ) -> None:
        self._path = path
        self._name = name
        self._patience = patience

    def send(self, method: Method, arguments: dict[str, Any]) -> Any:
        if method.is_stream:
            return self._follow(method, arguments)
        if method.takes_person:
            return self._act(method, arguments.pop("person", NOBODY), arguments)
        return self._ask(method, arguments)

    async def _ask(self, method: Method, arguments: dict[str, Any]) -> Any:
        async with self._request(method, arguments) as response:
            return _decode(await response.body(), method.answer)

    async def _act(self, method: Method, person: ActionUser, arguments: dict[str, Any]) -> Any:
        """Run an action; a cancellation cancels it at the gateway, too."""
        action = ""
        sent = {**arguments, "person": person.can_answer}
        async with self._request(method, sent) as response:
            async for kind, data in response.events():
                match kind:
                    case b"begun":
                        action = _decode(data, str)
                    case b"progress":
                        person.on_progress(_decode(data, ProgressStep))
                    case b"question":
                        question = _decode(data, ServerQuestion)
                        reply = await person.answer(question)
                        await self.answer(action, question.number, reply.result, reply.error)
                    case b"failure":
                        raise _decode(data, ControlFailure).exception()
                    case b"answer":
                        return _decode(data, method.answer)
                    case _:
                        pass  # of a newer version
        raise _stopped(self._name)

    @asynccontextmanager
    async def _follow(
        self, method: Method, arguments: dict[str, Any]
    ) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self._request(method, arguments) as response:
            yield self._items(response, method)

    async def _items(self, response: "_Response", method: Method) -> AsyncGenerator[Any]:
        async for _, data in response.events(forever=True):
            yield _decode(data, method.answer)
        raise _stopped(self._name)

    @asynccontextmanager
    async def _request(
        self, method: Method, arguments: dict[str, Any]
    ) -> AsyncGenerator["_Response"]:
        body = msgspec.json.encode(arguments)
        # checked here to give a hint
        if len(body) > MAX_BODY:
            raise MultitapError(f"a gateway takes at most {MAX_BODY} bytes", hint=_WITHOUT)
        head = (
            b"POST /control/%b HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        ) % (method.name.encode(), prove(self._path), len(body))
        try:
            # not anyio's: if cancelled when data arrives, that raises an error about a future that
            # is already done
            received, sent = await asyncio.open_unix_connection(self._path, limit=_BUFFER)
        except OSError:
            raise _stopped(self._name) from None
        try:
            sent.write(head + body)
            response = _Response(received, self._name, self._patience)
            await response.begin()
            yield response
        finally:
            # the gateway notices, and cancels the request
            sent.close()


def _stopped(name: str) -> MultitapError:
    return MultitapError(f"{name} has stopped", hint=_WITHOUT)


class _Response:
    """A response as it arrives."""

    def __init__(self, received: StreamReader, name: str, patience: float) -> None:
        self._received = received
        self._name = name
        self._patience = patience
        self._length = 0

    async def begin(self) -> None:
        """Read the head.

        Raises:
            MultitapError: The gateway refuses.
        """
        head = await self._read(self._received.readuntil(b"\r\n\r\n"), self._patience)
        length = _LENGTH.search(head)
        self._length = int(length[1]) if length else 0
        if not head.startswith(b"HTTP/1.1 200"):
            failure = await self.body()
            if b"application/json" not in head:  # the server is too busy, or stops
                raise MultitapError(failure.decode(errors="replace"))
            raise _decode(failure, ControlFailure).exception()

    async def body(self) -> bytes:
        if self._length > MAX_ANSWER:
            raise MultitapError(f"the answer of {self._name} is too long")
        return await self._read(self._received.readexactly(self._length), self._patience)

    async def events(self, *, forever: bool = False) -> AsyncGenerator[tuple[bytes, bytes]]:
        """Kind and content of each event.

        Args:
            forever: Whether there may be nothing for any time.
        """
        waiting = bytearray()
        # searched from the end of the last search: large answers come in hundreds of chunks
        searched = 0
        async for chunk in self._chunks(None if forever else self._patience):
            waiting += chunk
            while (end := waiting.find(b"\n\n", searched)) >= 0:
                kind, _, data = bytes(waiting[:end]).partition(b"\ndata: ")
                del waiting[: end + 2]
                searched = 0
                if data:
                    yield kind.removeprefix(b"event: "), data
            searched = max(len(waiting) - 1, 0)
            if searched > MAX_ANSWER:
                raise MultitapError(f"the answer of {self._name} is too long")

    async def _chunks(self, patience: float | None) -> AsyncGenerator[bytes]:
        while True:
            # the time restarts with each chunk: a long result may take long while it arrives
            size = int(await self._read(self._received.readuntil(b"\r\n"), patience), 16)
            chunk = await self._read(self._received.readexactly(size + 2), self._patience)
            if not size:
                return
            yield chunk[:-2]

    async def _read(self, data: Awaitable[bytes], patience: float | None) -> bytes:
        try:
            async with asyncio.timeout(patience):
                return await data
        except TimeoutError:  # an `OSError` too
            raise MultitapError(f"{self._name} does not answer", hint=_WITHOUT) from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            raise _stopped(self._name) from None


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as exc:
        raise MultitapError(
            f"cannot understand the gateway: {exc}",
            hint="it may be another version: restart it",
        ) from None


def wait(answer: Coroutine[Any, Any, _T]) -> _T:
    """The answer, for a program without a loop of its own."""
    with _open_loop() as loop:
        return loop.run_until_complete(answer)


@contextmanager
def follow(feed: AbstractAsyncContextManager[AsyncIterator[_T]]) -> Generator["Follower[_T]"]:
    """While entered, receive the items of a stream without a loop of its own."""
    with _open_loop() as loop:
        items = loop.run_until_complete(feed.__aenter__())
        try:
            yield Follower(loop, items)
        finally:
            loop.run_until_complete(feed.__aexit__(None, None, None))


class Follower(Generic[_T]):
    """The items of a stream, as they come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, items: AsyncIterator[_T]) -> None:
        self._loop = loop
        self._items = items
        self._next: asyncio.Task[_T] | None = None
        self.ended = False
        """Whether the gateway has stopped."""

    def within(self, seconds: float) -> Generator[_T]:
        """The items of the next `seconds`."""
        until = self._loop.time() + seconds
        while not self.ended and (left := until - self._loop.time()) > 0:
            # kept after a timeout: to cancel it would end the stream
            task = self._next = self._next or self._loop.create_task(_item(self._items))
            self._loop.run_until_complete(asyncio.wait([task], timeout=left))
            if not task.done():
                return
            self._next = None
            try:
                yield task.result()
            except MultitapError:
                self.ended = True


async def _item(items: AsyncIterator[_T]) -> _T:
    return await anext(items)


@contextmanager
def _open_loop() -> Generator[asyncio.AbstractEventLoop]:
    # not `asyncio.run`: its Ctrl-C only cancels, which a prompt that blocks would not notice
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        if rest:
            loop.run_until_complete(asyncio.wait(rest))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
