"""The gateway over HTTP: Streamable HTTP in both eras, legacy SSE, health and metrics."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
from msgspec import Raw

from multitap.config import Profile
from multitap.errors import quoted, ungrouped
from multitap.serve import faults
from multitap.serve.access import Access, Denied, repeated
from multitap.serve.admission import MODERN, admit, admit_arguments, claims_modern
from multitap.serve.crowd import WebLimits
from multitap.serve.degradation import reasons
from multitap.serve.dialogue import Dialogue
from multitap.serve.gateway import Gateway
from multitap.serve.message import Message, Params, Refused, refusal
from multitap.serve.peer import Peer
from multitap.serve.reading import read_message, read_params
from multitap.serve.sessions import Session, SessionLimits, Sessions
from multitap.serve.turn import Turn
from multitap.serve.visit import JSON, Head, ToDo, Visit
from multitap.serve.web import open_web
from multitap.tasks import in_task
from multitap.wire import envelope
from multitap.wire.vocabulary import HTTP_STATUS

_SESSION = b"mcp-session-id"
_VERSION = b"mcp-protocol-version"
_STREAM = b"text/event-stream"
_NO_ID = Raw(b"")
_ORDINARY = frozenset({"tools/call", "tools/list"})
"""What is asked for in sessions, again and again."""
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
        self._clock = asyncio.get_running_loop().time
        self._stateless: dict[tuple[str, str, str | None], Peer] = {}
        self._routes: dict[tuple[bytes, bytes], Callable[[Visit], ToDo]] = {
            (b"POST", b"/mcp"): self._post,
            (b"GET", b"/mcp"): self._listen,
            (b"DELETE", b"/mcp"): self._delete,
            (b"GET", b"/sse"): self._sse,
            (b"POST", b"/messages"): self._sse_message,
            (b"GET", b"/health"): self._health,
            (b"GET", b"/metrics"): self._metrics,
        }

    def admit(self, head: Head) -> Denied | None:
        """Decide about a request by its head, before any of its body is kept."""
        if len(head.headers) != len(head.pairs) and (twice := repeated(head.pairs)):
            return Denied(400, f"{twice.decode()} is there twice")
        admitted = self._access.decide(head.headers)
        if isinstance(admitted, Denied):
            return admitted
        head.admitted = admitted
        head.holder = admitted.principal or head.holder
        head.handler = self._routes.get((head.method, head.path))
        head.keeps_body = head.handler is not None and head.method == b"POST" and _is_json(head)
        head.takes_stream = _takes_stream(head)
        return None

    def handle(self, visit: Visit) -> ToDo:
        """Answer one request, or return what is still to do for it."""
        head = visit.head
        if head.handler is not None:
            return head.handler(visit)
        allowed = [method for method, its_path in self._routes if its_path == head.path]
        if allowed:
            visit.say(405, extra=[(b"allow", b", ".join(allowed))])
        else:
            visit.say(404, "clients speak to /mcp, older ones to /sse")
        return None

    def end_streams(self) -> None:
        """End in the orderly way what would go on for as long as the clients like."""
        self.sessions.end_streams()
        self._gateway.changes.close()

    def _post(self, visit: Visit) -> ToDo:
        head, body = visit.head, visit.body
        if not head.keeps_body:
            _say_wrong_kind(visit)
            return None
        try:
            message = read_message(body)
        except Refused as exc:
            _refuse(visit, _NO_ID, exc, status=400)
            return None
        key = bytes(message.id)
        if not (message.jsonrpc == "2.0" and key.isdigit()) and not message.is_sound:
            words = "Body must be a single JSON-RPC request or notification object"
            _refuse(visit, _NO_ID, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        session = head.memory
        if isinstance(session, Session) and session.is_open and message.method in _ORDINARY:
            session.used = self._clock()
            session.uses += 1
            self._answer_in_session(visit, session, message, key)
            return None
        if claims_modern(head.headers, body):
            return self._post_modern(visit, message)
        return self._post_legacy(visit, message)

    def _post_modern(self, visit: Visit, message: Message) -> ToDo:
        if not message.is_request:
            if message.method:
                visit.say(202)
            else:
                words = "only requests and notifications can be posted"
                _refuse(visit, _NO_ID, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        head = visit.head
        try:
            params = read_params(message)
            admit(message, params, head.pairs, head.headers)
            peer = self._stateless_peer(head)
            if message.method == "tools/call":
                view = self._gateway.view(peer.profile)
                if view.wants_headers(params.name):
                    admit_arguments(view.tools[params.name], params, head.pairs)
        except Refused as exc:
            _refuse(visit, message.id, exc)
            return None
        if message.method == "subscriptions/listen" and not head.takes_stream:
            visit.say(406, "a stream of changes needs Accept: text/event-stream")
            return None
        visit.is_pending = True
        visit.light.run(self._answer(visit, peer, message, params, None))
        return None

    def _stateless_peer(self, head: Head) -> Peer:
        """Whom a request is from that is in no session; remembered while the profiles are."""
        profiles = self._gateway.hub.settings.profiles
        known = head.memory
        if isinstance(known, _Stateless) and known.profiles is profiles:
            return known.peer
        key = (head.admitted.principal, head.holder, self._chosen(head))
        if (peer := self._stateless.get(key)) is None:
            if len(self._stateless) >= _ADDRESSES:
                self._stateless = {known: one for known, one in self._stateless.items() if known[0]}
            peer = Peer(_Nowhere(), principal=key[0], holder=key[1], profile=key[2])
            self._stateless[key] = peer
        head.memory = _Stateless(peer, profiles)
        return peer

    def _post_legacy(self, visit: Visit, message: Message) -> ToDo:
        if message.method == "initialize" and message.is_request:
            return self._initialize(visit, message)
        session = self._session(visit, message.id)
        if session is None:
            return None
        if message.is_request:
            self._answer_in_session(visit, session, message, bytes(message.id))
            return None
        if message.method:
            self._gateway.notified(session.peer, message.method, message.params)
        else:
            session.peer.answered(message)
        visit.say(202)
        return None

    async def _initialize(self, visit: Visit, message: Message) -> None:
        head = visit.head
        try:
            session = self.sessions.open(head.admitted, self._chosen(head), head.holder)
        except Refused as exc:
            _refuse(visit, message.id, exc)
            return
        if session is None:
            self._too_many_sessions(visit)
            return
        visit.extra = [(_SESSION, session.id.encode())]
        try:
            await self._answer(visit, session.peer, message, None, bytes(message.id))
        finally:
            if not session.peer.shook_hands:
                await in_task(visit.light)
                await self.sessions.close(session)

    def _session(self, visit: Visit, request_id: Raw) -> Session | None:
        head = visit.head
        session_id = head.headers.get(_SESSION)
        if session_id is None:
            words = "Bad Request: initialize first, then send Mcp-Session-Id"
            _refuse(visit, request_id, Refused(faults.INVALID_REQUEST, words), status=400)
            return None
        session = self.sessions.find(session_id.decode("latin-1"), head.admitted)
        if session is None:
            words = "Session not found: initialize again"
            _refuse(visit, request_id, Refused(faults.INVALID_REQUEST, words), status=404)
        if _VERSION in head.headers:  # or the body might say that it belongs to no session
            head.memory = session
        return session

    def _answer_in_session(
        self, visit: Visit, session: Session, message: Message, key: bytes
    ) -> None:
        peer = session.peer
        if key in peer.scopes:
            words = f"the id {key.decode()} is in use"
            _refuse(visit, message.id, Refused(faults.INVALID_REQUEST, words), status=400)
        elif len(peer.scopes) >= self.sessions.limits.requests:
            words = f"{self.sessions.limits.requests} requests of this session are under way"
            _refuse(visit, message.id, Refused(faults.OVERLOADED, words, {"reason": "overloaded"}))
        else:
            visit.is_pending = True
            visit.light.run(self._answer(visit, peer, message, None, key))

    async def _answer(
        self,
        visit: Visit,
        peer: Peer,
        message: Message,
        params: Params | None,
        key: bytes | None,
    ) -> None:
        """Answer a request, whatever becomes of it.

        Args:
            visit: How it came.
            peer: Whose it is.
            message: What it is.
            params: What it says, if somebody looked already.
            key: Under which a client may cancel it; None in the stateless era, where leaving does.
        """
        light = visit.light
        became: Raw | bytes | Exception | None = None
        if key is not None:
            peer.scopes[key] = light
        try:
            try:
                said = params or read_params(message)
                turn = Turn(peer, message.id, visit, said, light, modern=key is None)
                became = await self._gateway.answer(turn, message.method, message.params)
            except asyncio.CancelledError:
                if visit.is_gone or not light.stopped:
                    raise
                light.recover()  # its client does not want the answer any more
            except Exception as exc:  # noqa: BLE001 - boundary: one request is its own problem
                became = exc
            poured = _finish(visit, message, became, is_modern=key is None)
            became = None  # or an error would keep this frame, and the frame the error
            if poured is not None:
                await in_task(light)
                await poured.wait()
        except BaseException as exc:
            visit.give_up(exc)
            if not isinstance(exc, Exception):  # the client is gone
                raise
        finally:
            if key is not None:
                del peer.scopes[key]
            visit.done()

    async def _listen(self, visit: Visit) -> None:
        await in_task(visit.light)
        if visit.head.headers.get(_VERSION) in MODERN:
            visit.say(405, extra=[(b"allow", b"POST")])
            return
        if not visit.head.takes_stream:
            visit.say(406, "a stream needs Accept: text/event-stream")
            return
        session = self._session(visit, _NO_ID)
        if session is None:
            return
        stream = session.mailbox.listen()
        try:
            await stream.pour(visit, [(_SESSION, session.id.encode())])
        finally:
            session.mailbox.hang_up(stream)

    def _too_many_sessions(self, visit: Visit) -> None:
        words = self.sessions.shares.refusal(visit.head.holder)
        visit.say(503, words, extra=[(b"retry-after", b"30")])

    async def _delete(self, visit: Visit) -> None:
        await in_task(visit.light)
        session = self._session(visit, _NO_ID)
        if session is not None:
            await self.sessions.close(session)
            visit.say(200)

    async def _sse(self, visit: Visit) -> None:
        await in_task(visit.light)
        head = visit.head
        try:
            session = self.sessions.open(head.admitted, self._chosen(head), head.holder)
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

    async def _sse_message(self, visit: Visit) -> None:
        await in_task(visit.light)
        given = visit.head.query.get("session_id", [""])[0]
        session = self.sessions.find(given, visit.head.admitted)
        if session is None:
            visit.say(404, "Session not found: open /sse again")
        elif not visit.head.keeps_body:
            _say_wrong_kind(visit)
        else:
            tasks = self._gateway.tasks
            Dialogue(self._gateway, session.peer, session.mailbox, tasks).take(visit.body)
            visit.say(202, "Accepted")

    def _health(self, visit: Visit) -> None:
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

    def _metrics(self, visit: Visit) -> None:
        text = self._gateway.hub.metrics.prometheus() + _gauges(self._gateway, len(self.sessions))
        visit.respond(200, (text.encode(),), kind=b"text/plain; version=0.0.4; charset=utf-8")

    def _chosen(self, head: Head) -> str | None:
        """The profile a client sees: its token's, the one it names, or everybody's.

        Raises:
            Refused: There is no such profile.
        """
        named = head.admitted.profile
        if named is None and b"?" in head.url:
            named = head.query.get("profile", [None])[0]
        if named is None:
            return self._profile
        if named not in self._gateway.hub.settings.profiles:
            raise Refused(faults.INVALID_PARAMS, f"no profile named {quoted(named)}")
        return named


class _Stateless(NamedTuple):
    """Whom requests with the same head are from, as long as there are the same profiles."""

    peer: Peer
    profiles: Mapping[str, Profile]


def _finish(
    visit: Visit, message: Message, became: Raw | bytes | Exception | None, *, is_modern: bool
) -> asyncio.Event | None:
    """Say what became of a request; where that takes a while, what is set when it is said."""
    if became is not None and not isinstance(became, Exception):
        # in pieces: a long result is not copied to be sent
        parts = b'{"jsonrpc":"2.0","id":%b,"result":' % message.id, became, b"}"
        return visit.answer(parts)
    error = _cancelled() if became is None else faults.refused(became, message.method)
    status = HTTP_STATUS.get(error.code, 200) if is_modern else 200
    return visit.answer((refusal(message.id, error),), status)


def _cancelled() -> Refused:
    return Refused(faults.CANCELLED, "Request cancelled", {"reason": "cancelled"})


def _takes_stream(head: Head) -> bool:
    """Whether the client takes an event stream."""
    accept = head.headers.get(b"accept", b"*/*")
    return _STREAM in accept or b"*/*" in accept or b"text/*" in accept


def _is_json(head: Head) -> bool:
    """Whether the body says that it is JSON."""
    kind = head.headers.get(b"content-type", b"")
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
