"""One HTTP connection of a client, with limits on memory and time."""

import asyncio
import logging
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from io import BytesIO
from time import perf_counter

import httptools
from msgspec import Raw

from multitap.http.heads import HeadCache
from multitap.http.server.connections import READ, Connections, HttpLimits, address_of
from multitap.http.server.peer import Peer
from multitap.http.server.request import Headers, HttpRequest, Rejected, RequestHead
from multitap.limits import AT_ONCE, TURN_MESSAGES, TURN_SECONDS

logger = logging.getLogger(__name__)

BUSY = 503
RETRY = ((b"retry-after", b"1"),)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STEP = TURN_SECONDS / 4
"""Seconds that one connection may use before others have a turn."""
_READING = 5e-10
"""Seconds to read one byte, which the loop spends before it calls us."""
_CALM = 0.1
"""Seconds without remaining work after which a connection no longer counts as busy."""
_END = b"\r\n\r\n"
_LIGHT = 8 * 1024
"""Bytes of a request up to which its memory is not counted."""
_TIMEOUT = 408
_LEFT = frozenset({7, 8})
"""TCP states in which the client has closed its end: CLOSE and CLOSE_WAIT."""
SLICE = 4096
"""Bytes parsed at a time, which limits the work to about a hundred requests."""
_HEADS = 16
"""Heads that a connection remembers: those of the stateless era differ in methods and tools."""
_ODD = frozenset({b"connection", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that need special treatment."""
_DROPPED = 1024 * 1024
"""Bytes that a rejected client may still send, besides its announced body."""
_BAD_REQUEST, _TOO_LARGE, _HEAD_TOO_LARGE, _FAILED = 400, 413, 431, 500


class ServerConnection(asyncio.BufferedProtocol):
    """One client's connection, with its share of time and memory.

    `client` is the address that a proxy names, if the connection comes from one that does.

    In its turns, the reader parses in slices and the responder answers in steps. These refer back
    to it, and the parser to the reader: `connection_lost` breaks the cycles, which frees the memory
    at once.
    """

    __slots__ = (
        "__weakref__", "_busy_until", "_connections", "_limits", "_loop", "_transport", "_waiting",
        "answered", "holder", "is_paused", "reader", "responder", "since", "weight",
    )  # fmt: skip

    def __init__(self, connections: Connections, client: str | None = None) -> None:
        self._connections = connections
        self._limits = connections.limits
        self._loop = connections.loop
        self._transport: asyncio.Transport | None = None
        self.responder = Responder(connections, self)
        self.reader = RequestReader(connections, self.responder)
        self.reader.peer.client = client
        self.holder = ""
        self.weight = 0
        self.since = self._loop.time()
        self.answered = 0

        self._waiting = False
        self.is_paused = False
        self._busy_until = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request on it is unanswered."""
        return self.responder.current is None and not self.responder.queue

    @property
    def arriving(self) -> int:
        """Bytes of its incomplete request."""
        return self.reader.arriving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is not a subclass
        self.responder.open(transport)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - the same
        peer = self.reader.peer
        peer.open(transport, address_of(peer.client) if peer.client else _address(transport))
        self.holder = self.reader.holder = self.reader.peer.address
        if not self._connections.enter(self):
            self.shed("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._connections.leave(self)
        self.reader.close()
        self.responder.lose()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """The read buffer: small, unless a long body arrives and there is time for it."""
        connections, expected = self._connections, self.reader.expected
        if expected <= READ or connections.fair_turns.spent >= AT_ONCE:
            return connections.room
        return connections.space[: expected + READ]

    def buffer_updated(self, nbytes: int) -> None:
        connections, reader, responder = self._connections, self.reader, self.responder
        data = connections.space[:nbytes]
        if (
            reader.is_deaf
            or reader.unparsed
            or self._busy_until
            or connections.fair_turns.spent >= AT_ONCE
        ):
            self._put_off(data)
            return
        started = perf_counter()
        begins = not reader.is_reading and responder.current is None
        if begins and not responder.queue:
            self._take(bytes(data), started)
        elif nbytes > SLICE:
            reader.parse(data, started + _STEP)
        else:
            reader.feed(data)
        if responder.queue:
            responder.advance(started + _STEP)
        if reader.is_reading or responder.queue or reader.unparsed or self.weight:  # seldom
            if begins:
                self.since = self._loop.time()
            self.settle(busy=True)
        fair_turns = connections.fair_turns
        fair_turns.spent += perf_counter() - started + nbytes * _READING
        if fair_turns.spent >= TURN_SECONDS:
            fair_turns.hold()

    def _take(self, text: bytes, arrived: float) -> None:
        """Take the beginning of a request, or a few whole ones; nothing else is under way."""
        reader, responder = self.reader, self.responder
        end = text.find(_END) + len(_END)
        head = reader.find_head(text, end)
        if head is not None and end + head.length == len(text):
            # the usual case: one complete request with a remembered head, without the parser
            self.since = self._loop.time()
            responder.advancing = True  # so that its end does not advance to the next one
            responder.answer(
                HttpRequest(writer=responder, head=head, body=text[end:], arrived=arrived)
            )
            responder.advancing = False
        else:
            reader.known = head
            reader.parse(memoryview(text), arrived + _STEP)
            if head is None:
                reader.remember(text, end)

    def _put_off(self, data: memoryview) -> None:
        """Keep received bytes for a later turn, or drop them."""
        now, reader = self._loop.time(), self.reader
        if reader.is_deaf:
            reader.droppable -= len(data)
            if reader.droppable < 0:
                self.abort()
                return
        else:
            if not reader.is_reading and self.responder.current is None:
                self.since = now
            reader.unparsed = b"".join((reader.unparsed, data))
        self._hold(busy=reader.is_deaf or now < self._busy_until)

    def go_on(self) -> bool:
        """Do some of the remaining work; returns whether more can be done now."""
        started, reader, responder = perf_counter(), self.reader, self.responder
        until = started + _STEP
        if responder.queue:
            responder.advance(until)
        if reader.unparsed and not responder.is_full:
            text, reader.unparsed = reader.unparsed, b""
            if reader.is_reading or responder.queue or responder.current is not None:
                reader.parse(memoryview(text), until)
            else:
                self._take(text, started)
            responder.advance(until)
        now = self._loop.time()
        if self._transport is not None and self.reader.has_work:
            self._busy_until = now + _CALM
            self._weigh()
            return True
        if now >= self._busy_until:
            self._busy_until = 0.0
        self._waiting = False
        self._rest()
        return False

    def settle(self, *, busy: bool) -> None:
        """Queue remaining work for a later turn, or wait for more input."""
        if self._transport is not None and self.reader.has_work:
            if busy:
                self._busy_until = self._loop.time() + _CALM
            self._hold(busy=busy)
        else:
            self._rest()

    def _hold(self, *, busy: bool) -> None:
        """Pause reading until our turn, when the kept bytes are handled."""
        self._weigh()
        # queued only once, as `FairTurns` requires
        if self._waiting or self._transport is None:
            return
        self._waiting = True
        if not self.is_paused and not self._transport.is_closing():
            self.is_paused = True
            self._transport.pause_reading()
        self._connections.fair_turns.join(self, busy=busy)

    def _rest(self) -> None:
        """Wait for input: resume reading, unless too much is kept."""
        self._weigh()
        transport, reader = self._transport, self.reader
        if transport is None or transport.is_closing():
            return
        if reader.expects and self.idle and not reader.is_deaf:
            # within a response, it would be read as a part of it
            reader.expects = False
            transport.write(_CONTINUE)
        if reader.unparsed or self.responder.is_full:
            if not self.is_paused:
                self.is_paused = True
                transport.pause_reading()
        elif self.is_paused and not self._waiting:
            self.is_paused = False
            transport.resume_reading()

    def _weigh(self) -> None:
        reader, responder = self.reader, self.responder
        # its token is known now: its memory moves from the address to that share
        if self.holder != reader.holder:
            self._connections.weigh(self, 0)
            self.holder = reader.holder
        weight = reader.arriving + responder.queued + len(reader.unparsed)
        if responder.current is not None:
            weight += len(responder.current.body)
        if weight > _LIGHT:
            self._connections.weigh(self, weight)
        elif self.weight:
            self._connections.weigh(self, 0)

    def pause_writing(self) -> None:
        self.responder.pause()

    def resume_writing(self) -> None:
        self.responder.resume()

    def excuse(self, late: float, now: float) -> None:
        """Do not count seconds in which we did not run against the client."""
        self.since = min(self.since + late, now)
        self.responder.excuse(late, now)

    def look(self, now: float) -> None:
        """Close it if its client is too slow or silent."""
        limits, quiet, transport = self._limits, now - self.since, self._transport
        reader, responder = self.reader, self.responder
        if transport is None:
            return
        if self.is_paused and not transport.is_closing() and _has_left(transport):
            self.abort()
        elif responder.is_dismissed or transport.is_closing():
            # the last response is sent, and a client that does not read it must not keep its place
            if quiet > limits.linger:
                self.abort()
        elif responder.is_stuck:
            responder.look_at_unread(now)
        elif responder.current is not None:
            if quiet > limits.ping and responder.current.may_stream:
                responder.current.fall_silent()
        elif reader.is_reading and quiet > limits.request_timeout:
            reader.turn_away(Rejected(_TIMEOUT, "the request took too long"))
            responder.advance(0)
        elif not reader.is_reading and quiet > limits.keep_alive:
            self.close()

    def concerns(self, is_meant: Callable[[RequestHead], bool]) -> bool:
        """Whether `is_meant` holds for an unanswered request on it."""
        return any(map(is_meant, self.unanswered()))

    def unanswered(self) -> list[RequestHead]:
        """The heads of its unanswered requests."""
        reader, responder = self.reader, self.responder
        heads = [http_request.head for http_request in responder.queue]
        if responder.current is not None:
            heads.append(responder.current.head)
        if reader.incoming is not None:
            heads.append(reader.incoming)
        return heads

    def shed(self, reason: str) -> None:
        """Refuse its incomplete request."""
        if not self.reader.is_deaf:
            self.reader.turn_away(Rejected(BUSY, reason, RETRY))
            self._weigh()
            self.responder.advance(0)

    def close(self) -> None:
        """Accept no further request; the current one is still answered."""
        transport = self._transport
        self.reader.stop()
        if self.responder.is_dismissed:
            self.abort()
        elif transport is not None and self.responder.current is None:
            self.since = self._loop.time()
            transport.close()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()


def _address(transport: asyncio.BaseTransport) -> str:
    client = transport.get_extra_info("peername")  # None if it is already closed
    return address_of(client[0]) if client else ""


def _has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the client has disconnected, which a paused transport does not report."""
    if sys.platform != "linux":
        return False
    plug = transport.get_extra_info("socket")
    if plug.family == socket.AF_UNIX:  # the kernel tells that of TCP only
        return False
    # the state is the first byte of `tcp_info`
    return plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT


class RequestReader:
    """Owns the incoming request, and the unparsed bytes.

    The parser refers back to it until it is closed.
    """

    __slots__ = (
        "__weakref__", "_arriving", "_body", "_connections", "_heads", "_incoming", "_limits",
        "_overhead", "_parser", "_responder", "_size", "_url", "droppable", "expected",
        "expects", "fed", "holder", "is_deaf", "is_reading", "known", "on_header", "peer",
        "unparsed",
    )  # fmt: skip

    def __init__(self, connections: Connections, responder: "Responder") -> None:
        self._connections = connections
        self._limits = connections.limits
        self._responder = responder
        self._arriving: Headers = []
        self.on_header = _collecting(self._arriving)
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.peer = Peer()
        """The other end of the connection."""
        self.holder = ""
        """The holder of the last request."""
        self._heads = HeadCache[RequestHead](_HEADS)
        self.unparsed = b""
        self.is_deaf = False
        """Whether further bytes are dropped."""
        self.droppable = _DROPPED
        """Bytes that may still be dropped before the connection is closed."""
        self._begin()

    def _begin(self) -> None:
        """Prepare for the next request."""
        self.is_reading = False
        """Whether a request has begun to arrive."""
        self._url = b""
        self._arriving.clear()
        self._incoming: RequestHead | None = None
        self.known: RequestHead | None = None
        """The remembered head of the request that is parsed next: nothing is decided again."""
        self._body: bytes | BytesIO = b""
        self._size = 0
        self.fed = 0
        self._overhead = 0
        self.expected = 0
        self.expects = False

    @property
    def arriving(self) -> int:
        """Bytes kept of the incomplete request."""
        is_kept = self._incoming is not None and self._incoming.keeps_body
        return self._overhead + (self._size if is_kept else 0)

    @property
    def has_work(self) -> bool:
        """Whether a request can be parsed or answered now."""
        responder = self._responder
        return not responder.is_dismissed and bool(
            (responder.queue and responder.current is None)
            or (self.unparsed and not responder.is_full)
        )

    @property
    def incoming(self) -> RequestHead | None:
        """The head of the incomplete request."""
        return self._incoming

    def find_head(self, text: bytes, end: int) -> RequestHead | None:
        """The remembered head that ends there, with the length of this request's body."""
        if (found := self._heads.find(text, end)) is None:
            return None
        head, length = found
        if head.edition is not self._connections.edition or length > self._limits.body:
            return None
        head.length = length
        return head

    def remember(self, text: bytes, end: int) -> None:
        """Remember the head of a plain request, if `text` is its head, or its head and its body."""
        queue = self._responder.queue
        head, size = (queue[0].head, queue[0].head.length) if queue else (self._incoming, 0)
        if head is None or self.is_deaf or end + size != len(text) or self._size:
            return
        if head.fits_any_length and head.edition is not None and not head.headers.keys() & _ODD:
            self._heads.add(text, end, head)

    def parse(self, data: memoryview, until: float) -> None:
        """Parse in slices until the time is up or enough requests wait; the rest is kept."""
        while data and not self.is_deaf and not self._responder.is_full:
            size = max(SLICE, self.expected)  # parsing a body is fast
            self.feed(data[:size])
            data = data[size:]
            if data and perf_counter() >= until:
                break
        self.unparsed = b"" if self.is_deaf else bytes(data)

    def feed(self, data: memoryview) -> None:
        """Parse these bytes."""
        while data and self._parser is not None:
            self.fed += len(data)
            self._overhead += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as exc:
                # upgrades are ignored
                self._parser = httptools.HttpRequestParser(self)
                data = data[exc.args[0] :]
                continue
            except httptools.HttpParserError:
                if not self.is_deaf:
                    self.turn_away(Rejected(_BAD_REQUEST, "this is not an HTTP request"))
            break
        if self.fed and not self.is_deaf:
            self.is_reading = True  # empty lines have a time limit, too, which the parser skips
            self._measure()

    def _measure(self) -> None:
        """Limit what the parser buffers: incomplete headers, the framing of a body."""
        limits = self._limits
        if len(self._arriving) > limits.fields:
            self.turn_away(_too_many_fields(limits))
        elif self._overhead > limits.head:
            reason = f"the head of a request has at most {limits.head} bytes"
            self.turn_away(Rejected(_HEAD_TOO_LARGE, reason))
        elif self.fed > limits.head + 2 * limits.body:
            self.turn_away(Rejected(_TOO_LARGE, "the request is too long"))

    def on_message_begin(self) -> None:
        self.is_reading = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        parser, limits = self._parser, self._limits
        if parser is None:
            return
        head, self.known = self.known or self._decide(parser), None
        self._incoming = head
        self.holder = head.holder
        headers, length = head.headers, head.length
        if length > limits.body:
            self._stop_parsing(_too_long(limits))
        if (length or b"transfer-encoding" in headers) and parser.should_upgrade():
            # the parser would treat its body as the next request
            self._stop_parsing(Rejected(_BAD_REQUEST, "protocol upgrades are not supported"))
        self.expected = length
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self.expects = head.speaks_chunks

    def _decide(self, parser: httptools.HttpRequestParser) -> RequestHead:
        """The head that has arrived, once it is admitted."""
        pairs = self._arriving.copy()
        head = self._incoming = RequestHead(parser.get_method(), self._url, pairs, peer=self.peer)
        head.edition = self._connections.edition
        headers = head.headers
        head.length = int(headers.get(b"content-length", b"0"))
        if b"connection" in headers or not parser.should_keep_alive():  # a known length
            head.speaks_chunks = parser.get_http_version() == "1.1"
        if len(pairs) > self._limits.fields:
            self._stop_parsing(_too_many_fields(self._limits))
        try:
            rejection = self._connections.app.admit(head)
        except Exception:  # boundary: answered as an error
            logger.exception("a request could not be admitted")
            rejection = Rejected(_FAILED, "Internal Server Error")
        if rejection is not None:
            self._stop_parsing(rejection)
        return head

    def on_body(self, body: bytes) -> None:
        first = not self._size
        self._overhead = 0
        self.expects = False
        self._size += len(body)
        if self.expected:
            self.expected -= len(body)
        if self._size > self._limits.body:
            self._stop_parsing(_too_long(self._limits))
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
        http_request = HttpRequest(
            writer=self._responder, head=head, body=whole, arrived=perf_counter()
        )
        http_request.keep_alive = parser.should_keep_alive()
        self.is_deaf = not http_request.keep_alive
        self._begin()
        self._responder.add(http_request)

    def _stop_parsing(self, rejection: Rejected) -> None:
        """Reject the incoming request from within the parser.

        Raises:
            HttpParserError: Always, to stop the parser.
        """
        self.turn_away(rejection)
        raise httptools.HttpParserError

    def turn_away(self, rejection: Rejected) -> None:
        """Reject the incoming request, and read no further ones.

        Requests before it are answered first. Its bytes are dropped.
        """
        head = self._incoming or RequestHead(b"", b"", [], peer=self.peer)
        http_request = HttpRequest(writer=self._responder, head=head, body=b"", arrived=0.0)
        http_request.refusal = rejection
        expected = min(self.expected, self._limits.body)
        self._begin()
        self.expected = expected  # read fast, and dropped
        self.droppable += expected
        self.stop()
        self._responder.add(http_request)

    def stop(self) -> None:
        """Read no further requests."""
        self.is_deaf = True
        self.unparsed = b""

    def close(self) -> None:
        """Drop everything: the connection is lost."""
        self._parser = None
        self.unparsed = b""
        self._heads.clear()
        self.peer.close()
        self._begin()


def _too_many_fields(limits: HttpLimits) -> Rejected:
    return Rejected(_HEAD_TOO_LARGE, f"a request has at most {limits.fields} header fields")


def _too_long(limits: HttpLimits) -> Rejected:
    return Rejected(_TOO_LARGE, f"a request has at most {limits.body} bytes")


def _collecting(pairs: Headers) -> Callable[[bytes, bytes], None]:
    """The callback for headers; short, because it is called for each one."""
    add = pairs.append

    def on_header(name: bytes, value: bytes) -> None:
        add((name.lower(), value.strip()))

    return on_header


class Responder:
    """Owns the waiting requests, the current one, and the unread output.

    It refers to its connection until that is lost; requests refer only to this.
    """

    __slots__ = (
        "__weakref__", "_connection", "_connections", "_limits", "_loop", "_readable",
        "_stuck_since", "_transport", "_under_way", "_unread", "_unread_answer", "advancing",
        "current", "is_dismissed", "queue", "queued", "tasks",
    )  # fmt: skip

    def __init__(self, connections: Connections, connection: ServerConnection) -> None:
        self._connections = connections
        self._connection: ServerConnection | None = connection
        self._limits = connections.limits
        self._loop = connections.loop
        self._under_way = connections.under_way
        self._transport: asyncio.Transport | None = None
        self.tasks = connections.tasks
        """Runs the requests."""

        self.queue: deque[HttpRequest] = deque()
        self.queued = 0
        """Bytes of the waiting requests' bodies."""
        self.current: HttpRequest | None = None
        self.advancing = False
        """Whether `advance` is running, which then answers the next request as well."""
        self.is_dismissed = False
        """Whether the last response is sent, and the client should close."""

        self._unread_answer: HttpRequest | None = None
        self._readable: asyncio.Event | None = None
        self._stuck_since: float | None = None
        self._unread = 0

    @property
    def is_full(self) -> bool:
        """Whether no more requests may wait."""
        return len(self.queue) >= self._limits.queued or self.queued > self._limits.head

    @property
    def is_stuck(self) -> bool:
        """Whether the client does not read its responses."""
        return self._stuck_since is not None

    def open(self, transport: asyncio.Transport) -> None:
        """Answer over `transport` from now on."""
        self._transport = transport

    def lose(self) -> None:
        """Cancel all requests: the connection is lost."""
        # first: the calls below may try to write
        self._connection = self._transport = None
        http_request, self.current = self.current, None
        self._unread_answer = None
        self.queue.clear()
        if http_request is not None:
            if http_request.is_counted:
                self._connections.under_way.give(http_request.head.holder)
            http_request.lose()
        if self._readable is not None:
            self._readable.set()

    def add(self, http_request: HttpRequest) -> None:
        """Queue a request."""
        self.queue.append(http_request)
        self.queued += len(http_request.body)

    def advance(self, until: float) -> None:
        """Answer the waiting requests in order, until the time is up.

        A client that does not read gets no further responses.
        """
        connection, transport = self._connection, self._transport
        if self.advancing or connection is None or transport is None:
            return
        self.advancing = True
        most = TURN_MESSAGES
        while self.queue and self.current is None and not transport.is_closing():
            most -= 1
            http_request = self.queue.popleft()
            self.queued -= len(http_request.body)
            connection.since = self._loop.time()
            if http_request.refusal is not None:
                http_request.keep_alive = False
                http_request.reject(http_request.refusal)
                self._connections.rejections[http_request.refusal.status] += 1
                self._dismiss(connection, transport)
                break
            self.answer(http_request)
            if self.queue and (not most or perf_counter() >= until):
                break
        self.advancing = False

    def answer(self, http_request: HttpRequest) -> None:
        """Begin to answer a request; there must be no current one."""
        head, to_do = http_request.head, None
        self.current = http_request
        if self._under_way.take(head.holder):
            http_request.is_counted = True
            try:
                to_do = (head.handler or self._connections.app.handle)(http_request)
            except Exception as exc:  # noqa: BLE001 - boundary: a failed request must not end the connection
                http_request.give_up(exc)
        else:
            http_request.say(BUSY, self._under_way.refusal(head.holder), extra=[*RETRY])
            self._connections.rejections[BUSY] += 1
        if to_do is not None:
            self.tasks.begin(http_request, to_do)
        elif http_request.become_task is None:
            self.on_finished(http_request)

    def on_finished(self, http_request: HttpRequest) -> None:
        """Finish a request; then answer the next one."""
        connection, transport = self._connection, self._transport
        # meanwhile the connection may be lost, or the request cancelled
        if connection is None or transport is None or self.current is not http_request:
            return
        # it stays current until it is read: a slow client gets no further responses
        if self._readable is not None:
            self._unread_answer = http_request
            return
        self.current = None
        if http_request.is_counted:
            self._under_way.give(http_request.head.holder)
        connection.answered += 1
        connection.since = self._loop.time()
        if self._connections.closing:
            connection.close()
        elif not http_request.keep_alive:
            self._dismiss(connection, transport)
        elif self.advancing:
            return  # `advance` continues by itself
        elif self.queue or connection.is_paused or connection.reader.expects or connection.weight:
            connection.settle(busy=False)

    def _dismiss(self, connection: ServerConnection, transport: asyncio.Transport) -> None:
        """Send nothing more, and wait for the client to close.

        If we closed while it still sends, it might never read the response.
        """
        self.queue.clear()
        self.queued = 0
        connection.reader.stop()
        self.is_dismissed = True
        connection.since = self._loop.time()
        # TLS ends both directions at once, so that the client closes, or `linger` is over
        if not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()
        if not self.advancing:
            connection.settle(busy=False)

    def write(
        self, head: bytes, parts: Iterable[Raw | bytes | memoryview] = (), *, joined: bool = True
    ) -> None:
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

    def pause(self) -> None:
        """Pause: the client reads too slowly."""
        self._readable = asyncio.Event()
        self._stuck_since = self._loop.time()
        # more than any buffer: the first look only notes its size
        self._unread = 1 << 62

    def resume(self) -> None:
        """Continue: the client has read enough."""
        if self._readable is not None:
            self._readable.set()
        self._readable = self._stuck_since = None
        if (http_request := self._unread_answer) is not None:
            self._unread_answer = None
            self.on_finished(http_request)

    def excuse(self, late: float, now: float) -> None:
        """See `ServerConnection.excuse`."""
        if self._stuck_since is not None:
            self._stuck_since = min(self._stuck_since + late, now)

    def look_at_unread(self, now: float) -> None:
        """Close the connection if the client has read nothing for too long."""
        if self._transport is None:
            return
        size = self._transport.get_write_buffer_size()
        if size < self._unread or self._stuck_since is None:
            self._stuck_since, self._unread = now, size
        elif now - self._stuck_since > self._limits.write_timeout:
            self._transport.abort()
