"""The head of a request, and the response: its head, and its body as it arrives."""

import asyncio
import re
import zlib
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Protocol

import msgspec
from yarl import URL

from multitap.errors import AnswerInvalid, RequestFailed, WireFault

Headers = Mapping[str, str]

DEFAULTS: Headers = {"User-Agent": "multitap", "Accept-Encoding": "gzip, deflate"}

# RFC 9110; a line break in a value would begin another header, or another request
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\0\r\n]*")
_TARGET = re.compile(r"[!-~]+")
_OURS = frozenset({"content-length", "transfer-encoding"})
"""Framing headers, which are derived from the message."""


def merge(*layers: Headers) -> dict[str, str]:
    """Merge headers; later ones override earlier ones, in any case."""
    spelled: dict[str, str] = {}
    result: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.items():
            result[spelled.setdefault(name.lower(), name)] = value
    return result


def without(headers: Headers, name: str) -> dict[str, str]:
    """`headers` without one of them."""
    return {key: value for key, value in headers.items() if key.lower() != name.lower()}


def encode_head(method: str, url: URL, headers: Headers, *, proxied: bool = False) -> bytes:
    """The head of a request, without its own headers and its length.

    Raises:
        RequestFailed: The URL or a header contains a line break.
    """
    target = f"{url.scheme}://{url.host_port_subcomponent}" if proxied else ""
    target += url.raw_path_qs
    if not _TARGET.fullmatch(target):
        raise RequestFailed("the url has characters that are not allowed in a request", sent=False)
    host = {"Host": url.host_port_subcomponent or ""}
    return f"{method} {target} HTTP/1.1\r\n".encode() + lines(merge(host, headers))


def lines(headers: Headers) -> bytes:
    """All headers but the framing ones, one per line.

    Raises:
        RequestFailed: See `line`.
    """
    pairs = (pair for pair in headers.items() if pair[0].lower() not in _OURS)
    return b"".join(starmap(line, pairs))


def line(name: str, value: str) -> bytes:
    """One header.

    Raises:
        RequestFailed: Name or value is not valid; the value may be secret and is not shown.
    """
    if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
        try:
            return f"{name}: {value}\r\n".encode()
        except UnicodeEncodeError:
            pass
    raise RequestFailed(
        f"the header {name!r} has characters that are not allowed in a header", sent=False
    )


_PIECE = 64 * 1024  # bytes of output at a time: compressed data may expand a thousandfold
_SLICE = 16 * 1024  # bytes of input at a time: the rest after a member is copied for each
# the window bits of zlib: 16 more for the header of gzip, and negative ones for no header
_GZIP = 31
_DEFLATE = 15
_RAW = -15
_ZLIB = 8  # the method in the first byte of a zlib header; many servers leave the header out


class _Member(Protocol):
    """The decompressor of one compressed stream; a body may have several."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Decompressor:
    """Decompresses one body.

    Raises:
        ValueError: We did not ask for this encoding.
        zlib.error: From `piece`: the body is damaged.
    """

    def __init__(self, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise ValueError(encoding)
        self._bits = _DEFLATE if encoding == "deflate" else _GZIP
        self._member: _Member | None = None
        self._input = memoryview(b"")
        self._tail = b""

    @property
    def hungry(self) -> bool:
        """Whether it needs more input."""
        return not self._tail and not self._input

    def feed(self, data: bytes) -> None:
        """Add the next bytes; only when it is `hungry`."""
        self._input = memoryview(data)

    def piece(self) -> bytes:
        """The next piece of output; may be empty."""
        if not self._tail:
            self._tail = bytes(self._input[:_SLICE])
            self._input = self._input[_SLICE:]
        member = self._member or self._begin()
        if member is None:
            return b""
        plain = member.decompress(self._tail, _PIECE)
        self._tail = member.unconsumed_tail
        if member.eof:
            self._tail = member.unused_data
            self._member = None
        return plain

    def _begin(self) -> _Member | None:
        """Begin the next member; some servers pad with zeros."""
        if self._bits == _GZIP:
            self._tail = self._tail.lstrip(b"\0")
        if not self._tail:
            return None
        if self._bits == _DEFLATE and self._tail[0] & 0xF != _ZLIB:
            self._bits = _RAW
        self._member = zlib.decompressobj(self._bits)
        return self._member


UNREAD = 256 * 1024
"""Bytes of a body that may wait for the reader; beyond that, reading pauses."""


class BodySource(Protocol):
    """The connection that a body arrives on."""

    name: str
    """The server's name for messages."""
    loop: asyncio.AbstractEventLoop

    def resume(self) -> None:
        """Continue reading: the waiting bytes have been taken."""
        ...

    def abort(self) -> None:
        """Close the connection."""
        ...


class Response(msgspec.Struct, eq=False):
    """One response, created when its head has arrived.

    The connection is returned to the pool once the body is complete, read or not.

    Raises:
        RequestFailed: From `chunk`: the body broke off.
        AnswerInvalid: From `chunk`: the body cannot be decompressed.
    """

    source: BodySource
    status: int
    fields: dict[bytes, bytes]
    """Its headers, by their names in lower case."""
    content_type: str
    """The type of the body, without parameters; empty when the server does not say."""
    body: bytes | None = None
    """The whole body, if it arrived at once and is not compressed."""
    held: int = 0
    """Bytes that wait to be read."""
    ended: bool = False
    """Whether the body is complete or broken off."""
    _unread: list[bytes] = []
    _news: Callable[[], None] | None = None
    _fault: WireFault | None = None
    _decoder: Decompressor | None = None

    @property
    def ok(self) -> bool:
        return self.status < 400  # noqa: PLR2004

    def header(self, name: str) -> str | None:
        """The first header of this name."""
        value = self.fields.get(name.lower().encode())
        return None if value is None else value.decode("utf-8", "replace").strip()

    def whole(self) -> bytes | None:
        """Take the whole body, if it is complete and not compressed."""
        if self.ended and self._fault is None and b"content-encoding" not in self.fields:
            return self._take()
        return None

    def here(self) -> bytes | None:
        """Take the bytes that have arrived; None if the body is compressed."""
        return None if self.is_compressed else self._take()

    @property
    def is_compressed(self) -> bool:
        return b"content-encoding" in self.fields

    async def chunk(self) -> bytes:
        """Wait for the next bytes of the body, decompressed in bounded pieces; empty at its end."""
        try:
            decoder = self._decoder or self._begin_decoding()
            if decoder is None:
                return await self._wait_arrived()
            return await self._decompress(decoder)
        # a reader that is cancelled here does not return, and the connection would wait for it
        except BaseException:
            self.close()
            raise

    def heed(self, on_change: Callable[[], None] | None) -> None:
        """Call `on_change` once, when there is more of the body, or its end."""
        self._news = on_change

    def close(self) -> None:
        """Discard the response; if its body is incomplete, the connection is closed."""
        if not self.ended:
            self.source.abort()

    def add(self, data: bytes) -> None:
        """Add received bytes of the body."""
        if data:
            self._unread.append(data)
            self.held += len(data)
        if (on_change := self._news) is not None:
            self._news = None
            on_change()

    def end(self, data: bytes, fault: WireFault | None = None) -> None:
        """End the body, with its last bytes or with a fault."""
        self.ended = True
        self._fault = fault
        self.add(data)

    def _take(self) -> bytes:
        if self.body is not None:
            data, self.body = self.body, None
            return data
        unread = self._unread
        data = unread[0] if len(unread) == 1 else b"".join(unread)
        unread.clear()
        paused, self.held = self.held > UNREAD, 0
        if paused and not self.ended:
            self.source.resume()
        return data

    async def _wait_arrived(self) -> bytes:
        while not self._unread and self.body is None:
            if self._fault is not None:
                raise self._fault
            if self.ended:
                return b""
            await self._more()
        return self._take()

    async def _more(self) -> None:
        more = self.source.loop.create_future()
        # the future of a cancelled reader is already done
        self._news = lambda: None if more.done() else more.set_result(None)
        try:
            await more
        finally:
            self._news = None

    def _begin_decoding(self) -> Decompressor | None:
        encoding = self.fields.get(b"content-encoding", b"identity").strip().lower()
        if encoding in (b"identity", b""):
            return None
        try:
            self._decoder = Decompressor(encoding.decode("latin-1"))
        except ValueError:
            raise self._undecodable() from None
        return self._decoder

    async def _decompress(self, decoder: Decompressor) -> bytes:
        while True:
            if decoder.hungry:
                data = await self._wait_arrived()
                if not data:
                    return b""
                decoder.feed(data)
            else:
                await asyncio.sleep(0)  # no need to wait
            try:
                plain = decoder.piece()
            except zlib.error:
                raise self._undecodable() from None
            if plain:
                return plain

    def _undecodable(self) -> AnswerInvalid:
        message = f"the answer from {self.source.name} cannot be decompressed"
        return AnswerInvalid(message, sent=True)


def content_type(fields: dict[bytes, bytes]) -> str:
    """The type of a body, without parameters; empty when the server does not say."""
    value = fields.get(b"content-type", b"")
    return value.partition(b";")[0].strip().lower().decode("utf-8", "replace")
