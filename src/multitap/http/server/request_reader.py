"""Parses the bytes of one connection into requests, within limits."""

import logging
from collections.abc import Callable
from io import BytesIO
from time import perf_counter

import httptools

from multitap.http.server.access import Rejected
from multitap.http.server.connections import Connections
from multitap.http.server.http_request import Headers, HttpRequest, RequestHead
from multitap.http.server.peer_user import Peer
from multitap.http.server.responder import Responder

logger = logging.getLogger(__name__)

SLICE = 4096
"""Bytes parsed at a time, which limits the work to about a hundred requests."""
_HEADS = 16
"""Heads that a connection remembers: requests differ in tool names and lengths."""
_ODD = frozenset({b"connection", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that need special treatment."""
_DROPPED = 1024 * 1024
"""Bytes that a rejected client may still send, besides its announced body."""
_BAD_REQUEST, _TOO_LARGE, _HEAD_TOO_LARGE, _FAILED = 400, 413, 431, 500


def _collecting(pairs: Headers) -> Callable[[bytes, bytes], None]:
    """The callback for headers; short, because it is called for each one."""
    add = pairs.append

    def on_header(name: bytes, value: bytes) -> None:
        add((name.lower(), value.strip()))

    return on_header


class RequestReader:
    """Owns the incoming request, and the unparsed bytes.

    The parser refers back to it until it is closed.
    """

    __slots__ = (
        "__weakref__", "_arriving", "_body", "_connections", "_incoming", "_limits", "_overhead",
        "_parser", "_responder", "_size", "_url", "droppable", "expected", "expects", "fed",
        "heads", "holder", "is_deaf", "on_header", "peer", "unparsed",
    )  # fmt: skip

    def __init__(self, connections: Connections, responder: Responder) -> None:
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
        self.heads: dict[bytes, RequestHead] = {}
        """The heads of the last plain requests, by their exact bytes."""
        self.unparsed = b""
        self.is_deaf = False
        """Whether further bytes are dropped."""
        self.droppable = _DROPPED
        """Bytes that may still be dropped before the connection is closed."""
        self._begin()

    def _begin(self) -> None:
        """Prepare for the next request."""
        self._url = b""
        self._arriving.clear()
        self._incoming: RequestHead | None = None
        self._body: bytes | BytesIO = b""
        self._size = 0
        self.fed = 0
        self._overhead = 0
        self.expected = 0
        self.expects = False

    @property
    def arriving(self) -> int:
        """Bytes kept of the incomplete request."""
        kept = self._incoming is not None and self._incoming.keeps_body
        return self._overhead + (self._size if kept else 0)

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

    @property
    def is_reading(self) -> bool:
        """Whether a request has begun to arrive."""
        return bool(self._overhead or self._url or self._incoming)

    def remember(self, text: bytes, end: int) -> None:
        """Remember a head by its exact bytes, if its request is complete and plain."""
        queue = self._responder.queue
        if len(queue) != 1 or self.fed or self.is_deaf:
            return
        head = queue[0].head
        is_plain = head.edition is not None and not head.headers.keys() & _ODD
        if end + head.length == len(text) and head.handler and is_plain:
            if len(self.heads) >= _HEADS:
                self.heads.clear()
            self.heads[text[:end]] = head

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
            self._measure()

    def _measure(self) -> None:
        """Limit what the parser buffers: incomplete headers, the framing of a body."""
        limits, denied = self._limits, None
        if len(self._arriving) > limits.fields:
            denied = Rejected(
                _HEAD_TOO_LARGE, f"a request has at most {limits.fields} header fields"
            )
        elif self._overhead > limits.head:
            denied = Rejected(
                _HEAD_TOO_LARGE, f"the head of a request has at most {limits.head} bytes"
            )
        elif self.fed > limits.head + 2 * limits.body:
            denied = Rejected(_TOO_LARGE, "the request is too long")
        if denied is not None:
            self.turn_away(denied)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        parser, limits = self._parser, self._limits
        if parser is None:
            return
        pairs = self._arriving.copy()
        head = RequestHead(parser.get_method(), self._url, pairs, peer=self.peer)
        head.edition = self._connections.edition
        headers = head.headers
        if b"connection" in headers or not parser.should_keep_alive():  # a known length
            head.speaks_chunks = parser.get_http_version() == "1.1"
        self._incoming = head
        if len(pairs) > limits.fields:
            words = f"a request has at most {limits.fields} header fields"
            self._stop_parsing(Rejected(_HEAD_TOO_LARGE, words))
        try:
            denied = self._connections.app.admit(head)
        except Exception:  # boundary: answered as an error
            logger.exception("a request could not be admitted")
            denied = Rejected(_FAILED, "Internal Server Error")
        if denied is not None:
            self._stop_parsing(denied)
        self.holder = head.holder
        length = int(headers.get(b"content-length", b"0"))
        if length > limits.body:
            self._stop_parsing(Rejected(_TOO_LARGE, f"a request has at most {limits.body} bytes"))
        if (length or b"transfer-encoding" in headers) and parser.should_upgrade():
            # the parser would treat its body as the next request
            self._stop_parsing(Rejected(_BAD_REQUEST, "protocol upgrades are not supported"))
        self.expected = head.length = length
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self.expects = head.speaks_chunks

    def on_body(self, body: bytes) -> None:
        first = not self._size
        self._overhead = 0
        self.expects = False
        self._size += len(body)
        if self.expected:
            self.expected -= len(body)
        if self._size > self._limits.body:
            words = f"a request has at most {self._limits.body} bytes"
            self._stop_parsing(Rejected(_TOO_LARGE, words))
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
            self._connections.tasks, writer=self._responder, head=head, body=whole
        )
        http_request.keep_alive = parser.should_keep_alive()
        self.is_deaf = not http_request.keep_alive
        self._begin()
        self._responder.add(http_request)

    def _stop_parsing(self, denied: Rejected) -> None:
        """Reject the incoming request from within the parser.

        Raises:
            HttpParserError: Always, to stop the parser.
        """
        self.turn_away(denied)
        raise httptools.HttpParserError

    def turn_away(self, denied: Rejected) -> None:
        """Reject the incoming request, and read no further ones.

        Requests before it are answered first. Its bytes are dropped.
        """
        head = self._incoming or RequestHead(b"", b"", [], peer=self.peer)
        http_request = HttpRequest(
            self._connections.tasks, writer=self._responder, head=head, body=b""
        )
        http_request.refusal = denied
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
        self.heads.clear()
        self.peer.close()
        self._begin()
