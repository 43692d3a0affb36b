"""One HTTP/1.1 client connection: requests out, responses in, one after the other."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple, Protocol, runtime_checkable

import httptools

from multitap.errors import AnswerInvalid, RequestFailed, WireFault
from multitap.http.client.messages import UNREAD, BodySource, Response, content_type
from multitap.http.heads import HeadCache
from multitap.limits import FULL_READ, Budget, Pace, Readable

HEAD = 64 * 1024
"""Bytes of the head of a response, or of the framing of its body."""
TOO_LONG = f"its head has more than {HEAD:,} bytes"
_FIELDS = 256  # headers of one answer
_FINAL = 200  # lower statuses are informational
_HEADS = 32
"""Heads that a connection remembers: responses differ in dates and kinds."""
_ODD = frozenset({b"connection", b"content-encoding", b"transfer-encoding", b"upgrade"})
"""Headers that need special treatment."""


class CachedHead(NamedTuple):
    """The parsed head of a plain response; `fields` may have the length of another one."""

    status: int
    fields: dict[bytes, bytes]
    content_type: str
    length: int


class ResponseReader:
    """Owns the parser, and the incoming response."""

    __slots__ = (
        "_fields", "_parser", "_pieces", "_plain", "_source", "heads", "is_chunked", "is_whole",
        "keeps_alive", "last", "on_body", "on_header", "response", "unseen", "until_closed",
    )  # fmt: skip

    def __init__(self, source: BodySource) -> None:
        self._source = source
        self.response: Response | None = None
        """The response, once its head has arrived."""
        self.is_whole = False
        self.is_chunked = False
        self.until_closed = False
        """Whether the body ends with the connection."""
        self.keeps_alive = False
        self.unseen = 0
        """Bytes that the parser has received without producing output."""
        self.heads = HeadCache[CachedHead](_HEADS)
        self.last: CachedHead | None = None
        """The head of the response that has just ended."""
        self._plain: CachedHead | None = None
        self._fields: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        # C functions as parser callbacks: Python ones would cost more than their work
        self.on_header = self._fields.setdefault
        self.on_body = self._pieces.append
        self._parser = self._fresh_parser()

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received bytes.

        Raises:
            HttpParserError, HttpParserUpgrade: They are not a response to our request.
        """
        self.unseen += len(data)
        self._parser.feed_data(data)

    def take_body(self) -> bytes:
        """Take the bytes of the body since the last call."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return data

    def begin_next(self) -> None:
        """Prepare for the next response: this one is complete."""
        self.last = self._plain
        self.is_whole = False
        if self.is_chunked:
            self._parser = self._fresh_parser()

    def remember(self, data: bytes, end: int) -> None:
        """Remember a head, if a plain response arrived at once."""
        last, self.last = self.last, None
        if last is not None and last.length == len(data) - end:
            self.heads.add(data, end, last)

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise httptools.HttpParserError("more than one answer")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        fields = self._fields
        if len(fields) > _FIELDS:
            raise httptools.HttpParserError("too many headers")
        if self.unseen > HEAD and sum(map(len, chain(*fields.items()))) > HEAD:
            raise httptools.HttpParserError(TOO_LONG)
        if status >= _FINAL:
            lowered = {name.lower(): value for name, value in fields.items()}
            kind = content_type(lowered)
            self.response = Response(self._source, status, lowered, kind)
            length = lowered.get(b"content-length", b"")
            is_plain = not _ODD & lowered.keys() and length.isdigit()
            self._plain = CachedHead(status, lowered, kind, int(length)) if is_plain else None
            self.is_chunked = b"transfer-encoding" in lowered
            self.until_closed = not self.is_chunked and b"content-length" not in lowered
            self.unseen = 0
        fields.clear()

    def on_message_complete(self) -> None:
        if self.response is not None:
            self.is_whole = True
            self.keeps_alive = self._parser.should_keep_alive()

    def _fresh_parser(self) -> httptools.HttpResponseParser:
        """A new parser: an old one would report trailers as headers of the next response."""
        self._fields.clear()
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(  # as lenient as browsers
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        return parser


_SLICE = 64 * 1024
"""Bytes parsed at a time: in chunks of one byte, that takes most of a millisecond."""


class ReceiveBuffer:
    """Owns the unparsed bytes, and pauses reading.

    Reading is paused while its own `Pace` or the reader of the response is behind.

    Args:
        parse: Parses bytes, a bounded piece at a time.
        on_end: Called once everything is parsed and nothing more arrives, with the reason.
    """

    __slots__ = ("_ended", "_is_behind", "_on_end", "_parse", "_pieces", "_transport", "pace")

    def __init__(
        self,
        parse: Callable[[bytes | memoryview], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self.pace = Pace(self._work)
        self._parse = parse
        self._on_end = on_end
        self._transport: Readable | None = None
        self._pieces: deque[memoryview] = deque()
        self._is_behind = False  # whether the reader of the response is behind
        self._ended: tuple[Exception | None] | None = None

    def __len__(self) -> int:
        return len(self._pieces)

    def open(self, transport: Readable) -> None:
        """Read from `transport`."""
        self._transport = transport
        self.pace.reads(self)

    def take(self, data: bytes) -> None:
        """Parse received bytes, now or in a later turn."""
        if self.pace.holding:
            self._pieces.append(memoryview(data))  # TLS passes on what it has already read
        elif len(data) < FULL_READ:
            self._parse(data)
        else:
            self._pieces.append(memoryview(data))
            self._work()
            self.pace.hold()

    def end(self, exc: Exception | None) -> None:
        """Note that nothing more arrives; unparsed bytes may contain the end of the response."""
        self._transport = None
        if self._pieces:
            self._ended = (exc,)
        else:
            self._on_end(exc)

    def clear(self) -> None:
        """Drop all unparsed bytes."""
        self._pieces.clear()
        self._ended = None
        self.pace.stop()

    def fall_behind(self) -> None:
        """Pause reading: the reader of the response is behind."""
        if not self._is_behind and self._transport is not None and not self.is_closing():
            self._is_behind = True
            self._transport.pause_reading()

    def catch_up(self) -> None:
        """Resume reading: the reader of the response has caught up."""
        if self._is_behind and self._transport is not None:
            self._is_behind = False
            if not self.pace.holding:
                self._transport.resume_reading()

    def is_closing(self) -> bool:
        """For its pace: whether the transport is closing."""
        return self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """For its pace: stop reading."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """For its pace: resume reading, unless the reader of the response is behind."""
        if self._transport is not None and not self._is_behind:
            self._transport.resume_reading()

    def _work(self) -> bool:
        """Parse within the budget of this turn; returns whether bytes are left."""
        pieces, budget = self._pieces, Budget()
        while pieces:
            piece = pieces.popleft()
            if len(piece) > _SLICE:
                pieces.appendleft(piece[_SLICE:])
                piece = piece[:_SLICE]
            self._parse(piece)
            if budget.spent():
                break
        if self._ended is not None and not pieces:
            (exc,), self._ended = self._ended, None
            self._on_end(exc)
        return bool(pieces)


Heard = Callable[[Response | WireFault], None]
"""Called once per request, with the response once its head has arrived, or with the fault.

A small response is complete by then.
"""

_WHOLE = 64 * 1024
"""Bytes up to which a body is joined to its head: a copy costs less than another write."""
_END = b"\r\n\r\n"


@runtime_checkable
class Transport(Protocol):
    """The part of a transport that is used; those of uvloop are not `asyncio.Transport`s."""

    def write(self, data: bytes, /) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ConnectionOwner(Protocol):
    """The owner of the connections to one origin."""

    name: str
    """The server's name for messages."""
    loop: asyncio.AbstractEventLoop

    def enter(self, connection: "ClientConnection") -> None:
        """Called when a connection is open."""
        ...

    def give_back(self, connection: "ClientConnection") -> None:
        """Called when a response is complete and the connection can be reused."""
        ...

    def leave(self, connection: "ClientConnection") -> None:
        """Called when a connection is closed."""
        ...

    def doubt(self) -> None:
        """Called when a connection broke during a request: the server may have been replaced."""
        ...


class ClientConnection(asyncio.Protocol):
    """Sends one request at a time and receives its response; nothing here waits.

    It owns the transport and the callback; its backlog owns the unparsed bytes, and its reader the
    incoming response.
    """

    def __init__(self, keeper: ConnectionOwner) -> None:
        self._keeper = keeper
        self.name = keeper.name
        self.loop = keeper.loop
        self.idle_since = 0.0
        self.transport: Transport | None = None
        self._heard: Heard | None = None
        self._unsent = False
        self._reader = ResponseReader(self)
        self._unparsed = ReceiveBuffer(self._parse, self._end)

    @property
    def usable(self) -> bool:
        """Whether it seems to be open."""
        return self.transport is not None and not self.transport.is_closing()

    @property
    def silent(self) -> bool:
        """Whether the server closed it without sending a byte."""
        return self.transport is None and not self._reader.unseen

    def send(self, head: bytes, body: bytes | None, on_reply: Heard) -> None:
        """Write a request; the connection must be usable and idle."""
        transport = self.transport
        if transport is None:
            raise RuntimeError("the connection is closed")
        self._heard = on_reply
        self._reader.unseen = 0
        if body is None:
            transport.write(head + b"\r\n")
        elif len(body) <= _WHOLE:
            transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
            transport.write(body)

    def forget(self, on_reply: Heard) -> None:
        """Close the connection if `on_reply` was not called yet: its request is cancelled."""
        if self._heard is on_reply:
            self._heard = None
            self.abort()

    def abort(self) -> None:
        """Close the connection now."""
        self._fail(RequestFailed(f"the connection to {self.name} is closed", sent=True))

    def resume(self) -> None:
        self._unparsed.catch_up()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, Transport):
            self.transport = transport
            self._unparsed.open(transport)
            self._keeper.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._keeper.leave(self)
        self._unparsed.end(exc)

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        on_reply, reader = self._heard, self._reader
        if on_reply is not None and not reader.unseen and reader.response is None:
            end = data.find(_END) + len(_END)
            found = reader.heads.find(data, end)
            if found is not None and end + found[1] == len(data):
                cached = found[0]
                # removed first: `on_reply` may send the next request on this connection
                self._heard = None
                transport = self.transport
                if transport is not None and not self._unsent and not transport.is_closing():
                    self._keeper.give_back(self)
                else:
                    self._cut()
                body = data[end:]
                on_reply(
                    Response(self, cached.status, cached.fields, cached.content_type, body, 0, True)
                )
            else:
                reader.last = None
                self._unparsed.take(data)
                reader.remember(data, end)
        elif on_reply is None and reader.response is None:
            self.abort()  # no request was sent
        else:
            self._unparsed.take(data)

    def _parse(self, data: bytes | memoryview) -> None:
        reader = self._reader
        try:
            reader.feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._on_garbled(exc)
            return
        response = reader.response
        if response is None:
            if reader.unseen > HEAD:
                self._fail(_no_http(self.name, TOO_LONG))
        elif reader.is_whole:
            self._finish(response)
        else:
            self._go_on(response)

    def _end(self, exc: Exception | None) -> None:
        response = self._reader.response
        if response is None:
            if self._heard is not None:
                self._keeper.doubt()
            self._fail(_no_answer(self.name, exc))
        elif exc is None and self._reader.until_closed:
            self._finish(response)
        else:
            self._fail(_cut_off(self.name))

    def _go_on(self, response: Response) -> None:
        reader, data = self._reader, self._reader.take_body()
        if data:
            # the rest was framing: a body in tiny chunks gets no larger share
            self._unparsed.pace.useful |= 2 * len(data) >= reader.unseen
            reader.unseen = 0
        elif reader.unseen > HEAD:  # the parser keeps trailers
            self._fail(_cut_off(self.name))
            return
        response.add(data)
        if response.held > UNREAD:
            self._unparsed.fall_behind()
        if (on_reply := self._heard) is not None:
            self._heard = None
            on_reply(response)

    def _finish(self, response: Response) -> None:
        reader, on_reply = self._reader, self._heard
        data = reader.take_body()
        self._heard = reader.response = None
        clean = reader.is_whole and not self._unparsed  # else the rest would corrupt the next
        if clean and reader.keeps_alive:
            reader.begin_next()
            self._unparsed.catch_up()
            self._give_back()
        else:
            self._cut()
        response.end(data)
        if on_reply is not None:
            on_reply(response)

    def _give_back(self) -> None:
        """Return the connection to its owner, unless the request is still being sent."""
        transport = self.transport
        if transport is not None and not self._unsent and not transport.is_closing():
            self._keeper.give_back(self)
        else:
            self._cut()

    def _fail(self, fault: WireFault) -> None:
        on_reply, response = self._heard, self._reader.response
        # before the callbacks: `_cut` calls back here when the transport is lost
        self._heard = self._reader.response = None
        self._cut()
        if response is not None:
            response.end(self._reader.take_body(), fault)
        if on_reply is not None:
            on_reply(response or fault)

    def _cut(self) -> None:
        self._unparsed.clear()
        if self.transport is not None:
            self.transport.abort()

    def _on_garbled(self, exc: Exception) -> None:
        reader = self._reader
        if reader.response is None:
            self._fail(_no_http(self.name, _flaw(exc)))
        elif reader.is_whole:  # bytes after a complete response do not invalidate it
            reader.keeps_alive = False
            self._finish(reader.response)
        else:
            self._fail(_cut_off(self.name))


def _no_answer(name: str, exc: Exception | None) -> RequestFailed:
    if isinstance(exc, OSError):
        reason = exc.strerror or type(exc).__name__
        return RequestFailed(f"the connection to {name} broke: {reason}", sent=True)
    return RequestFailed(f"{name} closed the connection without an answer", sent=True)


def _cut_off(name: str) -> RequestFailed:
    return RequestFailed(f"the answer from {name} broke off", sent=True)


def _no_http(name: str, flaw: str) -> AnswerInvalid:
    return AnswerInvalid(f"the answer from {name} is not valid HTTP: {flaw}", sent=True)


def _flaw(exc: Exception) -> str:
    if isinstance(exc, httptools.HttpParserUpgrade):
        return "it switches to another protocol"
    if isinstance(exc, httptools.HttpParserCallbackError):
        return str(exc.__context__)
    reason = str(exc)
    return "Bad status line" if reason.startswith("Expected HTTP/") else reason
