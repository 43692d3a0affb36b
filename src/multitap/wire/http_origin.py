"""Sends HTTP requests to one origin, and translates failures."""

import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol, Self

import anyio
from yarl import URL

from multitap.config.models import HttpServer
from multitap.config.secrets import in_headers
from multitap.errors import AnswerInvalid, RequestFailed, WireFault
from multitap.http.client.client import HttpClient, Lingering, PreparedHead
from multitap.http.client.connection import ClientConnection
from multitap.http.client.events import ChunkBuffer
from multitap.http.client.messages import Headers, Response, merge
from multitap.http.client.route import join_url, show_url, stays_home, without_credentials
from multitap.wire.pending import PendingRequest


class Challenge(NamedTuple):
    """A request was refused for lack of authorization."""

    status: int
    header: str
    """Its `WWW-Authenticate`."""
    authorization: str | None
    """The `Authorization` header of the request."""
    nonce: str | None = None
    """The nonce for the next proof of possession."""

    @property
    def wants_nonce(self) -> bool:
        """Whether only the nonce was missing or wrong."""
        return "use_dpop_nonce" in self.header


class Authorizer(Protocol):
    """Provides the headers that authorize requests to one server.

    Raises:
        WireFault: From every method that waits: there are none now.
    """

    standing: Headers | None
    """The headers for all requests, while they are constant; None: call `ready`."""

    @property
    def ready(self) -> Headers | None:
        """The headers for the next request; None if `headers` has to be awaited."""
        ...

    async def headers(self, method: str, url: URL) -> Headers:
        """The headers for one request."""
        ...

    async def answer(self, challenge: Challenge, method: str, url: URL, *, waits: bool) -> Headers:
        """The headers for a refused request; with `waits`, it may wait for a person."""
        ...

    def on_response(self, response: Response) -> None:
        """Called with every response to a request that had its own headers."""


ClientFactory = Callable[[URL], HttpClient]
"""Opens the connections to one server; the seam between a wire and the network."""

JSON = "application/json"
EVENTS = "text/event-stream"

_REDIRECTS = 3
_ANSWERS = 3  # answers to a wrong nonce, to another refusal, and to a new nonce after that
REDIRECT = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD = frozenset({307, 308})
_PATIENCE = 1.0  # seconds to read the text of an error, which is optional
_MOST_KEPT = 256
_NONE: Headers = {}


class _OutgoingRequest(NamedTuple):
    """One request before it is encoded."""

    method: str
    url: URL
    headers: Headers
    extra: Headers
    message: bytes | None
    pending: PendingRequest | None
    in_order: bool = False
    """Whether it must not arrive before earlier requests."""


class _CachedHead(NamedTuple):
    """A prepared head, reused while headers are the same."""

    url: URL
    headers: Headers
    extra: Headers
    head: PreparedHead


Idle = tuple[ClientConnection, bytes]
"""An idle connection, and the head to send on it."""


class HttpOrigin:
    """Sends requests to the server's origin, and nowhere else.

    Raises:
        RequestFailed: From every method: the request or its response was lost.
        AnswerInvalid: The response is not valid HTTP, or over the limit.
    """

    def __init__(
        self, config: HttpServer, client_factory: ClientFactory, authorizer: Authorizer | None
    ) -> None:
        try:
            self.url, credentials = without_credentials(URL(config.url))
            self.name = show_url(self.url)
        except ValueError:
            raise RequestFailed("the url is not a valid web address", sent=False) from None
        self.limit = config.limits.message
        self.redact = config.redact
        self.redact.learn(in_headers(credentials))
        self.junk_limit = config.limits.junk
        self.headers: Mapping[str, str] = {**credentials, **config.headers}
        self._client = client_factory(self.url)
        self._authorizer = authorizer
        self._granted: Headers = _NONE
        self._lingering = Lingering(self._client.loop)
        self._grant: tuple[Headers, Headers] | None = None
        self._kept: dict[tuple[int, int], _CachedHead] = {}
        self._redirected = False
        self.is_established = False
        """Whether the handshake is done: from then on requests wait for a person who logs in."""
        self.linger = self._lingering.add

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._lingering.close()
        await self._client.aclose()

    async def post(
        self,
        url: URL,
        headers: Headers,
        extra: Headers | None,
        message: bytes,
        pending: PendingRequest,
        *,
        in_order: bool = False,
    ) -> Response:
        """Send a message.

        Args:
            url: A URL on the server's origin.
            headers: Those of all messages, not changed but replaced where they differ.
            extra: Those of this one, which come before the others.
            message: The message.
            pending: Called when the server may have seen it.
            in_order: Whether it must not arrive before earlier messages.
        """
        return await self._send(
            _OutgoingRequest("POST", url, headers, extra or _NONE, message, pending, in_order)
        )

    def idle(self, url: URL, headers: Headers, extra: Headers | None) -> Idle | None:
        """An idle connection, and the head to send on it.

        None if there is none, or if more than one request may be needed.
        """
        # it may need a second request, and so a task
        if self._redirected:
            return None
        extra = extra or _NONE
        if (authorizer := self._authorizer) is not None:
            granted = authorizer.standing
            if granted is None and (granted := authorizer.ready) is None:
                return None
            if granted:
                headers = self._with(headers, granted)
        # by identity: headers are replaced, never changed; what is kept holds them, so ids stay
        # theirs
        cached = self._kept.get((id(headers), id(extra)))
        if cached is not None and cached.url is url:
            head = cached.head
        else:
            head = self._head("POST", url, headers, extra)
        connection = head.pool.take()
        return None if connection is None else (connection, head.text)

    async def ask(self, method: str, headers: Headers) -> Response:
        """Send a request without a message: GET or DELETE."""
        return await self._send(_OutgoingRequest(method, self.url, headers, _NONE, None, None))

    def whole(self, response: Response) -> bytes | None:
        """The whole body if it is here, and not compressed."""
        if (body := response.whole()) is not None and len(body) > self.limit:
            body = None  # or the error would keep the response alive
            raise self.oversized_answer()
        return body

    async def read(self, response: Response) -> bytes:
        """The whole body, decompressed."""
        if (body := self.whole(response)) is not None:
            return body
        pieces, size = ChunkBuffer(), 0
        try:
            while size <= self.limit and (chunk := await response.chunk()):
                pieces.add(chunk)
                size += len(chunk)
            if size > self.limit:
                response.close()
                raise self.oversized_answer()
            return pieces.join()
        finally:
            pieces.clear()  # or the error would keep the response alive

    async def beginning(self, response: Response, size: int) -> bytes:
        """The first bytes of a body without secrets, for error messages."""
        data = b""
        with anyio.move_on_after(_PATIENCE), contextlib.suppress(WireFault):
            while len(data) < size and (chunk := await response.chunk()):
                data += chunk
        response.close()
        return self.redact(data[:size].decode("utf-8", "replace")).encode()

    def oversized_answer(self) -> AnswerInvalid:
        return AnswerInvalid(
            f"the answer has more than the {self.limit:,} bytes of `limits.message`", sent=True
        )

    def _head(self, method: str, url: URL, headers: Headers, extra: Headers) -> PreparedHead:
        """The head of a request, cached while its headers are the same objects."""
        key = (id(headers), id(extra))
        cached = self._kept.get(key) if method == "POST" else None
        if cached is not None and cached.url is url:
            return cached.head
        head = self._client.head(method, url, merge(headers, extra) if extra else headers)
        if method == "POST":
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = _CachedHead(url, headers, extra, head)
        return head

    async def _send(self, asking: _OutgoingRequest) -> Response:
        authorizer = self._authorizer
        if authorizer is None:
            return await self._reach(asking)
        granted = await authorizer.headers(asking.method, asking.url)
        request = asking._replace(headers=self._with(asking.headers, granted))
        return await self._convince(authorizer, asking, request, await self._reach(request))

    async def pursue(
        self,
        first: Response,
        url: URL,
        headers: Headers,
        *,
        extra: Headers | None,
        message: bytes,
        pending: PendingRequest,
        head: bytes,
    ) -> Response:
        """Send a message again that was redirected, or refused without new authorization.

        See `post`; `head` is the one that it was sent with.
        """
        asking = _OutgoingRequest("POST", url, headers, extra or _NONE, message, pending)
        # the token that was refused: another request may have got a new one meanwhile
        granted = {"Authorization": sent} if (sent := _authorization_in(head)) else _NONE
        request = asking._replace(headers=merge(headers, granted))
        response = await self._reach(request, first)
        if (authorizer := self._authorizer) is None:
            return response
        return await self._convince(authorizer, asking, request, response)

    async def _convince(
        self,
        authorizer: Authorizer,
        asking: _OutgoingRequest,
        request: _OutgoingRequest,
        response: Response,
    ) -> Response:
        convinced = False
        for _ in range(_ANSWERS):
            authorizer.on_response(response)
            challenge = _challenge(response, request)
            if challenge is None or (convinced and not challenge.wants_nonce):
                break
            convinced = convinced or not challenge.wants_nonce
            response.close()
            granted = await authorizer.answer(
                challenge, asking.method, asking.url, waits=self.is_established
            )
            request = asking._replace(headers=self._with(asking.headers, granted))
            response = await self._reach(request)
        return response

    def _with(self, headers: Headers, granted: Headers) -> Headers:
        """Merge headers with the authorization; the same object for the same inputs."""
        if not granted:
            return headers
        if self._grant is None or self._grant[0] is not headers or granted is not self._granted:
            self._grant = (headers, merge(headers, granted))
        self._granted = granted
        return self._grant[1]

    async def _reach(self, asking: _OutgoingRequest, response: Response | None = None) -> Response:
        """The response after all redirects; `response` is the first one, if it is here already."""
        for _ in range(_REDIRECTS + 1):
            if response is None:
                head = self._head(asking.method, asking.url, asking.headers, asking.extra)
                response = await self._client.send(
                    head, asking.message, asking.pending, in_order=asking.in_order
                )
            if response.status not in REDIRECT:
                return response
            location = response.header("Location")
            if location is None:
                return response
            self.linger(response)
            self._redirected = True
            target = _follow(asking.method, asking.url, response.status, location)
            asking, response = asking._replace(url=target), None
        raise RequestFailed(f"{self.name} redirects in a loop", sent=True)


def _authorization_in(head: bytes) -> str:
    """The `Authorization` in an encoded head; empty if it has none."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"authorization":
            return value.strip().decode("latin-1")
    return ""


def _challenge(response: Response, request: _OutgoingRequest) -> Challenge | None:
    challenge = response.header("WWW-Authenticate") or ""
    if response.status == HTTPStatus.UNAUTHORIZED or (
        response.status == HTTPStatus.FORBIDDEN and "insufficient_scope" in challenge
    ):
        authorization = merge({"Authorization": ""}, request.headers, request.extra)[
            "Authorization"
        ]
        return Challenge(
            response.status, challenge, authorization or None, response.header("DPoP-Nonce")
        )
    return None


def _follow(method: str, url: URL, status: int, location: str) -> URL:
    target = join_url(url, location)
    if target is None:
        raise RequestFailed(f"HTTP {status} redirects to an invalid address", sent=True)
    reason = f"HTTP {status} redirects to {show_url(target)}"
    # our headers may hold credentials, and go nowhere else
    if not stays_home(url, target):
        raise RequestFailed(
            f"{reason}, which is another origin; if that is the right server, configure its url",
            sent=True,
        )
    # by custom, clients send a GET there
    if method == "POST" and status not in _KEEPS_METHOD:
        raise RequestFailed(f"{reason}, which would lose the request's body", sent=True)
    return target
