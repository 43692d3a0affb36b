"""One HTTP connection of a client, with limits on memory and time."""

import asyncio
import socket
import sys
from collections.abc import Callable
from time import perf_counter

from multitap.http.server.access import Rejected
from multitap.http.server.connections import READ, Connections, address_of
from multitap.http.server.fair_turns import AT_ONCE
from multitap.http.server.http_request import HttpRequest, RequestHead
from multitap.http.server.request_reader import SLICE, RequestReader
from multitap.http.server.responder import BUSY, RETRY, Responder
from multitap.pace import SECONDS

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STEP = SECONDS / 4
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


def _address(transport: asyncio.BaseTransport) -> str:
    client = transport.get_extra_info("peername")  # None if it is already closed
    return address_of(client[0]) if client else ""


def _has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the client has disconnected, which a paused transport does not report."""
    if sys.platform != "linux":
        return False
    plug = transport.get_extra_info("socket")
    return plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT


class ServerConnection(asyncio.BufferedProtocol):
    """One client's connection, with its share of time and memory.

    In its turns, the reader parses in slices and the responder answers in steps. These refer back
    to it, and the parser to the reader: `connection_lost` breaks the cycles, which frees the memory
    at once.
    """

    __slots__ = (
        "__weakref__", "_busy_until", "_connections", "_limits", "_loop", "_transport", "_waiting",
        "answered", "holder", "is_paused", "reader", "responder", "since", "weight",
    )  # fmt: skip

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._limits = connections.limits
        self._loop = connections.loop
        self._transport: asyncio.Transport | None = None
        self.responder = Responder(connections, self)
        self.reader = RequestReader(connections, self.responder)
        self.holder = ""
        self.weight = 0
        self.since = self._loop.time()
        self.answered = 0

        self._waiting = False
        self.is_paused = False
        self._busy_until = 0.0

    @property
    def idle(self) -> bool:
        return self.responder.current is None and not self.responder.queue

    @property
    def arriving(self) -> int:
        return self.reader.arriving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is not a subclass
        self.responder.open(transport)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - the same
        self.reader.peer.open(transport, _address(transport))
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
        begins = not reader.fed and responder.current is None
        if nbytes > SLICE:
            reader.parse(data, started + _STEP)
        elif not begins or responder.queue:
            reader.feed(data)
        else:
            # the usual case: one complete request with a remembered head, without the parser
            text = bytes(data)
            end = text.find(_END) + len(_END)
            head = reader.heads.get(text[:end])
            if (
                head is not None
                and end + head.length == nbytes
                and head.edition is connections.edition
            ):
                self.since = self._loop.time()
                responder.advancing = True  # so that its end does not advance to the next one
                responder.answer(
                    HttpRequest(connections.tasks, writer=responder, head=head, body=text[end:])
                )
                responder.advancing = False
            else:
                reader.feed(data)
                reader.remember(text, end)
        if responder.queue:
            responder.advance(started + _STEP)
        if reader.fed or responder.queue or reader.unparsed or self.weight:  # seldom
            if begins:
                self.since = self._loop.time()
            self.settle(busy=True)
        fair_turns = connections.fair_turns
        fair_turns.spent += perf_counter() - started + nbytes * _READING
        if fair_turns.spent >= AT_ONCE:
            fair_turns.hold()

    def _put_off(self, data: memoryview) -> None:
        """Keep received bytes for a later turn, or drop them."""
        now, reader = self._loop.time(), self.reader
        if reader.is_deaf:
            reader.droppable -= len(data)
            if reader.droppable < 0:
                self.abort()
                return
        else:
            if not reader.fed and self.responder.current is None:
                self.since = now
            reader.unparsed = b"".join((reader.unparsed, data))
        self._hold(busy=reader.is_deaf or now < self._busy_until)

    def go_on(self) -> bool:
        until, reader, responder = perf_counter() + _STEP, self.reader, self.responder
        if responder.queue:
            responder.advance(until)
        if reader.unparsed and not responder.is_full:
            reader.parse(memoryview(reader.unparsed), until)
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

    def look(self, now: float) -> None:
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
            if quiet > limits.ping and responder.current.is_pending:
                responder.current.fall_silent()
        elif reader.is_reading and quiet > limits.request_timeout:
            reader.turn_away(Rejected(_TIMEOUT, "the request took too long"))
            responder.advance(0)
        elif not reader.is_reading and quiet > limits.keep_alive:
            self.close()

    def concerns(self, is_meant: Callable[[RequestHead], bool]) -> bool:
        reader, responder = self.reader, self.responder
        heads = [http_request.head for http_request in responder.queue]
        if responder.current is not None:
            heads.append(responder.current.head)
        if reader.incoming is not None:
            heads.append(reader.incoming)
        return any(map(is_meant, heads))

    def shed(self, words: str) -> None:
        if not self.reader.is_deaf:
            self.reader.turn_away(Rejected(BUSY, words, RETRY))
            self._weigh()
            self.responder.advance(0)

    def close(self) -> None:
        transport = self._transport
        self.reader.stop()
        if self.responder.is_dismissed:
            self.abort()
        elif transport is not None and self.responder.current is None:
            self.since = self._loop.time()
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
