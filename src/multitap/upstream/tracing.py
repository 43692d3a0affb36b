"""Tracing of one server's messages, both ways; free of cost while it is not used."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Literal

import anyio
import msgspec
from msgspec import Raw

from multitap.errors import WireFault
from multitap.telemetry.spans import Spans
from multitap.upstream.session import Session
from multitap.wire.jsonrpc import Params, RpcError, encode
from multitap.wire.request import Request
from multitap.wire.wire import Evidence, Inbound, Wire

MAX_TEXT = 64 * 1024
"""Bytes of a message that are shown; large ones are not decoded for it."""
BACKLOG = 4096
"""Messages that wait for a slow follower; further ones are dropped."""

Redact = Callable[[str], str]


class TracedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message to or from a server."""

    at: float
    """Seconds since the epoch."""
    way: Literal["out", "in"]
    """To the server, or from it."""
    kind: Literal["request", "result", "error", "notification", "lost"]
    """`lost`: no usable answer came."""
    method: str
    number: int | None = None
    """The same for a request and its answer; negative for requests of the server."""
    seconds: float | None = None
    """How long the answer took."""
    size: int = 0
    """Bytes of parameters or result."""
    text: str = ""
    """Parameters, result or error, without secrets, cut if long."""
    is_forwarded: bool = False
    """Whether it went to the replica that runs the server, where it is traced again."""


OnMessage = Callable[[TracedMessage], None]
"""Called with each message; must not block."""


class TracedWire:
    """See `Wire`; reports all messages, without the server's secrets."""

    def __init__(self, wire: Wire, redact: Redact, tell: OnMessage) -> None:
        self.wire = wire
        self.kind = wire.kind
        # attributes, not methods: these stay the same for the life of a wire
        self.closed = wire.closed
        self.establish = wire.establish
        self.serves_only = wire.serves_only
        self.is_stopped = wire.is_stopped
        self._inbound: Inbound | None = None
        self._note = _Notes(redact, tell, is_forwarded=wire.kind == "cluster")
        self._numbers = count(1)

    @property
    def fault(self) -> WireFault | None:
        return self.wire.fault

    def evidence(self) -> Evidence:
        return self.wire.evidence()

    def attach(self, inbound: Inbound) -> None:
        self._inbound = inbound
        self.wire.attach(_TracedInbound(inbound, self._note))

    def release(self) -> Wire:
        """End the tracing; returns the wire."""
        if self._inbound is not None:
            self.wire.attach(self._inbound)
        return self.wire

    async def request(self, request: Request) -> Raw:
        note, number, method = self._note, next(self._numbers), request.method
        note("out", "request", method, _params(request), number)
        on_progress, began = request.on_progress, time.perf_counter()

        def note_progress(done: float, total: float | None, message: str | None) -> None:
            params = {"progress": done, "total": total, "message": message}
            note("in", "notification", "notifications/progress", encode(params), number)
            if on_progress is not None:
                on_progress(done, total, message)

        request.on_progress = note_progress
        try:
            result = await self.wire.request(request)
        except RpcError as exc:
            error = encode({"code": exc.code, "message": str(exc), "data": exc.data})
            note("in", "error", method, error, number, began)
            raise
        except (WireFault, asyncio.CancelledError) as exc:
            why = str(exc) or "cancelled"
            note("in", "lost", method, encode(why), number, began)
            raise
        finally:
            request.on_progress = on_progress
        note("in", "result", method, result, number, began)
        return result

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        self._note("out", "notification", method, encode(params or {}))
        await self.wire.notify(method, params, headers=headers)


def _params(request: Request) -> bytes:
    """The parameters as sent, without the progress token."""
    meta = b",".join(filter(None, (request.stamp, request.meta)))
    meta_member = b'"_meta":{%b}' % meta if meta else b""
    return b"{%b}" % b",".join(filter(None, (request.params, meta_member)))


class _TracedInbound:
    """See `Inbound`."""

    def __init__(self, inbound: Inbound, note: "_Notes") -> None:
        self._inbound = inbound
        self._note = note
        # negative, so that the server's requests are not confused with ours
        self._numbers = count(-1, -1)
        self.on_unaddressed = inbound.on_unaddressed

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        self._note("in", "notification", method, params)
        self._inbound.notification(method, params, call)

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        number, began = next(self._numbers), time.perf_counter()
        self._note("in", "request", method, params, number)
        try:
            result = await self._inbound.request(method, params, call)
        except RpcError as exc:
            error = encode({"code": exc.code, "message": str(exc)})
            self._note("out", "error", method, error, number, began)
            raise
        self._note("out", "result", method, encode(result), number, began)
        return result


class _Notes:
    """Makes `TracedMessage`s."""

    def __init__(self, redact: Redact, tell: OnMessage, *, is_forwarded: bool) -> None:
        self._redact = redact
        self._tell = tell
        self._is_forwarded = is_forwarded

    def __call__(  # noqa: PLR0917 - one line for each message is read best
        self,
        way: Literal["out", "in"],
        kind: Literal["request", "result", "error", "notification", "lost"],
        method: str,
        data: bytes | Raw,
        number: int | None = None,
        began: float | None = None,
    ) -> None:
        # cut before it is decoded: a result may have many megabytes
        text = bytes(memoryview(data)[:MAX_TEXT]).decode(errors="replace")
        text = self._redact(text if len(data) <= MAX_TEXT else f"{text}…")
        seconds = None if began is None else time.perf_counter() - began
        at, size = time.time(), len(data)
        self._tell(
            TracedMessage(at, way, kind, method, number, seconds, size, text, self._is_forwarded)
        )


class Tracing:
    """The followers of one server, and its sessions, whichever links they belong to.

    A followed session uses a traced wire, and gets its own one back when the last follower leaves.

    Args:
        spans: Records spans of the messages; None if traces are off.
    """

    def __init__(self, spans: Spans | None = None) -> None:
        self.spans = spans
        self._followers: list[OnMessage] = []
        self._sessions: dict[Session, Redact] = {}

    @contextmanager
    def follow(self, on_message: OnMessage) -> Generator[None]:
        """Call `on_message` with each message to and from the server, while entered."""
        self._followers.append(on_message)
        self._adapt()
        try:
            yield
        finally:
            self._followers.remove(on_message)
            self._adapt()

    def through(self, wire: Wire, redact: Redact) -> Wire:
        """The wire to use: a traced one while there are followers, else the same."""
        return TracedWire(wire, redact, self._tell) if self._followers else wire

    @contextmanager
    def during(self, session: Session, redact: Redact) -> Generator[None]:
        """Let a session be followed, while entered."""
        self._sessions[session] = redact
        self._adapt()
        try:
            yield
        finally:
            del self._sessions[session]

    def _adapt(self) -> None:
        for session, redact in self._sessions.items():
            wire = session.wire
            if isinstance(wire, TracedWire):
                if not self._followers:
                    session.travel(wire.release())
            elif self._followers:
                traced = TracedWire(wire, redact, self._tell)
                traced.attach(session.inbound)
                session.travel(traced)

    def _tell(self, message: TracedMessage) -> None:
        for follower in tuple(self._followers):
            follower(message)


@contextmanager
def follow_messages(tracing: Tracing) -> Generator[AsyncIterator[TracedMessage]]:
    """Iterate over the messages as they pass, while entered; a slow reader misses some."""
    send, receive = anyio.create_memory_object_stream[TracedMessage](BACKLOG)

    def tell(message: TracedMessage) -> None:
        with suppress(anyio.WouldBlock, anyio.BrokenResourceError):
            send.send_nowait(message)

    with send, receive, tracing.follow(tell):
        yield receive
