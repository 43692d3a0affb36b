"""An HTTP response: its head, and its body as it arrives."""

import asyncio
import zlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from multitap.faults import AnswerInvalid, WireFault
from multitap.http.client.decompression import Decompressor

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
        return None if b"content-encoding" in self.fields else self._take()

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

    def heed(self, news: Callable[[], None] | None) -> None:
        """Call `news` once, when there is more of the body, or its end."""
        self._news = news

    def close(self) -> None:
        """Discard the response; if its body is incomplete, the connection is closed."""
        if not self.ended:
            self.source.abort()

    def add(self, data: bytes) -> None:
        """Add received bytes of the body."""
        if data:
            self._unread.append(data)
            self.held += len(data)
        if (news := self._news) is not None:
            self._news = None
            news()

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
        words = f"the answer from {self.source.name} cannot be decompressed"
        return AnswerInvalid(words, sent=True)


def content_type(fields: dict[bytes, bytes]) -> str:
    """The type of a body, without parameters; empty when the server does not say."""
    value = fields.get(b"content-type", b"")
    return value.partition(b";")[0].strip().lower().decode("utf-8", "replace")
