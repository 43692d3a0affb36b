"""The gateway over HTTP: Streamable HTTP in both eras, legacy SSE, health and metrics."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from msgspec import Raw

from multitap.errors import quoted, ungrouped
from multitap.serve import faults
from multitap.serve.access import Access, Admitted, Denied, repeated
from multitap.serve.admission import MODERN, admit, admit_arguments, claims_modern
from multitap.serve.crowd import WebLimits
from multitap.serve.degradation import reasons
from multitap.serve.dialogue import Dialogue
from multitap.serve.gateway import Gateway
from multitap.serve.message import Message, Params, Refused, answer, refusal
from multitap.serve.peer import Peer
from multitap.serve.reading import read_message, read_params
from multitap.serve.reply import Reply
from multitap.serve.sessions import Session, SessionLimits, Sessions
from multitap.serve.turn import Turn
from multitap.serve.visit import JSON, Headers, ToDo, Visit
from multitap.serve.web import open_web
from multitap.tasks import in_task
from multitap.wire import envelope
from multitap.wire.vocabulary import HTTP_STATUS

_SESSION = b"mcp-session-id"
_STREAM = b"text/event-stream"
_NO_ID = Raw(b"")
_ADDRESSES = 1024
"""Clients without a name that are remembered; the next one has them forgotten."""


class _Nowhere:
    """Clients of the stateless era have no way to them but their own requests."""

    def send(self, message: bytes) -> bool:  # noqa: ARG002 - an `Outlet`
        return False


class HttpFront:
    """Answers HTTP requests.

    Args:
        gateway: Who knows the answers.
        access: Who may ask.
        profile: What clients see that name no other.
        limits: What their sessions may cost.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        *,
        profile: str | None = None,
        limits: SessionLimits = SessionLimits(),
    ) -> None:
        self._gateway = gateway
        self._access = access
        self._profile = profile
        self.sessions = Sessions(gateway, limits)
        self._stateless: dict[tuple[str, str, str | None], Peer] = {}
        self._routes: dict[tuple[bytes, bytes], Callable[[Visit, Admitted], ToDo]] = {
            (b"POST", b"/mcp"): self._post,
            (b"GET", b"/mcp"): self._listen,
            (b"DELETE", b"/mcp"): self._delete,
            (b"GET", b"/sse"): self._sse,
            (b"POST", b"/messages"): self._sse_message,
            (b"GET", b"/health"): self._health,
            (b"GET", b"/metrics"): self._metrics,
        }

    def admit(self, visit: Visit) -> Denied | None:
        """Decide about a request by its head, before any of its body is kept."""
        if len(visit.headers) != len(visit.pairs) and (twice := repeated(visit.pairs)):
            return Denied(400, f"{twice.decode()} is there twice")
        admitted = self._access.decide(visit.headers)
        if isinstance(admitted, Denied):
            return admitted
        visit.admitted = admitted
        visit.holder = admitted.principal or visit.holder
        visit.handler = self._routes.get((visit.method, visit.path))
        visit.keeps_body = visit.handler is not None and visit.method == b"POST" and _is_json(visit)
        return None

    def handle(self, visit: Visit) -> ToDo:
        """Answer one request, or return what is still to do for it."""
        if visit.handler is not None:
            return visit.handler(visit, visit.admitted)
        allowed = [method for method, its_path in self._routes if its_path == visit.path]
        if allowed:
            visit.say(405, extra=[(b"allow", b", ".join(allowed))])
        else:
            visit.say(404, "clients speak to /mcp, older ones to /sse")
        return None

    def end_streams(self) -> None:
        """End in the orderly way what would go on for as long as the clients like."""
        self.sessions.end_streams()
        self._gateway.changes.close()

    def _post(self, visit: Visit, admitted: Admitted) -> ToDo:
        if not visit.keeps_body:
            _say_wrong_kind(visit)
            return None
        try:
            message = read_message(visit.body)
        except Refused as exc:
            _refuse(visit, _NO_ID, exc, status=400)
            return None
        if not message.is_sound:
            words = "Body must be a single JSON-RPC request or notification object"
            _refuse(visit, _NO_ID, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        if claims_modern(visit.headers, visit.body):
            return self._post_modern(visit, admitted, message)
        return self._post_legacy(visit, admitted, message)

    def _post_modern(self, visit: Visit, admitted: Admitted, message: Message) -> ToDo:
        if not message.is_request:
            if message.method:
                visit.say(202)
            else:
                words = "only requests and notifications can be posted"
                _refuse(visit, _NO_ID, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        try:
            params = read_params(message)
            admit(message, params, visit.pairs, visit.headers)
            peer = self._stateless_peer(visit, admitted)
            if message.method == "tools/call":
                view = self._gateway.view(peer.profile)
                if view.wants_headers(params.name):
                    admit_arguments(view.tools[params.name], params, visit.pairs)
        except Refused as exc:
            _refuse(visit, message.id, exc)
            return None
        if message.method == "subscriptions/listen" and not _streams(visit):
            visit.say(406, "a stream of changes needs Accept: text/event-stream")
            return None
        return self._answer(visit, peer, message, params, key=None)

    def _stateless_peer(self, visit: Visit, admitted: Admitted) -> Peer:
        key = (admitted.principal, visit.holder, self._chosen(visit, admitted))
        if (peer := self._stateless.get(key)) is None:
            if len(self._stateless) >= _ADDRESSES:
                self._stateless = {known: one for known, one in self._stateless.items() if known[0]}
            peer = Peer(_Nowhere(), principal=key[0], holder=key[1], profile=key[2])
            self._stateless[key] = peer
        return peer

    def _post_legacy(self, visit: Visit, admitted: Admitted, message: Message) -> ToDo:
        if message.method == "initialize" and message.is_request:
            return self._initialize(visit, admitted, message)
        session = self._session(visit, admitted, message.id)
        if session is None:
            return None
        if message.is_request:
            return self._answer_in_session(visit, session, message)
        if message.method:
            self._gateway.notified(session.peer, message.method, message.params)
        else:
            session.peer.answered(message)
        visit.say(202)
        return None

    async def _initialize(self, visit: Visit, admitted: Admitted, message: Message) -> None:
        try:
            session = self.sessions.open(admitted, self._chosen(visit, admitted), visit.holder)
        except Refused as exc:
            _refuse(visit, message.id, exc)
            return
        if session is None:
            self._too_many_sessions(visit)
            return
        extra = [(_SESSION, session.id.encode())]
        try:
            to_do = self._answer_in_session(visit, session, message, extra)
            if to_do is not None:
                await to_do
        finally:
            if not session.peer.shook_hands:
                await self.sessions.close(session)

    def _session(self, visit: Visit, admitted: Admitted, request_id: Raw) -> Session | None:
        session_id = visit.headers.get(_SESSION)
        if session_id is None:
            words = "Bad Request: initialize first, then send Mcp-Session-Id"
            _refuse(visit, request_id, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        session = self.sessions.find(session_id.decode("latin-1"), admitted)
        if session is None:
            words = "Session not found: initialize again"
            _refuse(visit, request_id, Refused(faults.INVALID_REQUEST, words), status=404)
        return session

    def _answer_in_session(
        self, visit: Visit, session: Session, message: Message, extra: Headers | None = None
    ) -> ToDo:
        key = bytes(message.id)
        if key in session.peer.scopes:
            words = f"the id {key.decode()} is in use"
            _refuse(visit, message.id, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        if self.sessions.full(session):
            words = f"{self.sessions.limits.requests} requests of this session are under way"
            _refuse(visit, message.id, Refused(faults.OVERLOADED, words, {"reason": "overloaded"}))
            return None
        try:
            params = read_params(message)
        except Refused as exc:
            _refuse(visit, message.id, exc, status=200)
            return None
        return self._answer(visit, session.peer, message, params, key=key, extra=extra)

    def _answer(
        self,
        visit: Visit,
        peer: Peer,
        message: Message,
        params: Params,
        *,
        key: bytes | None,
        extra: Headers | None = None,
    ) -> ToDo:
        """Answer a request, or say how.

        Args:
            visit: How it came.
            peer: Whose it is.
            message: What it is.
            params: What it says.
            key: Under which a client may cancel it; None in the stateless era, where leaving does.
            extra: Headers of the response.
        """
        request = _Request(self._gateway, visit, peer, message, key=key, extra=extra)
        try:
            turn = Turn(peer, message.id, request.reply, params, visit.light, modern=key is None)
        except Refused as exc:
            request.finish(exc)
            return None
        return request.work(turn)

    async def _listen(self, visit: Visit, admitted: Admitted) -> None:
        await in_task(visit.light)
        if visit.headers.get(b"mcp-protocol-version") in MODERN:
            visit.say(405, extra=[(b"allow", b"POST")])
            return
        if not _streams(visit):
            visit.say(406, "a stream needs Accept: text/event-stream")
            return
        session = self._session(visit, admitted, _NO_ID)
        if session is None:
            return
        stream = session.mailbox.listen()
        try:
            await stream.pour(visit, [(_SESSION, session.id.encode())])
        finally:
            session.mailbox.hang_up(stream)

    def _too_many_sessions(self, visit: Visit) -> None:
        words = self.sessions.shares.refusal(visit.holder)
        visit.say(503, words, extra=[(b"retry-after", b"30")])

    async def _delete(self, visit: Visit, admitted: Admitted) -> None:
        await in_task(visit.light)
        session = self._session(visit, admitted, _NO_ID)
        if session is not None:
            await self.sessions.close(session)
            visit.say(200)

    async def _sse(self, visit: Visit, admitted: Admitted) -> None:
        await in_task(visit.light)
        try:
            session = self.sessions.open(admitted, self._chosen(visit, admitted), visit.holder)
        except Refused as exc:
            visit.say(400, str(exc))
            return
        if session is None:
            self._too_many_sessions(visit)
            return
        stream = session.mailbox.listen()
        endpoint = b"event: endpoint\r\ndata: /messages?session_id=%b\r\n\r\n" % session.id.encode()
        try:
            await stream.pour(visit, [], endpoint)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self.sessions.close(session)

    async def _sse_message(self, visit: Visit, admitted: Admitted) -> None:
        await in_task(visit.light)
        given = visit.query.get("session_id", [""])[0]
        session = self.sessions.find(given, admitted)
        if session is None:
            visit.say(404, "Session not found: open /sse again")
        elif not visit.keeps_body:
            _say_wrong_kind(visit)
        else:
            tasks = self._gateway.tasks
            Dialogue(self._gateway, session.peer, session.mailbox, tasks).take(visit.body)
            visit.say(202, "Accepted")

    def _health(self, visit: Visit, _: Admitted) -> None:
        servers = self._gateway.hub.snapshot().servers
        up = sum(one.state.value == "connected" for one in servers)
        degraded = reasons(self._gateway.hub)
        told: dict[str, Any] = {
            "status": "degraded" if degraded else "ok",
            "servers": len(servers),
            "connected": up,
        }
        if degraded:
            told["degraded"] = degraded
        visit.respond(200, (envelope.encode(told),))

    def _metrics(self, visit: Visit, _: Admitted) -> None:
        text = self._gateway.hub.metrics.prometheus() + _gauges(self._gateway, len(self.sessions))
        visit.respond(200, (text.encode(),), kind=b"text/plain; version=0.0.4; charset=utf-8")

    def _chosen(self, visit: Visit, admitted: Admitted) -> str | None:
        """The profile a client sees: its token's, the one it names, or everybody's.

        Raises:
            Refused: There is no such profile.
        """
        named = admitted.profile
        if named is None and b"?" in visit.url:
            named = visit.query.get("profile", [None])[0]
        if named is None:
            return self._profile
        if named not in self._gateway.hub.settings.profiles:
            raise Refused(faults.INVALID_PARAMS, f"no profile named {quoted(named)}")
        return named


class _Request:
    """A request that is being worked on.

    Args:
        gateway: Who works on it.
        visit: How it came.
        peer: Whose it is.
        message: What it is.
        key: Under which a client may cancel it.
        extra: Headers of the response.
    """

    __slots__ = ("_gateway", "_is_cancelled", "_key", "_message", "_peer", "_visit", "reply")

    def __init__(
        self,
        gateway: Gateway,
        visit: Visit,
        peer: Peer,
        message: Message,
        *,
        key: bytes | None,
        extra: Headers | None,
    ) -> None:
        self._gateway = gateway
        self._visit = visit
        self._peer = peer
        self._message = message
        self._key = key
        self._is_cancelled = False
        self.reply = Reply(visit, gateway.tasks, streams=_streams(visit), extra=extra)

    def cancel(self) -> None:
        """Give it up: its client does not want the answer any more."""
        self._is_cancelled = True
        self._visit.light.cancel()

    async def work(self, turn: Turn) -> None:
        """Work on it, and answer."""
        message, light = self._message, self._visit.light
        became: Raw | bytes | Exception | None = None
        if self._key is not None:
            self._peer.scopes[self._key] = self
        try:
            try:
                became = await self._gateway.answer(turn, message.method, message.params)
            except asyncio.CancelledError:
                if not self._is_cancelled:
                    raise
                light.recover()
            except Exception as exc:  # noqa: BLE001 - boundary: one request is its own problem
                became = exc
            poured = self.finish(became)
            if poured is not None:
                await in_task(light)
                await poured.wait()
        except BaseException:  # the client is gone
            self.reply.abandon()
            raise
        finally:
            if self._key is not None:
                del self._peer.scopes[self._key]

    def finish(self, became: Raw | bytes | Exception | None) -> asyncio.Event | None:
        """Say what became of it; where that takes a while, what is set when it is said."""
        message = self._message
        if became is not None and not isinstance(became, Exception):
            return self.reply.finish(answer(message.id, became))
        error = _cancelled() if became is None else faults.refused(became, message.method)
        status = HTTP_STATUS.get(error.code, 200) if self._key is None else 200
        return self.reply.finish((refusal(message.id, error),), status)


def _cancelled() -> Refused:
    return Refused(faults.CANCELLED, "Request cancelled", {"reason": "cancelled"})


def _streams(visit: Visit) -> bool:
    """Whether the client takes an event stream."""
    accept = visit.headers.get(b"accept", b"*/*")
    return _STREAM in accept or b"*/*" in accept or b"text/*" in accept


def _is_json(visit: Visit) -> bool:
    """Whether the body says that it is JSON."""
    kind = visit.headers.get(b"content-type", b"")
    return kind == JSON or kind.partition(b";")[0].strip().lower() == JSON


def _say_wrong_kind(visit: Visit) -> None:
    visit.say(415, "Content-Type must be application/json")


def _refuse(visit: Visit, request_id: Raw, error: Refused, status: int | None = None) -> None:
    code = status or HTTP_STATUS.get(error.code, 200)
    visit.respond(code, (refusal(request_id, error),))


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


@asynccontextmanager
async def serve_http(
    front: HttpFront, listener: socket.socket, limits: WebLimits = WebLimits()
) -> AsyncGenerator[str]:
    """Within the block, clients are answered; its value is the address they use."""
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.sessions.reap)
            async with open_web(front, listener, limits) as url:
                try:
                    yield f"{url}/mcp"
                finally:
                    front.end_streams()
            tasks.cancel_scope.cancel()
