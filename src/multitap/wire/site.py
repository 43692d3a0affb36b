"""One server's web address: every HTTP request to it, and how each can fail."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Self

import aiohttp
import anyio
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict
from yarl import URL

from multitap.config import HttpServer
from multitap.wire.address import joined, proxy_for, shown, stays_home, without_credentials
from multitap.wire.flight import Flight
from multitap.wire.wire import AnswerInvalid, RequestFailed, WireFault


class Challenge(NamedTuple):
    """A request was refused for lack of authority."""

    status: int
    words: str
    """Its `WWW-Authenticate` header."""
    authorization: str | None
    """What the request had to show."""


Authorize = Callable[[Challenge | None], Awaitable[Mapping[str, str]]]
"""Asked for the headers that authorise a request: before it, and once more if it is refused.

Raises `WireFault` where there are none.
"""

ClientFactory = Callable[[URL], aiohttp.ClientSession]
"""Opens the connections to one server; the seam between a wire and the network."""

JSON = "application/json"
EVENTS = "text/event-stream"

_REDIRECTS = 3
_REDIRECT = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD = frozenset({307, 308})
_KEEP_ALIVE = 4.0  # seconds; many servers close at 5, and a request must not meet that
_LINGER = 0.1  # seconds a server has to end its stream after the answer
_PATIENCE = 1.0  # seconds for what is nice to have: the text of an error, a tidy close
_SHORTEST_SECRET = 6  # characters
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Body(Payload):
    """A message on its way out, which tells its flight when the server may have seen it."""

    _autoclose = True

    def __init__(self, message: bytes, flight: Flight) -> None:
        super().__init__(message, content_type=JSON)
        self._size = len(message)
        self._message = message
        self._flight = flight

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._message.decode(encoding, errors)

    @property
    def sent(self) -> bool:
        return self._flight.sent

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._flight.sent = True
        await writer.write(self._message)


def http_client(url: URL) -> aiohttp.ClientSession:
    """A client without limits of its own: deadlines and concurrency are the caller's."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEP_ALIVE, socket_factory=_probing_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        proxy=proxy_for(url),
    )


class Site:
    """Sends requests to the server's origin, and nowhere else.

    Raises:
        RequestFailed: From every method: the request or its answer did not get through.
        AnswerInvalid: What came back is no HTTP, or over the limit.
    """

    def __init__(
        self, config: HttpServer, client_factory: ClientFactory, authorize: Authorize | None
    ) -> None:
        try:
            self.url, credentials = without_credentials(URL(config.url))
        except ValueError:
            raise RequestFailed("the url is no valid web address", sent=False) from None
        self.name = shown(self.url)
        self.limit = config.limits.message
        self.headers: Mapping[str, str] = {**credentials, **config.headers}
        self._client = client_factory(self.url)
        self._authorize = authorize
        self._granted: Mapping[str, str] = {}
        self._lingering: set[aiohttp.ClientResponse] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for response in tuple(self._lingering):
            self._dismiss(response)
        with anyio.move_on_after(_PATIENCE, shield=True):
            await self._client.close()

    async def post(self, url: URL, headers: CIMultiDict[str], body: Body) -> aiohttp.ClientResponse:
        """Send a message; `url` is of the server's origin."""
        return await self._send("POST", url, headers, body)

    async def ask(self, method: str, headers: CIMultiDict[str]) -> aiohttp.ClientResponse:
        """Send a request without a message: GET or DELETE."""
        return await self._send(method, self.url, headers, None)

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body, decompressed."""
        first = await self.chunk(response)
        if response.content.at_eof() and len(first) <= self.limit:
            return first
        chunks, size = [first], len(first)
        try:
            while size <= self.limit and (chunk := await self.chunk(response)):
                chunks.append(chunk)
                size += len(chunk)
                await asyncio.sleep(0)  # decompressed data is there without waiting for it
        except BaseException:
            response.close()
            raise
        if size > self.limit:
            response.close()
            raise self.oversized()
        return b"".join(chunks)

    async def chunk(self, response: aiohttp.ClientResponse) -> bytes:
        """What there is of the body, decompressed a bounded piece at a time; empty at its end."""
        try:
            return await response.content.readany()
        except BaseException as exc:
            response.close()
            if isinstance(exc, aiohttp.ClientError | OSError | RuntimeError):
                raise _failure(exc, self.name, sent=True) from None
            raise

    async def beginning(self, response: aiohttp.ClientResponse, size: int) -> bytes:
        """The first bytes of a body to be quoted, without what may be secret."""
        data = b""
        with anyio.move_on_after(_PATIENCE), contextlib.suppress(WireFault):
            while len(data) < size and (chunk := await self.chunk(response)):
                data += chunk
        response.release()
        return self._redacted(data[:size])

    def linger(self, response: aiohttp.ClientResponse) -> None:
        """Give the server a moment to end its stream: then the connection can be used again."""
        if response.content.is_eof():
            return
        self._lingering.add(response)
        timer = asyncio.get_running_loop().call_later(_LINGER, self._dismiss, response)
        response.content.on_eof(timer.cancel)
        response.content.on_eof(lambda: self._lingering.discard(response))

    def oversized(self) -> AnswerInvalid:
        return AnswerInvalid(
            f"the answer has more than the {self.limit:,} bytes of `limits.message`", sent=True
        )

    def _redacted(self, data: bytes) -> bytes:
        """`data` without the header values that a server may have echoed."""
        for value in (*self._granted.values(), *self.headers.values()):
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= _SHORTEST_SECRET:
                    data = data.replace(secret.encode(), b"[redacted]")
        return data

    def _dismiss(self, response: aiohttp.ClientResponse) -> None:
        self._lingering.discard(response)
        response.close()

    async def _send(
        self, method: str, url: URL, headers: CIMultiDict[str], body: Body | None
    ) -> aiohttp.ClientResponse:
        if self._authorize is None:
            return await self._reach(method, url, headers, body)
        headers = headers.copy()
        self._granted = await self._authorize(None)
        headers.update(self._granted)
        response = await self._reach(method, url, headers, body)
        challenge = _challenge(response, headers)
        if challenge is None:
            return response
        response.close()
        self._granted = await self._authorize(challenge)
        headers.update(self._granted)
        return await self._reach(method, url, headers, body)

    async def _reach(
        self, method: str, url: URL, headers: CIMultiDict[str], body: Body | None
    ) -> aiohttp.ClientResponse:
        for _ in range(_REDIRECTS + 1):
            try:
                response = await self._client.request(
                    method, url, data=body, headers=headers, allow_redirects=False
                )
            except (aiohttp.ClientError, OSError, ValueError) as exc:
                sent = body is not None and body.sent
                raise _failure(exc, self.name, sent=sent) from None
            if response.status not in _REDIRECT or "Location" not in response.headers:
                _guard(response)
                return response
            response.release()
            url = _followed(method, url, response.status, response.headers["Location"])
        raise RequestFailed(f"{self.name} redirects in circles", sent=True)


def _challenge(response: aiohttp.ClientResponse, headers: Mapping[str, str]) -> Challenge | None:
    words = response.headers.get("WWW-Authenticate", "")
    if response.status == HTTPStatus.UNAUTHORIZED or (
        response.status == HTTPStatus.FORBIDDEN and "insufficient_scope" in words
    ):
        return Challenge(response.status, words, headers.get("Authorization"))
    return None


def content_type(response: aiohttp.ClientResponse) -> str:
    """The type of the body, without parameters; empty when the server does not say."""
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _guard(response: aiohttp.ClientResponse) -> None:
    """See to it that a reader hears of a lost connection.

    After bytes that are no HTTP in the middle of a body, aiohttp closes without a word to it.
    """
    content, connection = response.content, response.connection
    if content.is_eof() or connection is None or connection.protocol is None:
        return
    closed = connection.protocol.closed
    if closed is None:
        return

    def break_off(lost: asyncio.Future[None]) -> None:
        if not lost.cancelled():
            lost.exception()  # or the loop complains that nobody asked
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("connection lost"))

    def forget() -> None:
        closed.remove_done_callback(break_off)

    closed.add_done_callback(break_off)
    content.on_eof(forget)


def _followed(method: str, url: URL, status: int, location: str) -> URL:
    target = joined(url, location)
    if target is None:
        raise RequestFailed(f"HTTP {status} redirects to no web address", sent=True)
    words = f"HTTP {status} redirects to {shown(target)}"
    if not stays_home(url, target):
        raise RequestFailed(
            f"{words}, which is another origin; if that is the right server, configure its url",
            sent=True,
        )
    if method == "POST" and status not in _KEEPS_METHOD:
        raise RequestFailed(f"{words}, which would lose the request's body", sent=True)
    return target


def _failure(exc: Exception, name: str, *, sent: bool) -> WireFault:
    match exc:
        case aiohttp.ClientConnectorCertificateError():
            why: Any = exc.certificate_error
            reason = getattr(why, "verify_message", "") or str(why)
            words = f"the TLS certificate of {name} is not trusted: {reason}"
        case aiohttp.ClientConnectorError():
            words = f"cannot connect to {name}: {exc.strerror or exc.os_error}"
        case aiohttp.ServerDisconnectedError():
            words = f"{name} closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            if "content-encoding" in str(exc):
                return AnswerInvalid(f"the answer of {name} cannot be decompressed", sent=sent)
            words = f"the answer of {name} broke off"
        case aiohttp.ClientHttpProxyError():
            words = f"the proxy does not let us through to {name}: HTTP {exc.status}"
        case aiohttp.ClientResponseError():
            flaw = exc.message.partition("\n")[0].rstrip(":")
            return AnswerInvalid(f"the answer of {name} is no valid HTTP: {flaw}", sent=sent)
        case OSError():
            words = f"the connection to {name} broke: {exc.strerror or type(exc).__name__}"
        case aiohttp.ClientError():
            words = f"the request to {name} failed: {type(exc).__name__}"
        case _:
            words = f"the request to {name} failed: {exc}"
    return RequestFailed(words, sent=sent)


def _probing_socket(address: Any) -> socket.socket:
    """A socket that notices when its peer is gone without a word, however long it waits."""
    made = socket.socket(address[0], address[1], address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        if (number := getattr(socket, option, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, number, value)
    return made
