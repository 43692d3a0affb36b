"""Parses the bytes of one connection into responses."""

from itertools import chain
from typing import NamedTuple

import httptools

from multitap.http.client.response import BodySource, Response, content_type

HEAD = 64 * 1024
"""Bytes of the head of a response, or of the framing of its body."""
TOO_LONG = f"its head has more than {HEAD:,} bytes"
_FIELDS = 256  # headers of one answer
_FINAL = 200  # lower statuses are informational
_HEADS = 32
"""Heads that a connection remembers: many responses differ only in length or date."""
_ODD = frozenset({b"connection", b"content-encoding", b"transfer-encoding", b"upgrade"})
"""Headers that need special treatment."""


class KnownHead(NamedTuple):
    """The parsed head of a plain response."""

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
        self.heads: dict[bytes, KnownHead] = {}
        """The heads of the last plain responses, by their exact bytes."""
        self.last: KnownHead | None = None
        """The head of the response that has just ended."""
        self._plain: KnownHead | None = None
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
        """Remember a head by its exact bytes, if a plain response arrived at once."""
        last, self.last = self.last, None
        if last is not None and last.length == len(data) - end:
            if len(self.heads) >= _HEADS:
                self.heads.clear()
            self.heads[data[:end]] = last

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
            self._plain = KnownHead(status, lowered, kind, int(length)) if is_plain else None
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
