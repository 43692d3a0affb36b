"""One HTTP/1.1 connection: a request out, its answer in, and so on."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple, Protocol, runtime_checkable

import httptools

from multitap.pace import FULL_READ, Budget, Pace
from multitap.wire.response import UNREAD, Response
from multitap.wire.wire import AnswerInvalid, RequestFailed, WireFault

Heard = Callable[[Response | WireFault], None]
"""Called once for a request: when the head of its answer is there, or why there is none.

A small answer is complete by then.
"""

_HEAD = 64 * 1024  # bytes
_TOO_LONG = f"its head has more than {_HEAD:,} bytes"
_FIELDS = 256  # headers of one answer
_WHOLE = 64 * 1024
"""Bytes up to which a message is joined to its head: copying costs less than another write."""
_SLICE = 64 * 1024
"""Bytes parsed in one go: in chunks of one byte they take most of a millisecond."""
_FINAL = 200  # below this a status is only informational


_END = b"\r\n\r\n"
_HEADS = 32
"""Heads that a connection knows again: many answers differ in their length, or in the second."""
_ODD = frozenset({b"connection", b"content-encoding", b"transfer-encoding", b"upgrade"})
"""Headers that say more than what an answer is."""


class _Known(NamedTuple):
    """What the head of a plain answer says."""

    status: int
    fields: dict[bytes, bytes]
    length: int


@runtime_checkable
class Transport(Protocol):
    """What a connection needs of one; the transports of uvloop are no `asyncio.Transport`."""

    def write(self, data: bytes, /) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Keeper(Protocol):
    """Who owns the connections to one place."""

    name: str
    """Who the server is."""
    loop: asyncio.AbstractEventLoop

    def enter(self, connection: "Connection") -> None:
        """It is open."""
        ...

    def give_back(self, connection: "Connection") -> None:
        """Its answer is complete, and it can be used again."""
        ...

    def leave(self, connection: "Connection") -> None:
        """It is closed."""
        ...

    def doubt(self) -> None:
        """One broke in the middle of a request: the server may be another one by now."""
        ...


class Connection(asyncio.Protocol):
    """Asks and is answered, one request at a time; nothing here waits.

    It is also what its own `Pace` holds back: reading goes on only when neither that nor the
    reader of the answer minds.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.name = keeper.name
        self.loop = keeper.loop
        self.idle_since = 0.0
        self._transport: Transport | None = None
        self._heard: Heard | None = None
        self._response: Response | None = None
        self._whole = False
        self._chunked = False
        self._until_closed = False
        self._keeps_alive = False
        self._unsent = False
        self._paused = False
        self._rest: deque[memoryview] = deque()  # what came, and is parsed in a later turn
        self._lost: tuple[Exception | None] | None = None  # how it ended, with such a rest
        self._pace = Pace(self._work)
        self._heads: dict[bytes, _Known] = {}
        self._plain: _Known | None = None
        self._last: _Known | None = None  # the head of an answer that has just ended
        self._unseen = 0  # bytes that came, and of which nothing came out of the parser yet
        self._fields: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        # functions of C, found by the parser: each of ours would cost more than what it does
        self.on_header = self._fields.setdefault
        self.on_body = self._pieces.append
        self._parser = self._fresh_parser()

    @property
    def usable(self) -> bool:
        """Whether it is open, as far as can be seen from here."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def silent(self) -> bool:
        """Whether the server closed it without a byte of an answer."""
        return self._transport is None and not self._unseen

    def send(self, head: bytes, body: bytes | None, heard: Heard) -> None:
        """Write a request; the connection must be usable, and nothing under way."""
        transport = self._transport
        if transport is None:
            raise RuntimeError("the connection is closed")
        self._heard = heard
        self._unseen = 0
        if body is None:
            transport.write(head + b"\r\n")
        elif len(body) <= _WHOLE:
            transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
            transport.write(body)

    def forget(self, heard: Heard) -> None:
        """Close it if `heard` has not been called yet: the answer is not wanted any more."""
        if self._heard is heard:
            self._heard = None
            self.abort()

    def abort(self) -> None:
        """Close it now."""
        self._fail(RequestFailed(f"the connection to {self.name} is closed", sent=True))

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            if not self._pace.holding:
                self._transport.resume_reading()

    def is_closing(self) -> bool:
        """For its pace: whether there is nothing to hold back."""
        return not self.usable

    def pause_reading(self) -> None:
        """For its pace: stop reading."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """For its pace: read again, unless the reader of the answer is behind."""
        if self._transport is not None and not self._paused:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, Transport):
            self._transport = transport
            self._pace.reads(self)
            self._keeper.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._keeper.leave(self)
        if self._rest:
            self._lost = (exc,)  # the end of the answer may be among it
        else:
            self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        if self._response is None:
            if self._heard is not None:
                self._keeper.doubt()
            self._fail(self._unanswered(exc))
        elif exc is None and self._until_closed:
            self._finish(self._response)
        else:
            self._fail(self._broken_off())

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        if (heard := self._heard) is not None and not self._unseen and self._response is None:
            end = data.find(_END) + len(_END)
            known = self._heads.get(data[:end])
            if known is not None and end + known.length == len(data):
                self._heard = None
                self._give_back()
                heard(Response(self, known.status, known.fields, data[end:]))
            else:
                self._last = None
                self._receive(data)
                self._remember(data, end)
            return
        self._receive(data)

    def _remember(self, data: bytes, end: int) -> None:
        """Know a head again by its very bytes, if all of a plain answer came at once."""
        last, self._last = self._last, None
        if last is not None and last.length == len(data) - end:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[data[:end]] = last

    def _receive(self, data: bytes) -> None:
        if self._heard is None and self._response is None:
            self.abort()  # nothing was asked
        elif self._pace.holding:
            self._rest.append(memoryview(data))  # TLS hands on what it has already read
        elif len(data) < FULL_READ:
            self._parse(data)
        else:
            self._rest.append(memoryview(data))
            self._work()
            self._pace.hold()

    def _work(self) -> bool:
        """Parse what is there, until the budget of this turn is spent; whether anything is left."""
        rest, budget = self._rest, Budget()
        while rest:
            piece = rest.popleft()
            if len(piece) > _SLICE:
                rest.appendleft(piece[_SLICE:])
                piece = piece[:_SLICE]
            self._parse(piece)
            if budget.spent():
                break
        if self._lost is not None and not rest:
            (exc,), self._lost = self._lost, None
            self._end(exc)
        return bool(rest)

    def _parse(self, data: bytes | memoryview) -> None:
        self._unseen += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._garbled(exc)
            return
        response = self._response
        if response is None:
            if self._unseen > _HEAD:
                self._fail(self._no_http(_TOO_LONG))
        elif self._whole:
            self._finish(response)
        else:
            self._go_on(response)

    def on_message_begin(self) -> None:
        if self._whole:
            raise httptools.HttpParserError("more than one answer")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        fields = self._fields
        if len(fields) > _FIELDS:
            raise httptools.HttpParserError("too many headers")
        if self._unseen > _HEAD and sum(map(len, chain(*fields.items()))) > _HEAD:
            raise httptools.HttpParserError(_TOO_LONG)
        if status >= _FINAL:
            lowered = {name.lower(): value for name, value in fields.items()}
            self._response = Response(self, status, lowered)
            length = lowered.get(b"content-length", b"")
            is_plain = not _ODD & lowered.keys() and length.isdigit()
            self._plain = _Known(status, lowered, int(length)) if is_plain else None
            self._chunked = b"transfer-encoding" in lowered
            self._until_closed = not self._chunked and b"content-length" not in lowered
            self._unseen = 0
        fields.clear()

    def on_message_complete(self) -> None:
        if self._response is not None:
            self._whole = True
            self._keeps_alive = self._parser.should_keep_alive()

    def _taken(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return data

    def _go_on(self, response: Response) -> None:
        data = self._taken()
        if data:
            # the rest were frames: a body in tiny chunks is not worth more than its share
            self._pace.useful |= 2 * len(data) >= self._unseen
            self._unseen = 0
        elif self._unseen > _HEAD:  # the parser keeps what comes after the last chunk
            self._fail(self._broken_off())
            return
        response.add(data)
        if response.held > UNREAD and not self._paused and self._transport and self.usable:
            self._paused = True
            self._transport.pause_reading()
        if (heard := self._heard) is not None:
            self._heard = None
            heard(response)

    def _finish(self, response: Response) -> None:
        data, heard = self._taken(), self._heard
        self._heard = self._response = None
        clean = self._whole and not self._rest  # nothing of it can pass for the next answer
        if clean and self._keeps_alive:
            self._last = self._plain
            self._whole = False
            self.resume()
            if self._chunked:
                self._parser = self._fresh_parser()
            self._give_back()
        else:
            self._cut()
        response.end(data)
        if heard is not None:
            heard(response)

    def _give_back(self) -> None:
        """Let the next request have it, unless the last one is still being sent."""
        transport = self._transport
        if transport is not None and not self._unsent and not transport.is_closing():
            self._keeper.give_back(self)
        else:
            self._cut()

    def _fresh_parser(self) -> httptools.HttpResponseParser:
        """It remembers what comes after the last chunk as if it came before the next answer."""
        self._fields.clear()
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(  # those of browsers: there is nobody to smuggle past
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        return parser

    def _fail(self, fault: WireFault) -> None:
        heard, response = self._heard, self._response
        self._heard = self._response = None
        self._cut()
        if response is not None:
            response.end(self._taken(), fault)
        if heard is not None:
            heard(response or fault)

    def _cut(self) -> None:
        self._rest.clear()
        self._lost = None
        self._pace.stop()
        if self._transport is not None:
            self._transport.abort()

    def _garbled(self, exc: Exception) -> None:
        if self._response is None:
            self._fail(self._no_http(_flaw(exc)))
        elif self._whole:  # what comes after it does not make it wrong
            self._keeps_alive = False
            self._finish(self._response)
        else:
            self._fail(self._broken_off())

    def _unanswered(self, exc: Exception | None) -> RequestFailed:
        if isinstance(exc, OSError):
            reason = exc.strerror or type(exc).__name__
            return RequestFailed(f"the connection to {self.name} broke: {reason}", sent=True)
        return RequestFailed(f"{self.name} closed the connection without an answer", sent=True)

    def _broken_off(self) -> RequestFailed:
        return RequestFailed(f"the answer of {self.name} broke off", sent=True)

    def _no_http(self, flaw: str) -> AnswerInvalid:
        return AnswerInvalid(f"the answer of {self.name} is no valid HTTP: {flaw}", sent=True)


def _flaw(exc: Exception) -> str:
    if isinstance(exc, httptools.HttpParserUpgrade):
        return "it changes to another protocol"
    if isinstance(exc, httptools.HttpParserCallbackError):
        return str(exc.__context__)
    words = str(exc)
    return "Bad status line" if words.startswith("Expected HTTP/") else words
