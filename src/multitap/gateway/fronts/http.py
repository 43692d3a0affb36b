"""The gateway over HTTP: Streamable HTTP in both eras, legacy SSE, health and metrics."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.cluster.front import (
    LAST_EVENT,
    SESSION_FIELD,
    UNKNOWN_EVENT,
    SharedFront,
    relay,
    too_fast,
)
from multitap.config.documents import is_table
from multitap.errors import Unavailable, quoted, ungrouped
from multitap.gateway import client_errors
from multitap.gateway.client import (
    Client,
    ClientRequest,
    OnOtherReplica,
    session_request,
    stateless_request,
)
from multitap.gateway.eras import STATELESS, claims_stateless
from multitap.gateway.fronts.access import (
    FOREIGN,
    PUBLIC,
    Access,
    answer_preflight,
    is_preflight,
    repeated_header,
)
from multitap.gateway.fronts.accounts import AccountPages
from multitap.gateway.fronts.cards import CARD_PATH, CATALOG_PATHS, ServerCards
from multitap.gateway.fronts.pages import StatusPages
from multitap.gateway.fronts.sessions import (
    VERSION_FIELD,
    HttpSession,
    HttpSessions,
    KnownCall,
    SessionLimits,
    StatelessClients,
)
from multitap.gateway.fronts.sse import LegacySse, say_too_many, say_wrong_kind
from multitap.gateway.fronts.streams import ResumableStream, parse_event_id
from multitap.gateway.fronts.token_watch import TokenWatch
from multitap.gateway.fronts.tokens import ANYBODY, Admitted, TokenSources
from multitap.gateway.gateway import Gateway
from multitap.gateway.pass_through import is_custom
from multitap.http.server.connection import RETRY
from multitap.http.server.connections import HttpLimits
from multitap.http.server.proxies import TrustedProxies
from multitap.http.server.request import (
    JSON,
    HttpApp,
    HttpRequest,
    Rejected,
    RequestHead,
    ToDo,
)
from multitap.http.server.server import open_http_server
from multitap.http.server.tls import ServerTls
from multitap.hub.calls import PendingCall
from multitap.tasks import keep_going
from multitap.wire.jsonrpc import (
    CLIENT_CAPABILITIES_KEY,
    EMPTY,
    HTTP_STATUS,
    UNPARSABLE,
    CallMessage,
    ClientMessage,
    RequestParams,
    Result,
    RpcError,
    answer_pieces,
    parse_call,
    parse_client_message,
    refusal,
)

if TYPE_CHECKING:
    from multitap.gateway.fronts.resource_server import ResourceServer

_STREAM = b"text/event-stream"
_NO_ID = Raw(b"")
_TOO_MANY = 429
_CONSOLE = re.compile(rb"/console(?=[/?]|$)")
_ACCOUNTS = re.compile(rb"/accounts(?=[/?]|$)")
_FOR_CLIENTS = frozenset({b"/mcp", b"/sse", b"/messages"})
_PROFILES = b"/mcp/"
LOGOUT = b"/access/logout/"
"""Where identity providers send logout tokens: `/access/logout/NAME`."""
_OPEN = (PUBLIC, LOGOUT)
"""What needs no credentials."""
_LEAVING = Rejected(
    503,
    refusal(
        _NO_ID,
        RpcError(
            client_errors.UNAVAILABLE,
            "the gateway is stopping: try again in a moment",
            {"reason": "closing"},
        ),
    ).decode(),
    RETRY,
    JSON,
)


class ConsoleApp(HttpApp, Protocol):
    """A web console, which admits its own requests and sets their handler."""

    def end_streams(self) -> None:
        """End the event streams of all browsers."""
        ...


class DirectCall(msgspec.Struct, eq=False):
    """A call that only waits for its server, and so needs no task unless something is unusual."""

    front: "HttpFront"
    http_request: HttpRequest
    client: Client
    message: CallMessage
    request: ClientRequest
    key: bytes | None
    """Its id for cancellation; None in the stateless era."""
    call: PendingCall | None = None

    @classmethod
    def begin(
        cls,
        front: "HttpFront",
        http_request: HttpRequest,
        client: Client,
        message: CallMessage,
        *,
        key: bytes | None = None,
        cached: KnownCall | None = None,
    ) -> ToDo:
        """Begin a call; returns the work that remains if it waits for more than its server.

        For arguments see `HttpFront.answer`. With one call at a time, a task for each costs a
        seventh more.
        """
        request = _request(http_request, client, message, None, key, cached)
        work = cls(front, http_request, client, message, request, key)
        work.call = front.gateway.calls.begin(request, work.on_news)
        if work.call is None:
            return front.answer(http_request, client, message, key=key, request=request)
        http_request.become_task = work.become_task
        return None

    def on_news(self) -> None:
        """Answer the client; a call without the usual result goes on in a task."""
        http_request, call, error = self.http_request, self.call, None
        try:
            gateway = self.front.gateway
            result = None
            # a stream ends some time after its last message, for which a task waits
            if call is not None and http_request.stream_begun is None:
                result = gateway.calls.end(self.request, call)
            if result is None:
                self.become_task()
                return
            http_request.answer(answer_pieces(self.message.id, result))
            gateway.on_answered(self.request, http_request.arrived)
        except Exception as exc:  # noqa: BLE001 - boundary: one bad answer must not end the server's connection
            error = exc
        http_request.become_task = None
        if self.key is not None:
            del self.client.scopes[self.key]  # first: the next request may have the same id
        http_request.on_end(error)

    def become_task(self) -> None:
        """Go on in a task: something has to be waited for, or the call is cancelled."""
        http_request, call = self.http_request, self.call
        # news that come before the task has begun are for the task
        if call is not None and call.request is not None and call.request.pending is not None:
            call.request.pending.on_news = None
        rest = self.front.answer(
            *(http_request, self.client, self.message),
            key=self.key,
            request=self.request,
            call=call,
        )
        http_request.writer.tasks.begin(http_request, rest)


class HttpFront:
    """Answers HTTP requests.

    Args:
        gateway: Answers the requests.
        access: Decides which requests are admitted.
        sources: The tokens of `access`, if they may change.
        profile: The profile that limits all clients.
        limits: The limits of sessions.
        console: Answers requests below `/console`; None if there is no console.
        resource_server: Admits the tokens of identity providers; None if there are none.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        *,
        sources: TokenSources | None = None,
        profile: str | None = None,
        limits: SessionLimits = SessionLimits(),
        console: "ConsoleApp | None" = None,
        resource_server: "ResourceServer | None" = None,
    ) -> None:
        self._console = console
        self.resource_server = resource_server
        self.accounts: AccountPages | None = None
        """Answers requests below `/accounts`; None if there is none."""
        self.gateway = gateway
        self.access = access
        self.sources = sources
        self._profile = profile
        self.sessions = HttpSessions(gateway, limits)
        self._most_requests = limits.requests
        self._clock = asyncio.get_running_loop().time
        self.stateless = StatelessClients(gateway, self._choose_audience)
        self.forget_heads: Callable[[], None] = lambda: None
        """Has the server ask `admit` about every request again; set while it listens."""
        self._is_refusing = False
        self.shared: SharedFront | None = None
        if gateway.bus is not None:
            from multitap.cluster.sessions import SharedSessions  # noqa: PLC0415 - in a cluster only

            sessions = SharedSessions(gateway, self.sessions, self.stateless, gateway.bus)
            self.shared = SharedFront(sessions, self.sessions)
        older = LegacySse(gateway, self.sessions, self.shared, self._choose_audience)
        cards = ServerCards(
            gateway, self._choose_audience, lambda head: access.decide(head.headers, head.peer)
        )
        pages = self.pages = StatusPages(gateway, self.sessions, self._choose_audience)
        self._routes: dict[tuple[bytes, bytes], Callable[[HttpRequest], ToDo]] = {
            (b"POST", b"/mcp"): self._post,
            (b"GET", b"/mcp"): self._listen,
            (b"DELETE", b"/mcp"): self._delete,
            (b"GET", b"/sse"): older.listen,
            (b"POST", b"/messages"): older.post,
            (b"GET", b"/health"): pages.health,
            (b"GET", b"/ready"): pages.ready,
            (b"GET", b"/metrics"): pages.metrics,
            (b"GET", CARD_PATH): cards.card,
            **{(b"GET", path): cards.catalog for path in CATALOG_PATHS},
        }
        self._probes: dict[tuple[bytes, bytes], Callable[[HttpRequest], ToDo]] = {
            (method, path): probe
            for method in (b"GET", b"HEAD")
            for path, probe in ((b"/health", pages.alive), (b"/ready", pages.able))
        }
        """What strangers may ask: load balancers and supervisors have no token."""

    def admit(self, head: RequestHead) -> Rejected | None:  # noqa: PLR0911 - one line for each kind
        """Admit or reject a request by its head, before any of its body is kept."""
        if len(head.headers) != len(head.pairs) and (twice := repeated_header(head.pairs)):
            return Rejected(400, f"{twice.decode()} appears twice")
        access = self.access
        if access.proxies is not None and (denied := access.follow_proxy(head)) is not None:
            return denied
        if self._console is not None and _CONSOLE.match(head.url):
            return self._console.admit(head)
        if self.accounts is not None and _ACCOUNTS.match(head.url):
            return access.check_host(head.headers) or self.accounts.admit(head)
        if b"origin" in head.headers:
            access.cors.mark(head)
        if _needs_no_token(head, self.resource_server):
            return self._admit_anybody(head)
        admitted = access.decide(head.headers, head.peer)
        if isinstance(admitted, Rejected):
            return None if self._admit_probe(head) else self._admit_foreign(head, admitted)
        return self._admit_client(head, admitted)

    def _admit_client(self, head: RequestHead, admitted: Admitted) -> Rejected | None:
        """Admit a principal, unless we are stopping or it has made too many requests."""
        if self._is_refusing and _is_for_clients(head.path):
            return _LEAVING
        if admitted.rate is not None:
            # replicas of a cluster count together, which has to await: `SharedFront.count`
            if self.shared is None and (wait := admitted.rate.take(self._clock())):
                return too_fast(wait)
            head.edition = None  # each request is counted, so no decision is remembered
        head.admitted = admitted
        head.holder = admitted.principal.key or head.holder
        self._route(head)
        if self.shared is not None and head.handler is not None:
            head.handler = _after_replicas(self, self.shared, head, admitted, head.handler)
        return None

    def _admit_probe(self, head: RequestHead) -> bool:
        """Admit a stranger that asks for health or readiness, if it is not a web page's request."""
        probe = self._probes.get((head.method, head.path))
        # a token has to be valid wherever it is sent
        if probe is None or b"authorization" in head.headers:
            return False
        head.admitted, head.handler = ANYBODY, probe
        return self.access.check_address(head.headers) is None

    def _admit_anybody(self, head: RequestHead) -> Rejected | None:
        """Admit a request for a public document, or one that precedes a page's own."""
        if (denied := self.access.check_host(head.headers)) is not None:
            return denied
        head.admitted = ANYBODY
        head.handler = self._routes.get((head.method, head.path))
        if self.resource_server is not None and head.handler is None:
            head.handler = self.resource_server.route(head)
        if is_preflight(head):
            head.handler = answer_preflight
            return None if head.cors else FOREIGN
        return None

    def _admit_foreign(self, head: RequestHead, rejected: Rejected) -> Rejected | None:
        """Admit a request without a token of ours if an identity provider vouches for it."""
        resources = self.resource_server
        if resources is None or rejected.status != HTTPStatus.UNAUTHORIZED:
            return rejected
        from multitap.gateway.fronts.resource_server import has_foreign_scheme, resource_of  # noqa: PLC0415 - few have providers

        if not has_foreign_scheme(head.headers):
            challenge = resources.challenge(resource_of(head.path))
            return Rejected(rejected.status, rejected.text, challenge)
        admitted = resources.admit_now(head)
        if isinstance(admitted, Rejected):
            return admitted
        if admitted is not None:
            return self._admit_client(head, admitted)
        # its provider has to be asked first; until then, it counts for its address
        if self._is_refusing and _is_for_clients(head.path):
            return _LEAVING
        self._route(head)
        if (handler := head.handler) is not None:
            head.handler = partial(_decide_first, self, resources, handler)
        head.edition = None  # the next request finds the decision
        return None

    def _route(self, head: RequestHead) -> None:
        """Set all that follows from the head alone: the connection remembers it with the head."""
        path = head.path
        head.handler = self._routes.get((head.method, path))
        if head.handler is None and _is_profile(path, self.gateway):
            head.handler = self._routes.get((head.method, b"/mcp"))
        head.keeps_body = head.handler is not None and head.method == b"POST" and _is_json(head)
        head.takes_stream = _takes_stream(head)
        head.fits_any_length = head.handler is not None

    def handle(self, http_request: HttpRequest) -> ToDo:
        """Answer one request, or return the work that remains."""
        head = http_request.head
        if head.handler is not None:
            return head.handler(http_request)
        path = b"/mcp" if _is_profile(head.path, self.gateway) else head.path
        allowed = [method for method, its_path in self._routes if its_path == path]
        if allowed:
            http_request.say(405, extra=[(b"allow", b", ".join(allowed))])
        else:
            what = "there is no such profile; " if head.path.startswith(_PROFILES) else ""
            http_request.say(404, f"{what}clients connect to /mcp, older ones to /sse")
        return None

    def watch_for(self, sources: TokenSources) -> TokenWatch:
        """Makes the watch that applies token changes to this front."""
        return TokenWatch(
            sources,
            self.access,
            self.gateway,
            self.sessions,
            self.stateless,
            self.resource_server,
        )

    def refuse_requests(self) -> None:
        """Answer further requests of clients with 503: no replica is left to take them over."""
        self._is_refusing = True
        self.forget_heads()

    def end_streams(self) -> None:
        """End all event streams with their final message."""
        if self._console is not None:
            self._console.end_streams()
        self.sessions.end_streams()
        self.gateway.subscriptions.close()

    def _post(self, http_request: HttpRequest) -> ToDo:
        head, body, message = http_request.head, http_request.body, None
        cached = head.memory
        if cached is not None:
            try:  # a client that has called before nearly always calls again
                message = parse_call(body)
                if not body.isascii():
                    body.decode()  # undecoded parts are passed on, and must be valid UTF-8
            except UNPARSABLE:
                message = None
        if message is None or not bytes(message.id).isdigit():
            return self._post_any(http_request)
        if isinstance(cached, KnownCall) and cached.fits(message.params, self.gateway.hub):
            http_request.may_stream = True
            return DirectCall.begin(self, http_request, cached.client, message, cached=cached)
        if isinstance(cached, HttpSession) and cached.is_open:
            cached.used, cached.is_used = self._clock(), True
            return self._answer_in_session(http_request, cached, message)
        return self._post_any(http_request)

    def _post_any(self, http_request: HttpRequest) -> ToDo:
        """Handle a message of any kind."""
        head, body = http_request.head, http_request.body
        if not head.keeps_body:
            say_wrong_kind(http_request)
            return None
        try:
            message = parse_client_message(body)
            if not body.isascii():
                body.decode()  # undecoded parts are passed on, and must be valid UTF-8
        except UNPARSABLE as exc:
            _refuse(http_request, _NO_ID, client_errors.unreadable(body, exc), status=400)
            return None
        if not message.is_sound:
            reason = "Body must be a single JSON-RPC request or notification object"
            _refuse(
                http_request, _NO_ID, RpcError(client_errors.INVALID_REQUEST, reason), status=400
            )
            return None
        if type(head.memory) is KnownCall or (
            type(head.memory) is not HttpSession and claims_stateless(head.headers, body)
        ):
            return self._post_stateless(http_request, message)
        return self._post_in_session(http_request, message)

    def _post_stateless(self, http_request: HttpRequest, message: ClientMessage) -> ToDo:
        if not message.method:
            reason = "only requests and notifications can be posted"
            _refuse(
                http_request, _NO_ID, RpcError(client_errors.INVALID_REQUEST, reason), status=400
            )
            return None
        head = http_request.head
        if not len(message.id):
            self._notify_stateless(http_request, message)
            return None
        try:
            params = client_errors.read_params(message)
            client = self.stateless.admit(head, message, params)
        except RpcError as exc:
            _refuse(http_request, message.id, exc)
            return None
        if message.method == "subscriptions/listen" and not head.takes_stream:
            http_request.say(406, "a stream of changes needs Accept: text/event-stream")
            return None
        http_request.may_stream = True
        return self.answer(http_request, client, message, params=params)

    def _notify_stateless(self, http_request: HttpRequest, message: ClientMessage) -> None:
        # MCP's own notifications belong to sessions and connections, which there are none of
        if is_custom(message.method):
            try:
                # what it can do decides which session it has with a server, as for its requests
                meta = client_errors.read_params(message).meta
                able = meta.get(CLIENT_CAPABILITIES_KEY, EMPTY)
                client = self.stateless.client_of(http_request.head, able)
            except RpcError as exc:
                _refuse(http_request, _NO_ID, exc)
                return
            self.gateway.pass_through.on_notification(client, message.method, message.params)
        http_request.say(202)

    def _post_in_session(
        self, http_request: HttpRequest, message: ClientMessage, *, is_fresh: bool = True
    ) -> ToDo:
        if message.method == "initialize" and message.is_request:
            return self._initialize(http_request, message)
        # once only: a session that is not found then does not exist
        if is_fresh and self.shared is not None and self.shared.is_unknown(http_request):
            again = partial(self._post_in_session, http_request, message, is_fresh=False)
            return self.shared.fetch(http_request, again)
        session = self._session(http_request, message.id)
        if session is None:
            return None
        if message.is_request:
            session.is_used = True
            return self._answer_in_session(http_request, session, message)
        if message.method:
            self.gateway.on_notification(session.client, message.method, message.params)
        else:
            session.client.take_answer(message)
        http_request.say(202)
        return None

    async def _initialize(self, http_request: HttpRequest, message: ClientMessage) -> None:
        head = http_request.head
        try:
            session = self.sessions.open(head, self._choose_audience(head))
        except RpcError as exc:
            _refuse(http_request, message.id, exc)
            return
        if session is None:
            say_too_many(http_request, self.sessions)
            return
        http_request.extra = [(SESSION_FIELD, session.id.encode())]
        try:
            if (to_do := self._answer_in_session(http_request, session, message)) is not None:
                await to_do
        finally:
            # refused or cancelled before the end: it will never be used
            if not session.client.shook_hands:
                await self.sessions.close(session)

    def _session(self, http_request: HttpRequest, request_id: Raw) -> HttpSession | None:
        head = http_request.head
        session_id = head.headers.get(SESSION_FIELD)
        if session_id is None:
            reason = "Bad Request: initialize first, then send Mcp-Session-Id"
            _refuse(
                http_request,
                request_id,
                RpcError(client_errors.INVALID_REQUEST, reason),
                status=400,
            )
            return None
        session = self.sessions.find(session_id.decode("latin-1"), head.admitted)
        if session is None:
            reason = "Session not found: initialize again"
            _refuse(
                http_request,
                request_id,
                RpcError(client_errors.INVALID_REQUEST, reason),
                status=404,
            )
        elif head.admitted.digest:
            try:  # the token may have been renewed, with other rights
                before = session.client.audience
                # whose session it is stays: without a person, the gateway's own accounts are used
                session.client.audience = self._choose_audience(head)._replace(
                    declared=before.declared, person=before.person
                )
            except RpcError as exc:
                _refuse(http_request, request_id, exc, status=404)
                return None
        if VERSION_FIELD in head.headers:  # otherwise the body could claim to belong to no session
            head.memory = session
        return session

    def _answer_in_session(
        self, http_request: HttpRequest, session: HttpSession, message: ClientMessage | CallMessage
    ) -> ToDo:
        client, key = session.client, bytes(message.id)
        # checked only now: other requests may have come while the session was fetched
        if key in client.scopes or len(client.scopes) >= self._most_requests:
            self._refuse_another(http_request, client, message.id)
            return None
        # from here on it can be cancelled, and its id is taken
        client.scopes[key] = http_request
        http_request.may_stream = True
        http_request.keeper = session.streams
        if isinstance(message, CallMessage):
            return DirectCall.begin(self, http_request, client, message, key=key)
        return self.answer(http_request, client, message, key=key)

    def _refuse_another(self, http_request: HttpRequest, client: Client, request_id: Raw) -> None:
        """Refuse a request whose id is in use, or beyond the limit of its session."""
        key = bytes(request_id)
        if key in client.scopes:
            error = RpcError(client_errors.INVALID_REQUEST, f"the id {key.decode()} is in use")
            _refuse(http_request, request_id, error, status=400)
        else:
            reason = f"{self._most_requests} requests of this session are already in progress"
            error = RpcError(client_errors.OVERLOADED, reason, {"reason": "overloaded"})
            _refuse(http_request, request_id, error)

    async def answer(
        self,
        http_request: HttpRequest,
        client: Client,
        message: ClientMessage | CallMessage,
        *,
        params: RequestParams | None = None,
        key: bytes | None = None,
        cached: KnownCall | None = None,
        request: ClientRequest | None = None,
        call: PendingCall | None = None,
    ) -> None:
        """Answer a request with its result or an error.

        Args:
            http_request: The HTTP request.
            client: The client that sent it.
            message: The JSON-RPC request.
            params: Its parameters, if they are already decoded.
            key: The id for cancellation; None in the stateless era: disconnecting cancels.
            cached: The last call with the same head, name and `_meta`.
            request: The client's request, if it is already made.
            call: The call, if it was begun.
        """
        outcome: Result | Exception | None = None
        try:
            if request is None:
                request = _request(http_request, client, message, params, key, cached)
            outcome = await _result(self.gateway, request, message, call)
        except asyncio.CancelledError:
            # ours to swallow only if the client asked for it: a shutdown must go on
            if http_request.is_gone or not http_request.stopped:
                raise
            http_request.resume()
        except OnOtherReplica as exc:
            # the call it continues, or its client's own session with the server, is there
            outcome = await _elsewhere(self, exc.replica, http_request, client, message, key)
        except client_errors.ScopeNeeded as exc:
            outcome = exc
            # before anything is sent: afterwards there is no status to send
            if self.resource_server is not None and http_request.stream_begun is None:
                extra = [*self.resource_server.step_up(http_request.head, exc.scopes)]
                body = (refusal(message.id, exc),)
                http_request.respond(HTTPStatus.FORBIDDEN, body, extra=extra)
                return
        except Exception as exc:  # noqa: BLE001 - boundary: answered as an error
            outcome = exc
        finally:
            if key is not None:
                del client.scopes[key]  # first: the next request may have the same id
        try:
            poured = _finish(http_request, client, message, outcome, is_stateless=key is None)
            self.gateway.on_answered(request, http_request.arrived)
            if poured is not None:
                await poured.wait()
        finally:
            outcome = None  # breaks the reference cycle of error and frame

    async def _listen(self, http_request: HttpRequest) -> None:
        if http_request.head.headers.get(VERSION_FIELD) in STATELESS:
            http_request.say(405, extra=[(b"allow", b"POST")])
            return
        if not http_request.head.takes_stream:
            http_request.say(406, "a stream needs Accept: text/event-stream")
            return
        if self.shared is not None and not await self.shared.is_found(http_request):
            return
        session = self._session(http_request, _NO_ID)
        if session is None:
            return
        if self.shared is not None and not await self.shared.listens_here(http_request, session):
            return
        streams = session.streams
        stream: ResumableStream = streams.mailbox
        after = streams.mailbox.heard
        if (last_event := http_request.head.headers.get(LAST_EVENT)) is not None:
            name, after = parse_event_id(last_event) or ("", 0)
            stream_found = streams.find(name)
            # not 404, which would say that the session is gone
            if stream_found is None or after > stream_found.number:
                http_request.say(400, UNKNOWN_EVENT)
                return
            stream = stream_found
        # nothing is awaited since `find`: the stream cannot have been dropped in between
        writer = stream.connect(after)
        try:
            extra = [(SESSION_FIELD, session.id.encode())]
            await writer.pour(http_request, extra, stream.opening(after))
        finally:
            # with the writer: by now the client may follow the stream over another connection
            streams.leave(stream, writer)

    async def _delete(self, http_request: HttpRequest) -> None:
        if self.shared is not None and not await self.shared.is_found(http_request):
            return
        session = self._session(http_request, _NO_ID)
        if session is None:
            return
        # elsewhere first: if that fails the session stays, and the client can try again
        if self.shared is not None and not await self.shared.end(http_request, session):
            return
        await self.sessions.close(session)
        http_request.say(200)

    def _choose_audience(self, head: RequestHead) -> Audience:
        """The audience of a request: the profiles of the front, of its token, and of its URL.

        Raises:
            RpcError: There is no such profile.
        """
        admitted = head.admitted
        named = head.query.get("profile", []) if b"?" in head.url else []
        path = head.path
        if path.startswith(_PROFILES) and path != CARD_PATH:
            # each profile is a resource of its own
            named = [unquote(path.removeprefix(_PROFILES).decode("latin-1")), *named]
        audience = Audience.of(
            self._profile,
            admitted.profile,
            *named,
            allow=admitted.allow,
            grants=admitted.grants,
            deny=admitted.deny,
        )
        profiles = self.gateway.hub.settings.profiles
        for name in audience.profiles:
            if name not in profiles:
                raise RpcError(client_errors.INVALID_PARAMS, f"no profile named {quoted(name)}")
        return audience


def _after_replicas(
    front: HttpFront,
    shared: SharedFront,
    head: RequestHead,
    admitted: Admitted,
    handler: Callable[[HttpRequest], ToDo],
) -> Callable[[HttpRequest], ToDo]:
    """A handler that runs after what all replicas decide together: rates, and used proofs."""
    if admitted.rate is not None:
        handler = partial(shared.count, handler)
    if admitted.proof and front.resource_server is not None:
        refusal = front.resource_server.refuse_used_proof(head)
        handler = partial(shared.use_proof, refusal, handler)
    return handler


async def _decide_first(
    front: HttpFront,
    resources: "ResourceServer",
    handler: Callable[[HttpRequest], ToDo],
    http_request: HttpRequest,
) -> None:
    """Wait for the decision about the token of a request, then handle it."""
    head = http_request.head
    admitted = await resources.admit(head)
    if isinstance(admitted, Rejected):
        http_request.reject(admitted)
        return
    if front.shared is not None:
        handler = _after_replicas(front, front.shared, head, admitted, handler)
    elif admitted.rate is not None and (
        wait := admitted.rate.take(asyncio.get_running_loop().time())
    ):
        http_request.reject(too_fast(wait))
        return
    head.admitted = admitted
    if (to_do := handler(http_request)) is not None:
        await to_do


async def _elsewhere(  # noqa: PLR0917 - for its only caller
    front: HttpFront,
    replica: str,
    http_request: HttpRequest,
    client: Client,
    message: ClientMessage | CallMessage,
    key: bytes | None,
) -> Result | Exception:
    """The outcome of a request that only another replica can answer."""
    outcome = await relay(front.shared, replica, http_request, client)
    if not isinstance(outcome, Unavailable) or isinstance(message, CallMessage):
        return outcome
    if not message.method.startswith("tasks/"):
        return outcome
    # that replica is gone, so the task is followed from here
    try:
        request = _request(http_request, client, message, None, key, None)
        return await front.gateway.answer(request, message)
    except Exception as exc:  # noqa: BLE001 - boundary: answered as an error
        return exc


def _result(
    gateway: Gateway,
    request: ClientRequest,
    message: ClientMessage | CallMessage,
    call: PendingCall | None,
) -> Awaitable[Result]:
    """The result of a request; `call` was begun for it."""
    if call is not None:
        return gateway.calls.finish(request, call)
    if isinstance(message, CallMessage) or message.method == "tools/call":
        return gateway.calls.answer(request)
    return gateway.answer(request, message)


def _request(  # noqa: PLR0917 - for its only caller
    http_request: HttpRequest,
    client: Client,
    message: ClientMessage | CallMessage,
    params: RequestParams | None,
    key: bytes | None,
    cached: KnownCall | None,
) -> ClientRequest:
    """The request of a client, with its parameters decoded.

    Raises:
        RpcError: They cannot be read.
    """
    if isinstance(message, CallMessage):
        params = message.params
    elif params is None:
        params = client_errors.read_params(message)
    if key is None:
        return stateless_request(
            client, message.id, http_request, params, cached=cached, head=http_request.head
        )
    return session_request(client, message.id, http_request, params, head=http_request.head)


def _finish(
    http_request: HttpRequest,
    client: Client,
    message: ClientMessage | CallMessage,
    outcome: Result | Exception | None,
    *,
    is_stateless: bool,
) -> asyncio.Event | None:
    """Send the response; if that takes a while, returns an event that is set when it is sent."""
    if outcome is not None and not isinstance(outcome, Exception):
        return http_request.answer(answer_pieces(message.id, outcome))
    if outcome is None:
        error = _cancellation(has_left=client.has_left)
    else:
        error = client_errors.to_refusal(outcome, message.method)
    status = HTTP_STATUS.get(error.code, 200) if is_stateless else 200
    if is_table(error.data) and isinstance(wait := error.data.get("retryAfter"), int):
        status = _TOO_MANY
        http_request.extra = [*(http_request.extra or ()), (b"retry-after", b"%d" % wait)]
    return http_request.answer((refusal(message.id, error),), status)


def _cancellation(*, has_left: bool) -> RpcError:
    if has_left:  # ended by another replica or a revocation, or lost with the coordinator
        message_, reason = "Session ended during the request: initialize again", "session ended"
    else:
        message_, reason = "Request cancelled", "cancelled"
    return RpcError(client_errors.CANCELLED, message_, {"reason": reason})


def _needs_no_token(head: RequestHead, resources: "ResourceServer | None") -> bool:
    if head.url.startswith(_OPEN) or is_preflight(head):
        return True
    return resources is not None and resources.is_sign_in(head)


def _is_for_clients(path: bytes) -> bool:
    return path in _FOR_CLIENTS or path.startswith(_PROFILES)


def _takes_stream(head: RequestHead) -> bool:
    """Whether the client accepts an event stream."""
    accept = head.headers.get(b"accept", b"*/*")
    return _STREAM in accept or b"*/*" in accept or b"text/*" in accept


def _is_json(head: RequestHead) -> bool:
    """Whether the content type is JSON."""
    kind = head.headers.get(b"content-type", b"")
    return kind == JSON or kind.partition(b";")[0].strip().lower() == JSON


def _refuse(
    http_request: HttpRequest, request_id: Raw, error: RpcError, status: int | None = None
) -> None:
    code = status or HTTP_STATUS.get(error.code, 200)
    http_request.respond(code, (refusal(request_id, error),))


def _is_profile(path: bytes, gateway: Gateway) -> bool:
    """Whether a path is the address of a profile; anything else below `/mcp` is nothing."""
    name = path.removeprefix(_PROFILES)
    return name != path and unquote(name.decode("latin-1")) in gateway.hub.settings.profiles


@asynccontextmanager
async def serve_http(
    front: HttpFront,
    listener: socket.socket,
    limits: HttpLimits = HttpLimits(),
    *,
    tls: ServerTls | None = None,
    proxies: TrustedProxies | None = None,
) -> AsyncGenerator[str]:
    """Within the block, clients are answered; yields their address; see `open_http_server`."""
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            # started before the server, and cancelled after it has drained
            tasks.start_soon(front.sessions.reap)
            if front.shared is not None:
                tasks.start_soon(front.shared.sessions.run)
                if front.sources is not None:
                    from multitap.cluster.gateways import TokenRevocations  # noqa: PLC0415 - in a cluster only

                    revocations = TokenRevocations(
                        front.sources, front.shared.sessions.bus, front.resource_server
                    )
                    tasks.start_soon(revocations.run)
            async with open_http_server(
                front, listener, limits, tls=tls, proxies=proxies
            ) as server:
                front.forget_heads = server.connections.forget_heads
                front.gateway.metrics.rejections = server.connections.rejections
                if front.sources is not None:
                    watch = front.watch_for(front.sources)
                    tasks.start_soon(keep_going, watch.run, server.connections)
                try:
                    yield f"{server.url}/mcp"
                finally:
                    # otherwise the server waits for them until its time to drain is over
                    front.end_streams()
            tasks.cancel_scope.cancel()
