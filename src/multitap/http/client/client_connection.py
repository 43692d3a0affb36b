"""One HTTP/1.1 client connection: requests out, responses in, one after the other."""

import asyncio
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import httptools

from multitap.faults import AnswerInvalid, RequestFailed, WireFault
from multitap.http.client.response import UNREAD, Response
from multitap.http.client.response_reader import HEAD, TOO_LONG, ResponseReader
from multitap.http.client.unparsed_bytes import UnparsedBytes

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
        self._unparsed = UnparsedBytes(self._parse, self._end)

    @property
    def usable(self) -> bool:
        """Whether it seems to be open."""
        return self.transport is not None and not self.transport.is_closing()

    @property
    def silent(self) -> bool:
        """Whether the server closed it without sending a byte."""
        return self.transport is None and not self._reader.unseen

    def send(self, head: bytes, body: bytes | None, heard: Heard) -> None:
        """Write a request; the connection must be usable and idle."""
        transport = self.transport
        if transport is None:
            raise RuntimeError("the connection is closed")
        self._heard = heard
        self._reader.unseen = 0
        if body is None:
            transport.write(head + b"\r\n")
        elif len(body) <= _WHOLE:
            transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
            transport.write(body)

    def forget(self, heard: Heard) -> None:
        """Close the connection if `heard` has not been called yet: its request is cancelled."""
        if self._heard is heard:
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
        heard, reader = self._heard, self._reader
        if heard is not None and not reader.unseen and reader.response is None:
            end = data.find(_END) + len(_END)
            known = reader.heads.get(data[:end])
            if known is not None and end + known.length == len(data):
                # removed first: `heard` may send the next request on this connection
                self._heard = None
                transport = self.transport
                if transport is not None and not self._unsent and not transport.is_closing():
                    self._keeper.give_back(self)
                else:
                    self._cut()
                body = data[end:]
                heard(Response(self, known.status, known.fields, known.content_type, body, 0, True))
            else:
                reader.last = None
                self._unparsed.take(data)
                reader.remember(data, end)
        elif heard is None and reader.response is None:
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
        if (heard := self._heard) is not None:
            self._heard = None
            heard(response)

    def _finish(self, response: Response) -> None:
        reader, heard = self._reader, self._heard
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
        if heard is not None:
            heard(response)

    def _give_back(self) -> None:
        """Return the connection to its owner, unless the request is still being sent."""
        transport = self.transport
        if transport is not None and not self._unsent and not transport.is_closing():
            self._keeper.give_back(self)
        else:
            self._cut()

    def _fail(self, fault: WireFault) -> None:
        heard, response = self._heard, self._reader.response
        # before the callbacks: `_cut` calls back here when the transport is lost
        self._heard = self._reader.response = None
        self._cut()
        if response is not None:
            response.end(self._reader.take_body(), fault)
        if heard is not None:
            heard(response or fault)

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
    words = str(exc)
    return "Bad status line" if words.startswith("Expected HTTP/") else words
