"""Streams that begin at one replica and are resumed at another."""

import hashlib

import anyio
from msgspec import Raw

from multitap.cluster.coordinator import CoordinatorDown
from multitap.gateway.client_message import UNPARSABLE, Refused, parse, refusal
from multitap.gateway.fronts.event_log import LoggedEvent
from multitap.gateway.fronts.http_sessions import HttpSession, HttpSessions
from multitap.gateway.fronts.resumable_streams import opening
from multitap.gateway.replicas.kept_events import KeptEvent, KeptEvents
from multitap.gateway.replicas.replica_bus import ReplicaBus, ReplicaMessage, SessionMessage
from multitap.http.server.event_writer import EventWriter, Headers, Streaming, event
from multitap.wire.jsonrpc.vocabulary import SERVER_ERROR

_SIGN_OF_LIFE = 20.0
"""Seconds between two keep-alive messages for a stream of another replica: well below the minute
after which that one cancels the request."""
_FULL = 0.05
"""Seconds until a client that reads slowly is sent more; polled, as writers do not say when."""


class RemoteStreams:
    """Keeps the events of this replica's streams for the others, and resumes theirs."""

    def __init__(self, sessions: HttpSessions, bus: ReplicaBus, events: KeptEvents) -> None:
        self._sessions = sessions
        self._bus = bus
        self._events = events
        # replicas number their streams on their own: the prefix keeps names apart, and holds no
        # dash, which separates the number
        self._prefix = hashlib.sha256(bus.name.encode()).hexdigest()[:8] + "x"
        bus.on("resumed", self._on_resumed)

    def attach(self, session: HttpSession) -> None:
        """Keep the events of a session where every replica finds them."""
        streams = session.streams
        streams.prefix = self._prefix
        streams.on_begin = lambda name, asked: self._keep_opening(session, name, asked)
        streams.log.on_add = lambda logged: self._keep(session, logged)

    async def pour(
        self, session: HttpSession, name: str, after: int, response: Streaming, extra: Headers
    ) -> bool:
        """Resume a stream of another replica; False if none of its events is kept.

        Raises:
            CoordinatorDown: The kept events cannot be read.
        """
        kept = await self._events.read(session.id, name)
        if not kept:
            return False
        writer = EventWriter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._feed, session, name, after, writer)
            tasks.start_soon(self._show_life, session, name, kept[-1].replica)
            try:
                first = opening(name, after, is_primed=session.streams.is_primed())
                await writer.pour(response, extra, first)
            finally:
                # the client left, or the stream ended: either way its events are no longer read
                tasks.cancel_scope.cancel()
        return True

    async def _feed(self, session: HttpSession, name: str, after: int, writer: EventWriter) -> None:
        request_id, number, last = b"", after, None
        try:
            async for one in self._events.follow(session.id, name):
                last = one
                if not one.number:
                    request_id = one.encoded
                number = max(number, one.number)
                while one.number > after and not writer.ended and not writer.push(one.encoded):
                    await anyio.sleep(_FULL)
        except CoordinatorDown:
            writer.end()  # the client asks again
            return
        # without an answer the client would wait forever; the call is not repeated, since it may
        # have been done
        if last is not None and not last.is_last and request_id:
            words = "the replica that worked on this request is gone; it may have been done"
            error = Refused(SERVER_ERROR, words, {"reason": "unavailable"})
            event_id = b"%b-%d" % (name.encode(), number + 1)
            encoded = event(refusal(Raw(request_id), error), event_id)
            writer.push(encoded)
            final = KeptEvent(name, number + 1, encoded, True, self._bus.name)
            self._events.keep(session.id, final)
        writer.end()

    async def _show_life(self, session: HttpSession, name: str, replica: str) -> None:
        # by the clock, not with each event: a call may be silent for longer than a minute
        note = SessionMessage(session.id, name.encode()).pack()
        while True:
            self._bus.tell_soon(replica, "resumed", note)
            await anyio.sleep(_SIGN_OF_LIFE)

    def _keep(self, session: HttpSession, logged: LoggedEvent) -> None:
        kept = KeptEvent(
            logged.stream, logged.number, logged.encoded, logged.is_last, self._bus.name
        )
        self._events.keep(session.id, kept)

    def _keep_opening(self, session: HttpSession, name: str, asked: bytes) -> None:
        try:
            request_id = bytes(parse(asked).id)
        except UNPARSABLE:
            return
        self._events.keep(session.id, KeptEvent(name, 0, request_id, False, self._bus.name))

    async def _on_resumed(self, note: ReplicaMessage) -> None:
        said = SessionMessage.of(note)
        if (session := self._sessions.of(said.session_id)) is not None:
            session.streams.go_on_elsewhere(said.data.decode())
