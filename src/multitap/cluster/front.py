"""HTTP requests that involve other replicas of a cluster."""

import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

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


class SharedFront:
    """Answers requests for which other replicas are needed."""

    def __init__(self, sessions: "SharedSessions", here: HttpSessions) -> None:
        self.sessions = sessions
        self._coordinator = sessions.bus.coordinator
        self._here = here

    async def count(
        self, handler: Callable[[HttpRequest], ToDo], http_request: HttpRequest
    ) -> None:
        """Count a request against a rate that all replicas share, then handle it."""
        admitted = http_request.head.admitted
        if admitted.rate is not None:
            rate, key = admitted.rate.rate, f"rate:{admitted.principal.key}"
            take = partial(
                self._coordinator.limits.take, key, limit=rate.requests, window=rate.seconds
            )
            try:
                # counted twice at worst, if an answer is lost
                allowance = await self._coordinator.until_back(take)
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

        name, ours = f"proof:{http_request.head.admitted.proof.hex()}", secrets.token_bytes(12)
        records = self._coordinator.records

        async def use() -> bool:
            # its time may be as far ahead of ours as behind
            is_new = await records.swap(name, None, ours, ttl=2 * WINDOW)
            return is_new or await records.read(name) == ours  # the answer to the first was lost

        try:
            is_new = await self._coordinator.until_back(use)
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
        if not await self.is_found(http_request):
            return
        to_do = then()
        self.sessions.call_off(http_request.head.headers[SESSION_FIELD].decode("latin-1"))
        if to_do is not None:
            await to_do

    async def is_found(self, http_request: HttpRequest) -> bool:
        """Fetch the session of a request; False if that failed and the request is answered."""
        head = http_request.head
        if self.is_unknown(http_request):
            session_id = head.headers[SESSION_FIELD].decode("latin-1")
            try:
                await self._coordinator.until_back(
                    partial(self.sessions.fetch, session_id, head.admitted)
                )
            except CoordinatorDown as exc:
                # not 404: the client would open another session though it has one
                say_down(http_request, "the session cannot be looked up", exc)
                return False
            except RpcError as exc:  # nor here: it has only no room at this replica
                http_request.say(503, str(exc), extra=[*RETRY])
                return False
        return True

    async def listens_here(self, http_request: HttpRequest, session: HttpSession) -> bool:
        """Whether this replica has the stream of a request; if not, answers the request."""
        last_event = http_request.head.headers.get(LAST_EVENT)
        name, after = (MAILBOX, 0) if last_event is None else parse_event_id(last_event) or ("", 0)
        try:
            if name == MAILBOX:
                claim = partial(self.sessions.homes.claim_session, session)
                await self._coordinator.until_back(claim)
                # the last home may have sent more than it could write before it died
                mailbox = session.streams.mailbox
                mailbox.number = max(mailbox.number, after)
                return True
            if session.streams.find(name) is not None:
                return True
            extra = [(SESSION_FIELD, session.id.encode())]
            pour = partial(self.sessions.streams.pour, session, name, after, http_request, extra)
            # it fails only before it has sent anything
            if not name or not await self._coordinator.until_back(pour):
                http_request.say(400, UNKNOWN_EVENT)
        except CoordinatorDown as exc:
            say_down(http_request, "the stream cannot be resumed", exc)
        return False

    async def end(self, http_request: HttpRequest, session: HttpSession) -> bool:
        """End a session at all replicas; False if that failed and the request is answered."""
        try:
            await self._coordinator.until_back(partial(self.sessions.end, session))
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
