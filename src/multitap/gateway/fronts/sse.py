"""The transport of 2024: one stream for everything, and messages posted beside it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from multitap.catalog.audience import Audience
from multitap.cluster.front import SharedFront, say_down
from multitap.errors import CoordinatorDown
from multitap.gateway.fronts.sessions import HttpSession, HttpSessions
from multitap.gateway.fronts.streams import NOTHING_KEPT
from multitap.gateway.gateway import Gateway
from multitap.http.server.request import HttpRequest, RequestHead
from multitap.wire.jsonrpc import RpcError

if TYPE_CHECKING:
    from multitap.cluster import bus

_NO_STREAM = "Session not found: open /sse again"
_CONNECTION = 86_400.0
"""Seconds for which other replicas can find a stream. Longer than any stream should last, because
the record is not renewed."""


class LegacySse:
    """Answers requests to `/sse` and `/messages`; a session lasts as long as its stream."""

    def __init__(
        self,
        gateway: Gateway,
        sessions: HttpSessions,
        shared: SharedFront | None,
        choose_audience: Callable[[RequestHead], Audience],
    ) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._shared = None if shared is None else shared.sessions
        self._chosen = choose_audience
        if self._shared is not None:
            self._shared.bus.on("message", self._on_message)

    async def listen(self, http_request: HttpRequest) -> None:
        """Open a session, and respond with its stream."""
        # nothing is kept: this transport has no event ids to resume after
        head = http_request.head
        try:
            session = self._sessions.open(head, self._chosen(head), NOTHING_KEPT)
        except RpcError as exc:
            http_request.say(400, str(exc))
            return
        if session is None:
            say_too_many(http_request, self._sessions)
            return
        if self._shared is not None:
            from multitap.cluster.session_records import SessionRecord  # noqa: PLC0415 - in a cluster only

            try:
                # before the client learns its address: its first message may reach another replica
                record = SessionRecord.of(session.client, self._shared.bus.name)
                await self._shared.records.write(session.id, record, ttl=_CONNECTION)
            except CoordinatorDown as exc:
                await self._sessions.close(session)
                say_down(http_request, "no session can be opened", exc)
                return
        stream = session.streams.mailbox.connect(0)
        endpoint = b"event: endpoint\r\ndata: /messages?session_id=%b\r\n\r\n" % session.id.encode()
        try:
            await stream.pour(http_request, [], endpoint)
        finally:
            # its client has disconnected, which cancelled this; the session has to end all the same
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self._sessions.close(session)
                if self._shared is not None:
                    self._shared.end_soon(session)

    async def post(self, http_request: HttpRequest) -> None:
        """Handle a posted message."""
        session_id = http_request.head.query.get("session_id", [""])[0]
        session = self._sessions.find(session_id, http_request.head.admitted)
        if session is None and self._shared is not None:
            await self._pass_on(http_request, session_id)
        elif session is None:
            http_request.say(404, _NO_STREAM)
        elif not http_request.head.keeps_body:
            say_wrong_kind(http_request)
        else:
            self._take(session, http_request.body)
            http_request.say(202, "Accepted")

    def _take(self, session: HttpSession, body: bytes) -> None:
        from multitap.gateway.fronts.stdio import Duplex  # noqa: PLC0415 - few clients use SSE

        mailbox, tasks = session.streams.mailbox, self._gateway.tasks
        Duplex(self._gateway, session.client, mailbox, tasks).take(body)

    async def _pass_on(self, http_request: HttpRequest, session_id: str) -> None:
        """Relay a message to the replica that has the stream."""
        from multitap.cluster import bus  # noqa: PLC0415 - in a cluster only

        admitted, shared = http_request.head.admitted, self._shared
        if shared is None:
            return
        try:
            record = await shared.records.read(session_id)
            if record is None or record.principal.key != admitted.principal.key or record.version:
                http_request.say(404, _NO_STREAM)
                return
            note = bus.SessionMessage(session_id, http_request.body)
            await shared.bus.tell(record.home, "message", note.pack())
        except CoordinatorDown as exc:
            say_down(http_request, "the session cannot be looked up", exc)
            return
        http_request.say(202, "Accepted")

    async def _on_message(self, note: "bus.ReplicaMessage") -> None:
        from multitap.cluster import bus  # noqa: PLC0415 - in a cluster only

        session_message = bus.SessionMessage.of(note)
        if (session := self._sessions.of(session_message.session_id)) is not None:
            self._take(session, session_message.data)


def say_too_many(http_request: HttpRequest, sessions: HttpSessions) -> None:
    """Respond that no more sessions can be opened now."""
    reason = sessions.shares.refusal(http_request.head.holder)
    http_request.say(503, reason, extra=[(b"retry-after", b"30")])


def say_wrong_kind(http_request: HttpRequest) -> None:
    """Respond that the body must be JSON."""
    http_request.say(415, "Content-Type must be application/json")
