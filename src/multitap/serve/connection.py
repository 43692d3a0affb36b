"""One client's HTTP connection: requests in, responses out, and an end to those that misbehave."""

import asyncio
import logging
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from io import BytesIO
from time import perf_counter
from typing import Any

import httptools
from msgspec import Raw

from multitap.pace import MESSAGES, SECONDS
from multitap.serve.access import Denied
from multitap.serve.crowd import READ, Crowd, address_of
from multitap.serve.rota import AT_ONCE
from multitap.serve.visit import Head, Headers, Visit

logger = logging.getLogger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SLICE = 4096
"""Bytes that are parsed at once: a hundred requests, a thousand headers, and no more."""
_STEP = SECONDS / 4
"""Time that one connection takes before the others have a turn."""
_READING = 5e-10
"""Time that it takes to read a byte, before we hear of it."""
_CALM = 0.1
"""Seconds without work left over after which a connection counts as one of the quiet ones."""
_END = b"\r\n\r\n"
_HEADS = 16
"""Heads of requests that a connection knows again: of as many tools, or lengths of bodies."""
_ODD = frozenset({b"connection", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that say more than what a request wants."""
_LIGHT = 8 * 1024
"""Bytes of a request up to which its memory is not counted."""
_DROPPED = 1024 * 1024
"""Bytes that a client may still send, besides the body it spoke of, when it is turned away."""
_BAD_REQUEST, _TIMEOUT, _TOO_LARGE, _HEAD_TOO_LARGE, _FAILED, _BUSY = 400, 408, 413, 431, 500, 503
_LEFT = frozenset({7, 8})
"""Of the states of a TCP connection: it is closed, or the client will say no more."""
_RETRY = ((b"retry-after", b"1"),)


def _collecting(pairs: Headers) -> Callable[[bytes, bytes], None]:
    """Takes headers one by one; called for each of every request, and so as short as can be."""
    add = pairs.append

    def on_header(name: bytes, value: bytes) -> None:
        add((name.lower(), value.strip()))

    return on_header


def _address(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")  # none, if it is gone already
    return address_of(peer[0]) if peer else ""


def _has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether a client hung up from whom we read nothing right now, and so would not hear it."""
    if sys.platform != "linux":
        return False
    plug = transport.get_extra_info("socket")
    return plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT


class ClientConnection(asyncio.BufferedProtocol):
    """One client's connection: its requests are answered one after the other.

    What it sends is parsed in slices and answered in steps, as the rota of its crowd has time.
    Parser and requests refer back to it: `connection_lost` lets go of them, so that its memory is
    free at once.

    Args:
        crowd: All connections.
    """

    __slots__ = (
        "__weakref__", "_address", "_advancing", "_arriving", "_body", "_busy_until", "_crowd",
        "_deaf", "_dismissed", "_droppable", "_expected", "_expects", "_fed", "_heads", "_incoming",
        "_is_paused", "_limits", "_loop", "_overhead", "_parser", "_queue", "_queued", "_readable",
        "_size", "_stuck_since", "_transport", "_unparsed", "_unread", "_unread_answer",
        "_url", "_waiting", "answered", "current", "holder", "on_header", "since", "weight",
    )  # fmt: skip

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._limits = crowd.limits
        self._loop = crowd.loop
        self._arriving: Headers = []
        self.on_header = _collecting(self._arriving)
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._address = self.holder = ""
        self.weight = 0
        self.since = self._loop.time()
        self.answered = 0
        self._begin()

        self._heads: dict[bytes, Head] = {}
        self._unparsed = b""
        self._queue: deque[Visit] = deque()
        self.current: Visit | None = None
        self._queued = 0
        self._advancing = False

        self._waiting = False
        self._is_paused = False
        self._busy_until = 0.0

        self._deaf = False
        self._dismissed = False
        self._droppable = _DROPPED

        self._unread_answer: Visit | None = None
        self._readable: asyncio.Event | None = None
        self._stuck_since: float | None = None
        self._unread = 0

    def _begin(self) -> None:
        """Be ready for the next request."""
        self._url = b""
        self._arriving.clear()
        self._incoming: Head | None = None
        self._body: bytes | BytesIO = b""
        self._size = 0
        self._fed = 0
        self._overhead = 0
        self._expected = 0
        self._expects = False

    @property
    def idle(self) -> bool:
        return self.current is None and not self._queue

    @property
    def arriving(self) -> int:
        kept = self._incoming is not None and self._incoming.keeps_body
        return self._overhead + (self._size if kept else 0)

    @property
    def _reading(self) -> bool:
        """Whether a request has begun to arrive."""
        return bool(self._overhead or self._url or self._incoming)

    @property
    def _full(self) -> bool:
        """Whether enough requests wait for the one before them."""
        return len(self._queue) >= self._limits.queued or self._queued > self._limits.head

    @property
    def _has_work(self) -> bool:
        """Whether anything is left that can be done now."""
        if self._dismissed or self._transport is None:
            return False
        return bool((self._queue and self.current is None) or (self._unparsed and not self._full))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is no subclass
        self._address = self.holder = _address(transport)
        if not self._crowd.enter(self):
            self.shed("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._crowd.leave(self)
        visit, self.current = self.current, None
        self._parser = None
        self._unparsed = b""
        self._unread_answer = None
        self._queue.clear()
        self._heads.clear()
        self._begin()
        if visit is not None:
            if visit.is_counted:
                self._crowd.under_way.give(visit.head.holder)
            visit.abandon()
            visit.light.cancel()
        if self._readable is not None:
            self._readable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where to read to: little, unless it is a part of a body that there is time for."""
        crowd = self._crowd
        if self._expected <= READ or crowd.rota.spent >= AT_ONCE:
            return crowd.room
        return crowd.space[: self._expected + READ]

    def buffer_updated(self, nbytes: int) -> None:
        crowd = self._crowd
        data = crowd.space[:nbytes]
        if self._deaf or self._unparsed or self._busy_until or crowd.rota.spent >= AT_ONCE:
            self._put_off(data)
            return
        started = perf_counter()
        begins = not self._fed and self.current is None
        if nbytes > _SLICE:
            self._unparsed = bytes(self._parse(data, started + _STEP))
        elif not begins or self._queue:
            self._feed(data)
        else:
            text = bytes(data)
            end = text.find(_END) + len(_END)
            head = self._heads.get(text[:end])
            if head is not None and end + head.length == nbytes:
                self.since = self._loop.time()
                self._advancing = True  # or the end of it would look for the next one
                self._answer(Visit(self, head, text[end:], crowd.tasks))
                self._advancing = False
            else:
                self._feed(data)
                self._remember(text, end)
        if self._queue:
            self._advance(started + _STEP)
        if self._fed or self._queue or self._unparsed or self.weight:  # seldom
            if begins:
                self.since = self._loop.time()
            self._settle(busy=True)
        rota = crowd.rota
        rota.spent += perf_counter() - started + nbytes * _READING
        if rota.spent >= AT_ONCE:
            rota.hold()

    def _remember(self, text: bytes, end: int) -> None:
        """Know a head again by its very bytes, if all of its request is here and it is plain."""
        if len(self._queue) != 1 or self._fed or self._deaf:
            return
        head = self._queue[0].head
        if end + head.length == len(text) and head.handler and not head.headers.keys() & _ODD:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[text[:end]] = head

    def _put_off(self, data: memoryview) -> None:
        """Keep for a later turn what arrived, or drop it."""
        now = self._loop.time()
        if self._deaf:
            self._droppable -= len(data)
            if self._droppable < 0:
                self.abort()
                return
        else:
            if not self._fed and self.current is None:
                self.since = now
            self._unparsed = b"".join((self._unparsed, data))
        self._hold(busy=self._deaf or now < self._busy_until)

    def go_on(self) -> bool:
        until = perf_counter() + _STEP
        if self._queue:
            self._advance(until)
        if self._unparsed and not self._full:
            self._unparsed = bytes(self._parse(memoryview(self._unparsed), until))
            self._advance(until)
        now = self._loop.time()
        if self._has_work:
            self._busy_until = now + _CALM
            self._weigh()
            return True
        if now >= self._busy_until:
            self._busy_until = 0.0
        self._waiting = False
        self._rest()
        return False

    def _settle(self, *, busy: bool) -> None:
        """Do the rest later, if there is any; or wait for more."""
        if self._has_work:
            if busy:
                self._busy_until = self._loop.time() + _CALM
            self._hold(busy=busy)
        else:
            self._rest()

    def _hold(self, *, busy: bool) -> None:
        """Read nothing more until it is our turn, and what is there is worked off."""
        self._weigh()
        if self._waiting or self._transport is None:
            return
        self._waiting = True
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()
        self._crowd.rota.join(self, busy=busy)

    def _rest(self) -> None:
        """There is nothing left to do for now but to wait, and to read unless that is too much."""
        self._weigh()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._expects and self.idle and not self._deaf:
            # in the middle of somebody's answer it would be taken for a part of it
            self._expects = False
            transport.write(_CONTINUE)
        if self._unparsed or self._full:
            if not self._is_paused:
                self._is_paused = True
                transport.pause_reading()
        elif self._is_paused and not self._waiting:
            self._is_paused = False
            transport.resume_reading()

    def _weigh(self) -> None:
        weight = self.arriving + self._queued + len(self._unparsed)
        if self.current is not None:
            weight += len(self.current.body)
        if weight > _LIGHT:
            self._crowd.weigh(self, weight)
        elif self.weight:
            self._crowd.weigh(self, 0)

    def _parse(self, data: memoryview, until: float) -> memoryview:
        """Parse slice by slice, until time is up or enough requests wait; what is left."""
        while data and not self._deaf and not self._full:
            size = max(_SLICE, self._expected)  # a body takes no time to parse
            self._feed(data[:size])
            data = data[size:]
            if data and perf_counter() >= until:
                break
        return data[:0] if self._deaf else data

    def _feed(self, data: memoryview) -> None:
        while data and self._parser is not None:
            self._fed += len(data)
            self._overhead += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as exc:
                # whatever other protocol the client would like better, it goes on in this one
                self._parser = httptools.HttpRequestParser(self)
                data = data[exc.args[0] :]
                continue
            except httptools.HttpParserError:
                if not self._deaf:
                    self._refuse(_BAD_REQUEST, "this is no HTTP request")
            break
        if self._fed and not self._deaf:
            self._measure()

    def _measure(self) -> None:
        """Notice what the parser keeps to itself: half a header, the frames around a body."""
        limits = self._limits
        if len(self._arriving) > limits.fields:
            self._refuse(_HEAD_TOO_LARGE, f"a request has at most {limits.fields} header fields")
        elif self._overhead > limits.head:
            self._refuse(_HEAD_TOO_LARGE, f"the head of a request has at most {limits.head} bytes")
        elif self._fed > limits.head + 2 * limits.body:
            self._refuse(_TOO_LARGE, "the request is too long")

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        parser, limits = self._parser, self._limits
        if parser is None:
            return
        pairs = self._arriving.copy()
        head = Head(parser.get_method(), self._url, pairs, holder=self._address)
        headers = head.headers
        if b"connection" in headers or not parser.should_keep_alive():  # or it is certain
            head.speaks_chunks = parser.get_http_version() == "1.1"
        self._incoming = head
        if len(pairs) > limits.fields:
            words = f"a request has at most {limits.fields} header fields"
            self._stop(Denied(_HEAD_TOO_LARGE, words))
        try:
            denied = self._crowd.app.admit(head)
        except Exception:  # boundary: one request is its own problem
            logger.exception("a request could not be decided on")
            denied = Denied(_FAILED, "Internal Server Error")
        if denied is not None:
            self._stop(denied)
        if head.holder != self.holder:
            self._crowd.weigh(self, 0)
            self.holder = head.holder
        length = int(headers.get(b"content-length", b"0"))
        if length > limits.body:
            self._stop(Denied(_TOO_LARGE, f"a request has at most {limits.body} bytes"))
        if (length or b"transfer-encoding" in headers) and parser.should_upgrade():
            # the parser would take its body for the next request
            self._stop(Denied(_BAD_REQUEST, "no other protocol is spoken here"))
        self._expected = head.length = length
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self._expects = head.speaks_chunks

    def on_body(self, body: bytes) -> None:
        first = not self._size
        self._overhead = 0
        self._expects = False
        self._size += len(body)
        if self._expected:
            self._expected -= len(body)
        if self._size > self._limits.body:
            self._stop(Denied(_TOO_LARGE, f"a request has at most {self._limits.body} bytes"))
        if self._incoming is None or not self._incoming.keeps_body:
            return
        if first:
            self._body = body
        elif isinstance(self._body, BytesIO):
            self._body.write(body)
        else:
            whole = BytesIO()
            whole.write(self._body)
            whole.write(body)
            self._body = whole

    def on_message_complete(self) -> None:
        head, parser = self._incoming, self._parser
        if head is None or parser is None:
            return
        body = self._body
        whole = body.getvalue() if isinstance(body, BytesIO) else body
        visit = Visit(self, head, whole, self._crowd.tasks)
        visit.keep_alive = parser.should_keep_alive()
        self._deaf = not visit.keep_alive
        self._begin()
        self._queue.append(visit)
        self._queued += len(visit.body)

    def _stop(self, denied: Denied) -> None:
        """Turn the request away that arrives, from within the parser.

        Raises:
            HttpParserError: Always; it stops there.
        """
        self._turn_away(denied)
        raise httptools.HttpParserError

    def _refuse(self, status: int, words: str) -> None:
        self._turn_away(Denied(status, words))

    def _turn_away(self, denied: Denied) -> None:
        """Answer the request that arrives with a refusal, and hear nothing more.

        Requests before it are answered first. What it has sent so far is forgotten.
        """
        head = self._incoming or Head(b"", b"", [], holder=self._address)
        visit = Visit(self, head, b"", self._crowd.tasks)
        visit.refusal = denied
        expected = min(self._expected, self._limits.body)
        self._begin()
        self._expected = expected  # it is read fast, and thrown away
        self._droppable += expected
        self._unparsed = b""
        self._deaf = True
        self._queue.append(visit)

    def _advance(self, until: float) -> None:
        """Answer what is asked, one after the other, until time is up or it was enough.

        Who does not read is not answered further.
        """
        transport = self._transport
        if self._advancing or transport is None:
            return
        self._advancing = True
        most = MESSAGES
        while self._queue and self.current is None and not transport.is_closing():
            most -= 1
            visit = self._queue.popleft()
            self._queued -= len(visit.body)
            self.since = self._loop.time()
            if visit.refusal is not None:
                visit.keep_alive = False
                visit.say(visit.refusal.status, visit.refusal.words, extra=[*visit.refusal.extra])
                self._dismiss(transport)
                break
            self._answer(visit)
            if self._queue and (not most or perf_counter() >= until):
                break
        self._advancing = False

    def _answer(self, visit: Visit) -> None:
        crowd, holder = self._crowd, visit.head.holder
        self.current = visit
        visit.is_counted = crowd.under_way.take(holder)
        to_do = None
        if not visit.is_counted:
            visit.say(_BUSY, crowd.under_way.refusal(holder), extra=[*_RETRY])
        else:
            try:
                to_do = (visit.head.handler or crowd.app.handle)(visit)
            except Exception as exc:  # noqa: BLE001 - boundary: one request is its own problem
                visit.give_up(exc)
        if to_do is not None:
            visit.light.run(self._work(visit, to_do))
        elif not visit.is_pending:
            self.finished(visit)

    async def _work(self, visit: Visit, to_do: Coroutine[Any, Any, None]) -> None:
        try:
            await to_do
        except Exception as exc:  # noqa: BLE001 - boundary: one request is its own problem
            visit.give_up(exc)
        finally:
            self.finished(visit)

    def _dismiss(self, transport: asyncio.Transport) -> None:
        """Say no more, and wait for the client to close.

        Closed while it still sends, it might never read the answer.
        """
        self._queue.clear()
        self._queued = 0
        self._deaf = True
        self._unparsed = b""
        self._dismissed = True
        self.since = self._loop.time()
        if not transport.is_closing():
            transport.write_eof()
        if not self._advancing:
            self._rest()

    def finished(self, visit: Visit) -> None:
        """A request is answered: the next one may be."""
        if self._transport is None or self.current is not visit:
            return
        if self._readable is not None:
            self._unread_answer = visit
            return
        self.current = None
        if visit.is_counted:
            self._crowd.under_way.give(visit.head.holder)
        self.answered += 1
        self.since = self._loop.time()
        if self._crowd.closing:
            self.close()
        elif not visit.keep_alive:
            self._dismiss(self._transport)
        elif self._advancing:
            return  # who does so goes on by itself
        elif self._queue or self._is_paused or self._expects or self.weight:
            self._settle(busy=False)

    def write(self, head: bytes, parts: Iterable[bytes | Raw] = (), *, joined: bool = True) -> None:
        transport = self._transport
        if transport is None:
            return
        if joined:
            transport.write(b"".join((head, *parts)))
        else:
            transport.writelines((head, *(memoryview(part) for part in parts)))

    async def drain(self) -> None:
        if self._readable is not None:
            await self._readable.wait()

    def pause_writing(self) -> None:
        self._readable = asyncio.Event()
        self._stuck_since = self._loop.time()
        self._unread = 1 << 62

    def resume_writing(self) -> None:
        if self._readable is not None:
            self._readable.set()
        self._readable = self._stuck_since = None
        if (visit := self._unread_answer) is not None:
            self._unread_answer = None
            self.finished(visit)

    def look(self, now: float) -> None:
        limits, quiet, transport = self._limits, now - self.since, self._transport
        if transport is None:
            return
        if self._is_paused and not transport.is_closing() and _has_left(transport):
            self.abort()
        elif self._dismissed or transport.is_closing():
            if quiet > limits.linger:
                self.abort()
        elif self._stuck_since is not None:
            self._look_at_unread(transport.get_write_buffer_size(), now)
        elif self.current is not None:
            if quiet > limits.ping and self.current.is_pending:
                self.current.fall_silent()
        elif self._reading and quiet > limits.request_timeout:
            self._refuse(_TIMEOUT, "the request took too long")
            self._advance(0)
        elif not self._reading and quiet > limits.keep_alive:
            self.close()

    def _look_at_unread(self, size: int, now: float) -> None:
        if size < self._unread or self._stuck_since is None:
            self._stuck_since, self._unread = now, size
        elif now - self._stuck_since > self._limits.write_timeout:
            self.abort()

    def shed(self, words: str) -> None:
        if not self._deaf:
            self._turn_away(Denied(_BUSY, words, _RETRY))
            self._weigh()
            self._advance(0)

    def close(self) -> None:
        transport = self._transport
        self._deaf = True
        self._unparsed = b""
        if self._dismissed:
            self.abort()
        elif transport is not None and self.current is None:
            self.since = self._loop.time()
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
