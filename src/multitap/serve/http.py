"""The gateway over HTTP: Streamable HTTP in both eras, legacy SSE, health and metrics."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import anyio
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from msgspec import Raw

from multitap.serve import faults
from multitap.serve.access import Access, Admitted, Denied
from multitap.serve.admission import (
    MODERN,
    HeaderMap,
    admit,
    admit_arguments,
    claims_modern,
)
from multitap.serve.dialogue import Dialogue
from multitap.serve.gateway import Gateway
from multitap.serve.message import (
    UNPARSABLE,
    Message,
    Params,
    Refused,
    answer,
    parse,
    parse_params,
    refusal,
)
from multitap.serve.peer import Peer
from multitap.serve.reply import STREAM, Headers, Reply, Send, plain
from multitap.serve.sessions import Session, Sessions
from multitap.serve.turn import Turn

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BODY = 32 * 1024 * 1024
"""Bytes of one request."""
BODY_TIMEOUT = 30.0
"""Seconds in which a request has to arrive in full."""
GONE = "multitap.gone"
"""Where in the scope is what to do when the client disconnects."""

_SESSION = b"mcp-session-id"
_NO_ID = Raw(b"")


class _Nowhere:
    """Clients of the stateless era have no way to them but their own requests."""

    def send(self, message: bytes) -> bool:  # noqa: ARG002 - an `Outlet`
        return False


class HttpFront:
    """An ASGI application.

    Args:
        gateway: Who knows the answers.
        access: Who may ask.
        profile: What clients see that name no other.
    """

    def __init__(self, gateway: Gateway, access: Access, *, profile: str | None = None) -> None:
        self._gateway = gateway
        self._access = access
        self._profile = profile
        self.sessions = Sessions(gateway)
        self._stateless: dict[tuple[str, str | None], Peer] = {}
        self._routes: dict[tuple[str, str], Callable[[_Visit], Awaitable[None]]] = {
            ("POST", "/mcp"): self._post,
            ("GET", "/mcp"): self._listen,
            ("DELETE", "/mcp"): self._delete,
            ("GET", "/sse"): self._sse,
            ("POST", "/messages"): self._sse_message,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
        }
        self._paths = frozenset(path for _, path in self._routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        visit = _Visit(scope, receive, send)
        admitted = self._access.decide(visit.headers)
        if isinstance(admitted, Denied):
            await plain(send, admitted.status, admitted.words, extra=_challenge(admitted))
            return
        visit.admitted = admitted
        handler = self._routes.get((scope["method"], visit.path))
        if handler is not None:
            await handler(visit)
        elif visit.path in self._paths:
            allowed = ", ".join(sorted(m for m, path in self._routes if path == visit.path))
            await plain(send, 405, extra=[(b"allow", allowed.encode())])
        else:
            await plain(send, 404, "clients speak to /mcp, older ones to /sse")

    async def _post(self, visit: "_Visit") -> None:
        body = await visit.body()
        if body is None:
            return
        try:
            message = parse(body)
        except UNPARSABLE as exc:
            await visit.refuse(_NO_ID, _unreadable(body, exc), status=400)
            return
        if not message.is_sound:
            words = "Body must be a single JSON-RPC request or notification object"
            await visit.refuse(_NO_ID, Refused(faults.INVALID_REQUEST, words), status=400)
        elif claims_modern(visit.headers, body):
            await self._post_modern(visit, message)
        else:
            await self._post_legacy(visit, message)

    async def _post_modern(self, visit: "_Visit", message: Message) -> None:
        if not message.is_request:
            if message.method:
                await plain(visit.send, 202)
            else:
                words = "only requests and notifications can be posted"
                await visit.refuse(_NO_ID, Refused(faults.INVALID_REQUEST, words), status=400)
            return
        try:
            params = _params(message)
            admit(message, params, visit.pairs, visit.headers)
            peer = self._stateless_peer(visit)
            view = self._gateway.view(peer.profile)
            if message.method == "tools/call" and view.wants_headers(params.name):
                admit_arguments(view.tools[params.name], params, visit.pairs)
        except Refused as exc:
            await visit.refuse(message.id, exc)
            return
        if message.method == "subscriptions/listen" and not visit.streams:
            await plain(visit.send, 406, "a stream of changes needs Accept: text/event-stream")
            return
        await self._answer(visit, peer, message, params, modern=True)

    def _stateless_peer(self, visit: "_Visit") -> Peer:
        key = (visit.admitted.principal, self._chosen(visit))
        if (peer := self._stateless.get(key)) is None:
            peer = self._stateless[key] = Peer(_Nowhere(), principal=key[0], profile=key[1])
        return peer

    async def _post_legacy(self, visit: "_Visit", message: Message) -> None:
        if message.method == "initialize" and message.is_request:
            await self._initialize(visit, message)
            return
        session = await self._session(visit, message.id)
        if session is None:
            return
        if message.is_request:
            await self._answer_in_session(visit, session, message)
        elif message.method:
            self._gateway.notified(session.peer, message.method, message.params)
            await plain(visit.send, 202)
        else:
            session.peer.answered(message)
            await plain(visit.send, 202)

    async def _initialize(self, visit: "_Visit", message: Message) -> None:
        try:
            session = self.sessions.open(visit.admitted, self._chosen(visit))
        except Refused as exc:
            await visit.refuse(message.id, exc)
            return
        if session is None:
            await plain(visit.send, 503, "too many sessions", extra=[(b"retry-after", b"30")])
            return
        visit.extra = [(_SESSION, session.id.encode())]
        await self._answer_in_session(visit, session, message)

    async def _session(self, visit: "_Visit", request_id: Raw) -> Session | None:
        session_id = visit.headers.get(_SESSION)
        if session_id is None:
            words = "Bad Request: initialize first, then send Mcp-Session-Id"
            await visit.refuse(request_id, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        session = self.sessions.find(session_id.decode("latin-1"), visit.admitted)
        if session is None:
            words = "Session not found: initialize again"
            await visit.refuse(request_id, Refused(faults.INVALID_REQUEST, words), status=404)
        return session

    async def _answer_in_session(self, visit: "_Visit", session: Session, message: Message) -> None:
        key, scopes = bytes(message.id), session.peer.scopes
        if key in scopes:
            words = f"the id {key.decode()} is in use"
            await visit.refuse(message.id, Refused(faults.INVALID_REQUEST, words), status=400)
            return
        try:
            params = _params(message)
        except Refused as exc:
            await visit.refuse(message.id, exc)
            return
        scopes[key] = anyio.CancelScope()
        try:
            await self._answer(visit, session.peer, message, params, modern=False)
        finally:
            del scopes[key]

    async def _answer(
        self, visit: "_Visit", peer: Peer, message: Message, params: Params, *, modern: bool
    ) -> None:
        reply = Reply(visit.send, self._gateway.tasks, streams=visit.streams, extra=visit.extra)
        cancel = peer.scopes.get(bytes(message.id)) if not modern else None
        scope = cancel or anyio.CancelScope()
        visit.scope[GONE] = scope.cancel
        status = 200
        pieces: tuple[bytes | Raw, ...] = ()
        try:
            with scope:
                turn = Turn(peer, message.id, reply, params, modern=modern)
                result = await self._gateway.answer(turn, message.method, message.params)
                pieces = answer(message.id, result)
        except Refused as exc:
            status = ERROR_CODE_HTTP_STATUS.get(exc.code, 200) if modern else 200
            pieces = (refusal(message.id, exc),)
        except Exception:  # boundary: one request is its own problem
            logger.exception("%s failed", message.method)
            pieces = (refusal(message.id, Refused(faults.INTERNAL, "Internal error")),)
        finally:
            visit.scope[GONE] = None
            reply.stop()
        if scope.cancelled_caught:
            words = Refused(faults.CANCELLED, "Request cancelled", {"reason": "cancelled"})
            pieces = (refusal(message.id, words),)
        await reply.finish(pieces, status)

    async def _listen(self, visit: "_Visit") -> None:
        if visit.headers.get(b"mcp-protocol-version") in MODERN:
            await plain(visit.send, 405, extra=[(b"allow", b"POST")])
            return
        if not visit.streams:
            await plain(visit.send, 406, "a stream needs Accept: text/event-stream")
            return
        session = await self._session(visit, _NO_ID)
        if session is None:
            return
        stream = session.mailbox.listen()
        visit.scope[GONE] = stream.end
        try:
            await stream.pour(
                visit.send, [*STREAM, (_SESSION, session.id.encode())], b": hi\r\n\r\n"
            )
        finally:
            session.mailbox.hang_up(stream)

    async def _delete(self, visit: "_Visit") -> None:
        session = await self._session(visit, _NO_ID)
        if session is not None:
            await self.sessions.close(session)
            await plain(visit.send, 200)

    async def _sse(self, visit: "_Visit") -> None:
        session = self.sessions.open(visit.admitted, self._chosen(visit))
        if session is None:
            await plain(visit.send, 503, "too many sessions", extra=[(b"retry-after", b"30")])
            return
        stream = session.mailbox.listen()
        visit.scope[GONE] = stream.end
        endpoint = b"event: endpoint\r\ndata: /messages?session_id=%b\r\n\r\n" % session.id.encode()
        try:
            await stream.pour(visit.send, STREAM, endpoint)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self.sessions.close(session)

    async def _sse_message(self, visit: "_Visit") -> None:
        given = visit.query.get("session_id", [""])[0]
        session = self.sessions.find(given, visit.admitted)
        if session is None:
            await plain(visit.send, 404, "Session not found: open /sse again")
            return
        body = await visit.body()
        if body is not None:
            tasks = self._gateway.tasks
            Dialogue(self._gateway, session.peer, session.mailbox, tasks).take(body)
            await plain(visit.send, 202, "Accepted")

    async def _health(self, visit: "_Visit") -> None:
        servers = self._gateway.hub.snapshot().servers
        up = sum(one.state.value == "connected" for one in servers)
        body = f'{{"status":"ok","servers":{len(servers)},"connected":{up}}}'
        await plain(visit.send, 200, body, kind=b"application/json")

    async def _metrics(self, visit: "_Visit") -> None:
        hub = self._gateway.hub
        text = hub.metrics.prometheus() + _gauges(self._gateway, len(self.sessions))
        await plain(visit.send, 200, text, kind=b"text/plain; version=0.0.4")

    def _chosen(self, visit: "_Visit") -> str | None:
        """The profile a client sees: its token's, the one it names, or everybody's.

        Raises:
            Refused: There is no such profile.
        """
        if visit.admitted.profile is not None:
            return visit.admitted.profile
        if not visit.scope["query_string"]:
            return self._profile
        named = visit.query.get("profile", [None])[0]
        if named is not None and named not in self._gateway.hub.settings.profiles:
            raise Refused(faults.INVALID_PARAMS, f"no profile named {named!r}")
        return named or self._profile


class _Visit:
    """One HTTP request."""

    __slots__ = ("admitted", "extra", "headers", "pairs", "receive", "scope", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.pairs: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers: HeaderMap = dict(self.pairs)
        self.admitted = Admitted()
        self.extra: Headers = []

    @property
    def path(self) -> str:
        path: str = self.scope["path"]
        return path.rstrip("/") or "/"

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.scope["query_string"].decode("latin-1"))

    @property
    def streams(self) -> bool:
        """Whether the client takes an event stream."""
        accept = self.headers.get(b"accept", b"*/*")
        return b"text/event-stream" in accept or b"*/*" in accept or b"text/*" in accept

    async def body(self) -> bytes | None:
        """The whole body; None where the request was answered for being too long or too slow."""
        kind = self.headers.get(b"content-type", b"").lower()
        if not kind.startswith(b"application/json"):
            await plain(self.send, 415, "Content-Type must be application/json")
            return None
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MAX_BODY:
            await self._too_long()
            return None
        message = await self.receive()
        first: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return first
        return await self._rest(first)

    async def _rest(self, first: bytes) -> bytes | None:
        parts, size = [first], len(first)
        with anyio.move_on_after(BODY_TIMEOUT):
            while True:
                message = await self.receive()
                if message["type"] != "http.request":
                    return None
                part: bytes = message.get("body", b"")
                parts.append(part)
                size += len(part)
                if size > MAX_BODY:
                    await self._too_long()
                    return None
                if not message.get("more_body", False):
                    return b"".join(parts)
        await plain(self.send, 408, "the body took too long", extra=[(b"connection", b"close")])
        return None

    async def _too_long(self) -> None:
        words = f"a request has at most {MAX_BODY} bytes"
        await plain(self.send, 413, words, extra=[(b"connection", b"close")])

    async def refuse(self, request_id: Raw, error: Refused, status: int | None = None) -> None:
        """Answer with a JSON-RPC error."""
        code = status or ERROR_CODE_HTTP_STATUS.get(error.code, 200)
        body = refusal(request_id, error).decode()
        await plain(self.send, code, body, kind=b"application/json", extra=self.extra)


def _params(message: Message) -> Params:
    try:
        return parse_params(message.params) if len(message.params) else Params()
    except UNPARSABLE as exc:
        raise Refused(faults.INVALID_PARAMS, f"the parameters can not be read: {exc}") from None


def _unreadable(body: bytes, exc: Exception) -> Refused:
    if body.lstrip()[:1] == b"[":
        return Refused(faults.INVALID_REQUEST, "batches are not supported: send one message")
    return Refused(faults.PARSE_ERROR, f"Parse error: {exc}")


def _challenge(denied: Denied) -> Headers:
    return [(b"www-authenticate", b"Bearer")] if denied.status == 401 else []  # noqa: PLR2004


def _gauges(gateway: Gateway, sessions: int) -> str:
    lines = [
        "# TYPE multitap_sessions gauge",
        f"multitap_sessions {sessions}",
        "# TYPE multitap_waiting_calls gauge",
        f"multitap_waiting_calls {len(gateway.errands)}",
        "# TYPE multitap_private_links gauge",
        f"multitap_private_links {len(gateway.private)}",
    ]
    return "\n".join(lines) + "\n"
