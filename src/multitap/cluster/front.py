"""HTTP requests that involve other replicas of a cluster."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from msgspec import Raw

from multitap.errors import CoordinatorDown, MultitapError
from multitap.gateway import client_errors
from multitap.gateway.client import Client
from multitap.gateway.fronts.sessions import HttpSession, HttpSessions
from multitap.gateway.fronts.streams import MAILBOX, parse_event_id
from multitap.http.server.connection import RETRY
from multitap.http.server.request import JSON, HttpRequest, Rejected, ToDo
from multitap.wire.jsonrpc import Result, RpcError, refusal

if TYPE_CHECKING:
    from multitap.cluster.sessions import SharedSessions

SESSION_FIELD = b"mcp-session-id"
LAST_EVENT = b"last-event-id"
UNKNOWN_EVENT = "this Last-Event-ID is unknown or no longer kept"
_NO_ID = Raw(b"")
_PATIENCE = 10.0  # seconds in which the coordinator may come back
_AGAIN = 0.1  # seconds between two looks for a session while the coordinator is down


class SharedFront:
    """Answers requests for which other replicas are needed."""

    def __init__(self, sessions: "SharedSessions", here: HttpSessions) -> None:
        self.sessions = sessions
        self._here = here

    async def count(
        self, handler: Callable[[HttpRequest], ToDo], http_request: HttpRequest
    ) -> None:
        """Count a request against a rate that all replicas share, then handle it."""
        admitted = http_request.head.admitted
        if admitted.rate is not None:
            rate, key = admitted.rate.rate, f"rate:{admitted.principal.key}"
            limits = self.sessions.bus.coordinator.limits
            try:
                allowance = await limits.take(key, limit=rate.requests, window=rate.seconds)
            except CoordinatorDown as exc:
                # refused: a limit that does not hold without the coordinator would not be one
                say_down(http_request, "requests with this token cannot be counted", exc)
                return
            if not allowance.allowed:
                http_request.reject(too_fast(allowance.retry_after))
                return
        if (to_do := handler(http_request)) is not None:
            await to_do

    async def use_proof(
        self,
        refusal: Rejected,
        handler: Callable[[HttpRequest], ToDo],
        http_request: HttpRequest,
    ) -> None:
        """Handle a request if no replica has seen its proof."""
        from multitap.identity.proofs import WINDOW  # noqa: PLC0415 - few have providers

        name = f"proof:{http_request.head.admitted.proof.hex()}"
        records = self.sessions.bus.coordinator.records
        try:
            # its time may be as far ahead of ours as behind
            is_new = await records.swap(name, None, b"1", ttl=2 * WINDOW)
        except CoordinatorDown as exc:
            say_down(http_request, "it is unknown whether this proof was used before", exc)
            return
        if not is_new:
            http_request.reject(refusal)
        elif (to_do := handler(http_request)) is not None:
            await to_do

    def is_unknown(self, http_request: HttpRequest) -> bool:
        """Whether the session of a request is not known at this replica."""
        session_id = http_request.head.headers.get(SESSION_FIELD)
        return session_id is not None and self._here.of(session_id.decode("latin-1")) is None

    async def fetch(self, http_request: HttpRequest, then: Callable[[], ToDo]) -> None:
        """Fetch the session of a request from the cluster, then continue with the request."""
        if await self.is_found(http_request) and (to_do := then()) is not None:
            await to_do

    async def is_found(self, http_request: HttpRequest) -> bool:
        """Fetch the session of a request; False if that failed and the request is answered.

        A coordinator that is away for a moment is asked again: to look twice does no harm.
        """
        head = http_request.head
        if self.is_unknown(http_request):
            session_id = head.headers[SESSION_FIELD].decode("latin-1")
            until = anyio.current_time() + _PATIENCE
            while True:
                try:
                    await self.sessions.fetch(session_id, head.admitted)
                    break
                except CoordinatorDown as exc:
                    if anyio.current_time() >= until:
                        # not 404: the client would open another session though it has one
                        say_down(http_request, "the session cannot be looked up", exc)
                        return False
                await anyio.sleep(_AGAIN)
        return True

    async def listens_here(self, http_request: HttpRequest, session: HttpSession) -> bool:
        """Whether this replica has the stream of a request; if not, answers the request."""
        last_event = http_request.head.headers.get(LAST_EVENT)
        name, after = (MAILBOX, 0) if last_event is None else parse_event_id(last_event) or ("", 0)
        try:
            if name == MAILBOX:
                await self.sessions.homes.claim_session(session)
                # the last home may have sent more than it could write before it died
                mailbox = session.streams.mailbox
                mailbox.number = max(mailbox.number, after)
                return True
            if session.streams.find(name) is not None:
                return True
            extra, streams = [(SESSION_FIELD, session.id.encode())], self.sessions.streams
            if not name or not await streams.pour(session, name, after, http_request, extra):
                http_request.say(400, UNKNOWN_EVENT)
        except CoordinatorDown as exc:
            say_down(http_request, "the stream cannot be resumed", exc)
        return False

    async def end(self, http_request: HttpRequest, session: HttpSession) -> bool:
        """End a session at all replicas; False if that failed and the request is answered."""
        try:
            await self.sessions.end(session)
        except CoordinatorDown as exc:
            say_down(http_request, "the session cannot be ended", exc)
            return False
        return True


async def relay(
    shared: SharedFront | None, replica: str, http_request: HttpRequest, client: Client
) -> Result | Exception:
    """The outcome of a request at the only replica that can answer it."""
    from multitap.cluster import requests  # noqa: PLC0415 - in a cluster only

    if shared is None:
        return RuntimeError("there are no other replicas")
    session_id = client.replicas.session_id if client.replicas is not None else ""
    request = requests.to_relay(client, session_id, http_request.body)
    try:
        return await shared.sessions.requests.send(replica, request, http_request)
    except (RpcError, MultitapError) as exc:
        return exc


def say_down(http_request: HttpRequest, reason: str, exc: CoordinatorDown) -> None:
    """Respond with 503: the coordinator is down."""
    http_request.say(503, f"{reason}: {exc}", extra=[*RETRY])


def too_fast(wait: float) -> Rejected:
    """The rejection of a request beyond its rate."""
    seconds = math.ceil(wait)
    data = {"reason": "rate", "retryAfter": seconds}
    error = RpcError(client_errors.OVERLOADED, f"too many requests: wait {seconds} s", data)
    extra = ((b"retry-after", b"%d" % seconds),)
    return Rejected(429, refusal(_NO_ID, error).decode(), extra, JSON)
