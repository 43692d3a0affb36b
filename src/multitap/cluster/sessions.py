"""Sessions that any replica can serve: their homes, and their streams."""

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio
import msgspec
from msgspec import Raw

from multitap.cluster.bus import ReplicaBus, ReplicaMessage, SessionMessage
from multitap.cluster.requests import RelayedRequest, RelayedRequests, to_relay
from multitap.cluster.session_records import KeptEvent, KeptEvents, SessionRecord, SessionRecords
from multitap.errors import CoordinatorDown, Unavailable
from multitap.gateway.client import Client, session_request
from multitap.gateway.client_errors import OVERLOADED
from multitap.gateway.fronts.sessions import HttpSession, HttpSessions, StatelessClients
from multitap.gateway.fronts.streams import MAILBOX, LoggedEvent, opening
from multitap.gateway.fronts.tokens import Admitted
from multitap.gateway.gateway import Gateway
from multitap.http.server.request import EventWriter, Headers, HttpRequest, event
from multitap.tasks import now
from multitap.wire.jsonrpc import (
    SERVER_ERROR,
    UNPARSABLE,
    ClientMessage,
    RequestParams,
    Result,
    RpcError,
    notification,
    parse_client_message,
    refusal,
)

logger = logging.getLogger(__name__)

_KINDS = ("tools", "prompts", "resources")

_pack = msgspec.msgpack.Encoder().encode


class _LeftBehind(msgspec.Struct, array_like=True):
    """The state of a mailbox that moves to a new home."""

    number: int = 0
    received: int = 0
    events: list[tuple[int, bytes]] = []


class HomeState(Protocol):
    """The home of a session, as one replica knows it."""

    home: str
    lock: anyio.Lock

    @property
    def is_remote(self) -> bool: ...

    def forward(self, message: bytes) -> bool: ...


class SessionHomes:
    """Moves sessions from one replica to another."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        gateway: Gateway,
        sessions: HttpSessions,
        bus: ReplicaBus,
        records: SessionRecords,
        events: KeptEvents,
        state_of: Callable[[str], HomeState | None],
    ) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._bus = bus
        self._records = records
        self._events = events
        self._known = state_of
        bus.on("resign", self._on_resign)
        bus.on("home", self._on_home)

    async def claim_session(self, session: HttpSession) -> None:
        """Move the home of a session to this replica.

        Raises:
            CoordinatorDown: The session cannot be moved now.
        """
        replicas = self._known(session.id)
        if replicas is None or not replicas.is_remote:
            return
        async with replicas.lock:
            # checked again: it may have moved here while we waited for the lock
            if not replicas.is_remote:
                return
            record = await self._records.read(session.id)
            if record is None:
                return
            left: _LeftBehind | None = None
            if record.home != self._bus.name and self._bus.is_alive(record.home):
                # it died while it was asked: we take over as if it had been dead before
                with suppress(Unavailable):
                    reply = await self._bus.ask(
                        record.home, "resign", SessionMessage(session.id).pack()
                    )
                    left = msgspec.msgpack.decode(reply, type=_LeftBehind)
            await self._take_over(session, replicas, record, left)

    async def _take_over(
        self,
        session: HttpSession,
        replicas: HomeState,
        record: SessionRecord,
        left: "_LeftBehind | None",
    ) -> None:
        mailbox = session.streams.mailbox
        # the last await before the switch below: what arrives until then takes the old route
        stored_events = await self._events.read(session.id, MAILBOX)
        events = {event.number: event.encoded for event in stored_events}
        events |= dict(left.events) if left is not None else {}
        log = session.streams.log
        keep, log.on_add = log.on_add, None  # they are kept already
        for number, encoded in sorted(events.items()):
            if number > mailbox.number:
                mailbox.number = number
                log.add(LoggedEvent(MAILBOX, number, encoded, False, now()))
        log.on_add = keep
        if left is not None:
            mailbox.number, mailbox.heard = max(mailbox.number, left.number), left.received
        else:
            mailbox.heard = mailbox.number
        # home and route change together, without an await: no message falls in between
        replicas.home = self._bus.name
        mailbox.route = None
        self._gateway.subscriptions.on_joined(session.client)
        record.home = self._bus.name
        # the record before the note: those who miss the note read the record
        await self._records.write(session.id, record)
        await self._bus.tell_all("home", SessionMessage(session.id, self._bus.name.encode()).pack())
        for uri in record.uris:
            self._gateway.tasks.start_apart(self._follow, session, uri)
        if left is None:
            # the last home is gone, and its unsent messages with it
            for kind in _KINDS:
                mailbox.send(notification(f"notifications/{kind}/list_changed"))

    async def _follow(self, session: HttpSession, uri: str) -> None:
        mailbox = session.streams.mailbox
        request = session_request(session.client, Raw(b"0"), mailbox, RequestParams(uri=uri))
        params = Raw(msgspec.json.encode({"uri": uri}))
        message = ClientMessage("2.0", Raw(b"0"), "resources/subscribe", params)
        try:
            await self._gateway.answer(request, message)
        except RpcError as exc:
            logger.info("%r is not followed: %s", uri, exc)

    async def try_to_claim_session(self, session: HttpSession) -> None:
        with suppress(CoordinatorDown):
            await self.claim_session(session)

    async def _on_resign(self, note: ReplicaMessage) -> bytes:
        session = self._sessions.of(SessionMessage.of(note).session_id)
        if session is None:
            return _pack(_LeftBehind())
        # before its mailbox is packed: nothing can be added to what is left behind
        self._give_up_home(session, note.sender)
        mailbox = session.streams.mailbox
        # with it, rather than from the coordinator: the last ones may not be written yet
        events = session.streams.log.after(MAILBOX, 0)
        unsent = [(event.number, event.encoded) for event in events]
        return _pack(_LeftBehind(mailbox.number, mailbox.heard, unsent))

    async def _on_home(self, note: ReplicaMessage) -> None:
        note_ = SessionMessage.of(note)
        if (session := self._sessions.of(note_.session_id)) is not None:
            self._give_up_home(session, note_.data.decode())

    def _give_up_home(self, session: HttpSession, home: str) -> None:
        replicas = self._known(session.id)
        if replicas is None or home == self._bus.name:
            return
        was_home, replicas.home = not replicas.is_remote, home
        session.streams.mailbox.route = replicas.forward
        # the client follows it at the new home; here it would hear nothing more
        session.streams.mailbox.disconnect()
        if was_home:
            self._gateway.tasks.start_apart(self._release, session.client)

    async def _release(self, client: Client) -> None:
        await self._gateway.subscriptions.on_left(client, is_elsewhere=True)


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
        streams.on_begin = lambda name, opening: self._keep_opening(session, name, opening)
        streams.log.on_add = lambda logged: self._keep(session, logged)

    async def pour(
        self, session: HttpSession, name: str, after: int, response: HttpRequest, extra: Headers
    ) -> bool:
        """Resume a stream of another replica; False if none of its events is kept.

        Raises:
            CoordinatorDown: The kept events cannot be read.
        """
        stored_events = await self._events.read(session.id, name)
        if not stored_events:
            return False
        writer = EventWriter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._feed, session, name, after, writer)
            tasks.start_soon(self._show_life, session, name, stored_events[-1].replica)
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
            async for stored in self._events.follow(session.id, name):
                last = stored
                if not stored.number:
                    request_id = stored.encoded
                number = max(number, stored.number)
                while (
                    stored.number > after and not writer.ended and not writer.push(stored.encoded)
                ):
                    await anyio.sleep(_FULL)
        except CoordinatorDown:
            writer.end()  # the client asks again
            return
        # without an answer the client would wait forever; the call is not repeated, since it may
        # have been done
        if last is not None and not last.is_last and request_id:
            message = "the replica that worked on this request is gone; it may have been done"
            error = RpcError(SERVER_ERROR, message, {"reason": "unavailable"})
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
        event = KeptEvent(
            logged.stream, logged.number, logged.encoded, logged.is_last, self._bus.name
        )
        self._events.keep(session.id, event)

    def _keep_opening(self, session: HttpSession, name: str, opening: bytes) -> None:
        try:
            request_id = bytes(parse_client_message(opening).id)
        except UNPARSABLE:
            return
        self._events.keep(session.id, KeptEvent(name, 0, request_id, False, self._bus.name))

    async def _on_resumed(self, note: ReplicaMessage) -> None:
        note_ = SessionMessage.of(note)
        if (session := self._sessions.of(note_.session_id)) is not None:
            session.streams.go_on_elsewhere(note_.data.decode())


class _OtherReplicas:
    """The other replicas, for one session; see `OtherReplicas`."""

    def __init__(self, shared: "SharedSessions", session: HttpSession, home: str) -> None:
        self._shared = shared
        self._session = session
        self.name = shared.bus.name
        self.session_id = session.id
        self.home = home
        # moving home takes several awaits, and two requests may both want it
        self.lock = anyio.Lock()
        # before that, a missing record does not mean that the session has ended
        self.is_saved = False

    @property
    def is_remote(self) -> bool:
        return self.home != self.name

    async def save(self) -> None:
        save = partial(self._shared.save, self._session)
        await self._shared.bus.coordinator.until_back(save)

    async def request(self, method: str, params: Raw) -> Result | None:
        """The answer of the home, if only that may answer; else None."""
        # the home is dead: the first replica that is asked takes over
        if not self._shared.bus.is_alive(self.home):
            claim = partial(self._shared.homes.claim_session, self._session)
            await self._shared.bus.coordinator.until_back(claim)
        if not self.is_remote:
            return None
        message = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
        client, session = self._session.client, self._session
        request = to_relay(client, session.id, msgspec.json.encode(message))
        return await self._shared.requests.send(self.home, request, session.streams.mailbox)

    def cancel(self, request_id: Raw) -> None:
        note = SessionMessage(self._session.id, bytes(request_id))
        self._shared.expect(note)
        self._shared.bus.tell_all_soon("cancel", note.pack())

    def take_answer(self, message: ClientMessage) -> None:
        replica = _asker(message.id)
        if replica and replica != self.name:
            message_ = {"jsonrpc": "2.0", "id": message.id}
            message_ |= (
                {"error": message.error} if len(message.error) else {"result": message.result}
            )
            note = SessionMessage(self._session.id, msgspec.json.encode(message_))
            self._shared.bus.tell_soon(replica, "answer", note.pack())

    def forward(self, message: bytes) -> bool:
        """Send the client a message outside its requests, through its home."""
        note = SessionMessage(self._session.id, message)
        self._shared.bus.tell_soon(self.home, "mail", note.pack())
        return True

    def tell_home(self) -> None:
        """Tell the home that the session is used here, so that it does not end there."""
        self._shared.bus.tell_soon(self.home, "used", SessionMessage(self._session.id).pack())


_EARLY = 5.0
"""Seconds that a request may arrive after its cancellation, which came on another connection."""
_MOST_EARLY = 1024


class SharedSessions:
    """The sessions of all replicas, as one of them sees them."""

    def __init__(
        self,
        gateway: Gateway,
        sessions: HttpSessions,
        stateless: StatelessClients,
        bus: ReplicaBus,
    ) -> None:
        self._stateless = stateless
        limits = sessions.limits
        self.bus = bus
        self.records = SessionRecords(bus, limits.idle)
        log = limits.log
        self.events = KeptEvents(bus, most=log.events, room=log.room, age=log.age)
        self._gateway = gateway
        self._sessions = sessions
        self.requests = RelayedRequests(gateway, bus, self._client_of)
        self._known: dict[str, _OtherReplicas] = {}
        self._early: dict[tuple[str, bytes], float] = {}
        """When requests were cancelled that are not known here, oldest first."""
        self.streams = RemoteStreams(sessions, bus, self.events)
        self.homes = SessionHomes(
            gateway, sessions, bus, self.records, self.events, self._known.get
        )
        gateway.subscriptions.knows_all = False
        sessions.shared = self
        for kind, handler in {
            "end": self._on_end,
            "cancel": self._on_cancel,
            "answer": self._on_answer,
            "mail": self._on_mail,
            "changed": self._on_changed,
            "used": self._on_used,
        }.items():
            bus.on(kind, handler)
        bus.on_gap.append(self.check_all)

    async def run(self) -> None:
        """Write kept events, and check all sessions regularly, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.events.run)
            while True:
                await anyio.sleep(self._sessions.limits.look)
                with suppress(CoordinatorDown):  # later: the records outlive a while without it
                    await self.check_all()

    def attach(self, session: HttpSession, home: str | None = None) -> None:
        """Attach a session to the cluster, so that every replica can serve it.

        Args:
            home: The replica that notifies its client of changes; None: this one.
        """
        replicas = _OtherReplicas(self, session, home or self.bus.name)
        self._known[session.id] = replicas
        session.client.replicas = replicas
        self.streams.attach(session)
        if replicas.is_remote:
            session.streams.mailbox.route = replicas.forward

    def detach(self, session: HttpSession) -> None:
        """Forget a session here; it may continue at other replicas."""
        self._known.pop(session.id, None)
        self.events.forget(session.id)

    async def save(self, session: HttpSession) -> None:
        """Write the record of a session.

        Raises:
            CoordinatorDown: It cannot be written now.
        """
        replicas = self._known.get(session.id)
        if replicas is None:
            return
        record = SessionRecord.of(session.client, replicas.home)
        await self.records.write(session.id, record, ttl=self._sessions.life(session))
        # a new session is not known elsewhere yet
        if replicas.is_saved:
            await self.bus.tell_all("changed", SessionMessage(session.id).pack())
        replicas.is_saved = True

    async def fetch(self, session_id: str, admitted: Admitted) -> HttpSession | None:
        """Fetch a session that another replica opened; None if there is none.

        Raises:
            CoordinatorDown: The record cannot be read now.
            RpcError: There is one, but no room for it here.
        """
        record = await self.records.read(session_id)
        # bound to the principal that opened it: a leaked id alone gives no access
        if record is None or record.principal.key != admitted.principal.key or not record.version:
            return None
        if (session := self._sessions.find(session_id, admitted)) is not None:
            return session  # another request was quicker
        session = self._sessions.adopt(
            session_id, admitted, record.audience, record.holder, home=record.home
        )
        if session is None:
            reason = self._sessions.shares.refusal(record.holder)
            raise RpcError(OVERLOADED, reason, {"reason": "overloaded"})
        record.introduce(session.client)
        # nothing is awaited from `adopt` to `joined`: other requests find the session complete
        self._known[session_id].is_saved = True
        self._gateway.subscriptions.on_joined(session.client)
        await self.records.touch(session_id)
        if not self.bus.is_alive(record.home):
            # in a task: the request that brought the session here need not wait for the move
            self._gateway.tasks.start_apart(self.homes.try_to_claim_session, session)
        return session

    async def end(self, session: HttpSession) -> None:
        """End a session at all replicas.

        Raises:
            CoordinatorDown: It cannot be ended now.
        """
        # the record first: a replica that misses the message finds it gone at its next check
        await self.records.delete(session.id)
        await self.bus.tell_all("end", SessionMessage(session.id).pack())
        await self.events.delete(session.id)

    def end_soon(self, session: HttpSession) -> None:
        """End a session at all replicas in a task; errors are ignored."""
        self._gateway.tasks.start_apart(self._try_to_end, session)

    async def check_all(self) -> None:
        """Prolong the sessions in use, and drop those that ended elsewhere."""
        for session in self._sessions:
            replicas = self._known.get(session.id)
            if replicas is None or not replicas.is_saved:
                continue
            # twice the interval: a use just after the last look must still count in this one
            is_recent = session.used > now() - 2 * self._sessions.limits.look
            if session.busy or (session.is_used and is_recent):
                there = await self.records.touch(session.id)
                if replicas.is_remote:
                    replicas.tell_home()
            else:
                there = await self.records.read(session.id) is not None
            # it may have been closed here during the await
            if not there and session.is_open:
                self._sessions.close_soon(session)

    async def _try_to_end(self, session: HttpSession) -> None:
        with suppress(CoordinatorDown):
            await self.end(session)

    async def _client_of(self, request: RelayedRequest) -> Client | None:
        """The client of a relayed request."""
        if not request.session_id:
            return self._stateless.of(request.principal, request.holder, request.audience)
        admitted = Admitted(request.principal)
        session = self._sessions.find(request.session_id, admitted)
        session = session or await self.fetch(request.session_id, admitted)
        return session.client if session is not None else None

    def _here(self, note: ReplicaMessage) -> tuple[HttpSession | None, bytes]:
        note_ = SessionMessage.of(note)
        return self._sessions.of(note_.session_id), note_.data

    async def _on_end(self, note: ReplicaMessage) -> None:
        session, _ = self._here(note)
        self.records.end(SessionMessage.of(note).session_id)
        if session is not None:
            self._sessions.close_soon(session)

    async def _on_cancel(self, note: ReplicaMessage) -> None:
        session, request_id = self._here(note)
        if session is not None and request_id in session.client.scopes:
            session.client.cancel(Raw(request_id), is_here=True)
        else:
            self.expect(SessionMessage.of(note))

    def expect(self, cancellation: SessionMessage) -> None:
        """Remember a cancellation whose request may wait for its session to be fetched."""
        if len(self._early) >= _MOST_EARLY:
            del self._early[next(iter(self._early))]
        self._early[cancellation.session_id, cancellation.data] = now()

    def call_off(self, session_id: str) -> None:
        """Cancel the requests of a session whose cancellations came before they could begin."""
        session = self._sessions.of(session_id)
        scopes = {} if session is None else session.client.scopes
        for (id_, request_id), at in tuple(self._early.items()):
            scope = scopes.get(request_id) if id_ == session_id else None
            if scope is not None:
                scope.cancel()
            if scope is not None or now() - at > _EARLY:
                del self._early[id_, request_id]

    async def _on_answer(self, note: ReplicaMessage) -> None:
        session, content = self._here(note)
        if session is not None:
            with suppress(*UNPARSABLE):
                session.client.take_answer(parse_client_message(content))

    async def _on_mail(self, note: ReplicaMessage) -> None:
        session, message = self._here(note)
        if session is not None:
            session.streams.mailbox.send(message)

    async def _on_used(self, note: ReplicaMessage) -> None:
        session, _ = self._here(note)
        if session is not None:
            session.used, session.is_used = now(), True

    async def _on_changed(self, note: ReplicaMessage) -> None:
        session, _ = self._here(note)
        if session is not None and (record := await self.records.read(session.id)) is not None:
            session.client.log_level = record.log_level


def _asker(request_id: Raw) -> str:
    """The replica that sent the request with this id."""
    try:
        return msgspec.json.decode(request_id, type=str).rpartition(".")[0]
    except UNPARSABLE:
        return ""
