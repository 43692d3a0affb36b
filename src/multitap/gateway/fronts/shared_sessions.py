"""Sessions over HTTP that every replica of a cluster can serve.

The session is a record that all replicas read. One replica is its *home*: it tells the client of
what happens outside its requests. The others are its hosts: they answer requests, and send the home
what is not for them. The replica on which a client listens becomes the home.
"""

import hashlib
import logging
from contextlib import suppress

import anyio
import msgspec
from msgspec import Raw

from multitap.cluster.coordinator import CoordinatorDown
from multitap.errors import Unavailable
from multitap.gateway.client import Client
from multitap.gateway.client_message import (
    UNPARSABLE,
    ClientMessage,
    Params,
    Refused,
    Result,
    notification,
    parse,
    refusal,
)
from multitap.gateway.client_request import session_turn
from multitap.gateway.fronts.duplex import Duplex
from multitap.gateway.fronts.event_log import LoggedEvent
from multitap.gateway.fronts.http_sessions import HttpSession, HttpSessions
from multitap.gateway.fronts.resumable_streams import MAILBOX, opening
from multitap.gateway.fronts.stateless_clients import StatelessClients
from multitap.gateway.gateway import Gateway
from multitap.gateway.replicas.kept_events import KeptEvent, KeptEvents
from multitap.gateway.replicas.relayed_requests import RelayedRequest, RelayedRequests, relayed
from multitap.gateway.replicas.replica_bus import Note, ReplicaBus
from multitap.gateway.replicas.session_records import SessionRecord, SessionRecords
from multitap.http.server.access import Admitted
from multitap.http.server.event_writer import EventWriter, Headers, Streaming, event
from multitap.upstream.attempt import now
from multitap.wire.jsonrpc.vocabulary import SERVER_ERROR

logger = logging.getLogger(__name__)

_KINDS = ("tools", "prompts", "resources")
_SIGN_OF_LIFE = 20.0
"""Seconds between two words to a replica that somebody follows one of its streams."""
_CONNECTION = 86_400.0
"""Seconds for which the place of a connection is known at most."""
_FULL = 0.05
"""Seconds until a client that reads slowly is sent more."""

_pack = msgspec.msgpack.Encoder().encode


class _InSession(msgspec.Struct, array_like=True):
    """What one replica tells another about a session."""

    session_id: str
    data: bytes = b""


class _LeftBehind(msgspec.Struct, array_like=True):
    """What the home of a session knows of its mailbox when it gives it away."""

    number: int = 0
    heard: int = 0
    events: list[tuple[int, bytes]] = []


_unpack = msgspec.msgpack.Decoder(_InSession).decode


class _OtherReplicas:
    """The other replicas, as far as one session is concerned; see `OtherReplicas`."""

    def __init__(self, shared: "SharedSessions", session: HttpSession, home: str) -> None:
        self._shared = shared
        self._session = session
        self.name = shared.bus.name
        self.session_id = session.id
        self.home = home
        self.lock = anyio.Lock()
        self.is_saved = False

    @property
    def is_guest(self) -> bool:
        return self.home != self.name

    async def save(self) -> None:
        await self._shared.save(self._session)

    async def request(self, method: str, params: Raw) -> Result | None:
        """The answer of the home, where only that may answer; None: this replica may."""
        if not self._shared.bus.is_alive(self.home):
            await self._shared.come_home(self._session)
        if not self.is_guest:
            return None
        asked = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
        client, session = self._session.client, self._session
        request = relayed(client, session.id, msgspec.json.encode(asked))
        return await self._shared.requests.send(self.home, request, session.streams.mailbox)

    def cancel(self, request_id: Raw) -> None:
        note = _InSession(self._session.id, bytes(request_id))
        self._shared.tell_all_soon("cancel", note)

    def take_answer(self, message: ClientMessage) -> None:
        replica = _asker(message.id)
        if replica and replica != self.name:
            said = {"jsonrpc": "2.0", "id": message.id}
            said |= {"error": message.error} if len(message.error) else {"result": message.result}
            note = _InSession(self._session.id, msgspec.json.encode(said))
            self._shared.bus.tell_soon(replica, "answer", _pack(note))

    def mail(self, message: bytes) -> bool:
        """Send the client something outside its requests, through its home."""
        note = _InSession(self._session.id, message)
        self._shared.bus.tell_soon(self.home, "mail", _pack(note))
        return True


class SharedSessions:
    """The sessions of all replicas, as one of them sees them.

    Args:
        gateway: What clients see.
        sessions: Those that this replica has.
        stateless: Its clients that are in no session.
        bus: The other replicas.
    """

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
        self._prefix = hashlib.sha256(bus.name.encode()).hexdigest()[:8] + "x"
        self._known: dict[str, _OtherReplicas] = {}
        gateway.subscriptions.knows_all = False
        sessions.shared = self
        for kind, handler in {
            "end": self._on_end,
            "cancel": self._on_cancel,
            "answer": self._on_answer,
            "mail": self._on_mail,
            "message": self._on_message,
            "resign": self._on_resign,
            "home": self._on_home,
            "changed": self._on_changed,
            "resumed": self._on_resumed,
        }.items():
            bus.on(kind, handler)
        bus.on_gap.append(self.check_all)

    async def run(self) -> None:
        """Keep what others need to know up to date until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.events.run)
            while True:
                await anyio.sleep(self._sessions.limits.look)
                with suppress(CoordinatorDown):  # later: the records outlive a while without it
                    await self.check_all()

    def attach(self, session: HttpSession, home: str | None = None) -> None:
        """Have the other replicas know of a session that is here now.

        Args:
            session: Which one.
            home: The replica that tells its client of changes; None: this one.
        """
        elsewhere = _OtherReplicas(self, session, home or self.bus.name)
        self._known[session.id] = elsewhere
        session.client.elsewhere = elsewhere
        streams = session.streams
        streams.prefix = self._prefix
        streams.on_begin = lambda name, asked: self._keep_opening(session, name, asked)
        streams.log.on_add = lambda logged: self._keep(session, logged)
        if elsewhere.is_guest:
            streams.mailbox.route = elsewhere.mail

    def detach(self, session: HttpSession) -> None:
        """A session is not here any more, though it may go on at other replicas."""
        self._known.pop(session.id, None)
        self.events.forget(session.id)

    async def save(self, session: HttpSession) -> None:
        """Write what a session is.

        Raises:
            CoordinatorDown: That cannot be done now.
        """
        elsewhere = self._known.get(session.id)
        if elsewhere is None:
            return
        uris = self._gateway.subscriptions.followed(session.client)
        record = SessionRecord.of(session.client, uris, elsewhere.home)
        await self.records.write(session.id, record)
        if elsewhere.is_saved:
            await self.bus.tell_all("changed", _pack(_InSession(session.id)))
        elsewhere.is_saved = True

    async def announce(self, session: HttpSession) -> None:
        """Let other replicas know where a session is that ends with its connection.

        Raises:
            CoordinatorDown: That cannot be done now.
        """
        record = SessionRecord.of(session.client, (), self.bus.name)
        await self.records.write(session.id, record, ttl=_CONNECTION)

    async def pass_on(self, session_id: str, admitted: Admitted, body: bytes) -> bool:
        """Bring a message to the connection that a session lives on; False: there is none.

        Raises:
            CoordinatorDown: That cannot be done now.
        """
        record = await self.records.read(session_id)
        if record is None or record.principal != admitted.principal or record.version:
            return False
        await self.bus.tell(record.home, "message", _pack(_InSession(session_id, body)))
        return True

    async def fetch(self, session_id: str, admitted: Admitted) -> HttpSession | None:
        """A session that another replica opened, from here on also here; None: there is none.

        Raises:
            CoordinatorDown: Nobody can say whether there is one.
        """
        record = await self.records.read(session_id)
        # bound to who opened it: an id that got into other hands opens nothing
        if record is None or record.principal != admitted.principal or not record.version:
            return None
        if (session := self._sessions.find(session_id, admitted)) is not None:
            return session  # another request was quicker
        session = self._sessions.adopt(
            session_id, admitted, record.audience, record.holder, home=record.home
        )
        if session is None:
            return None
        record.introduce(session.client)
        self._known[session_id].is_saved = True
        self._gateway.subscriptions.joined(session.client)
        await self.records.touch(session_id)
        if not self.bus.is_alive(record.home):
            self._gateway.tasks.start_soon(self._try_to_come_home, session)
        return session

    async def end(self, session: HttpSession) -> None:
        """End a session at all replicas.

        Raises:
            CoordinatorDown: That cannot be done now.
        """
        await self.records.delete(session.id)
        await self.bus.tell_all("end", _pack(_InSession(session.id)))
        await self.events.delete(session.id)

    def end_soon(self, session: HttpSession) -> None:
        """The same, later, as far as possible."""
        self._gateway.tasks.start_soon(self._try_to_end, session)

    async def check_all(self) -> None:
        """Note which sessions are in use, and drop those that ended elsewhere."""
        for session in self._sessions:
            elsewhere = self._known.get(session.id)
            if elsewhere is None or not elsewhere.is_saved:
                continue
            is_used = session.busy or session.used > now() - 2 * self._sessions.limits.look
            if is_used:
                there = await self.records.touch(session.id)
            else:
                there = await self.records.read(session.id) is not None
            if not there and session.is_open:
                self._sessions.close_soon(session)

    async def come_home(self, session: HttpSession) -> None:
        """Become the replica that tells a client of changes.

        Raises:
            CoordinatorDown: That cannot be done now.
        """
        elsewhere = self._known.get(session.id)
        if elsewhere is None or not elsewhere.is_guest:
            return
        async with elsewhere.lock:
            if not elsewhere.is_guest:
                return
            record = await self.records.read(session.id)
            if record is None:
                return
            left: _LeftBehind | None = None
            if record.home != self.bus.name and self.bus.is_alive(record.home):
                with suppress(Unavailable):
                    reply = await self.bus.ask(record.home, "resign", _pack(_InSession(session.id)))
                    left = msgspec.msgpack.decode(reply, type=_LeftBehind)
            await self._take_over(session, elsewhere, record, left)

    async def _take_over(
        self,
        session: HttpSession,
        elsewhere: _OtherReplicas,
        record: SessionRecord,
        left: "_LeftBehind | None",
    ) -> None:
        mailbox = session.streams.mailbox
        kept = await self.events.read(session.id, MAILBOX)
        found = {one.number: one.encoded for one in kept}
        found |= dict(left.events) if left is not None else {}
        session.streams.log.on_add = None  # they are kept already
        for number, encoded in sorted(found.items()):
            if number > mailbox.number:
                mailbox.number = number
                session.streams.log.add(LoggedEvent(MAILBOX, number, encoded, False, now()))
        session.streams.log.on_add = lambda logged: self._keep(session, logged)
        if left is not None:
            mailbox.number, mailbox.heard = max(mailbox.number, left.number), left.heard
        else:
            mailbox.heard = mailbox.number
        elsewhere.home = self.bus.name
        mailbox.route = None
        self._gateway.subscriptions.joined(session.client)
        record.home = self.bus.name
        await self.records.write(session.id, record)
        await self.bus.tell_all("home", _pack(_InSession(session.id, self.bus.name.encode())))
        for uri in record.uris:
            self._gateway.tasks.start_soon(self._follow, session, uri)
        if left is None:
            # the last home is gone, and with it what it had yet to say
            for kind in _KINDS:
                mailbox.send(notification(f"notifications/{kind}/list_changed"))

    async def _follow(self, session: HttpSession, uri: str) -> None:
        mailbox = session.streams.mailbox
        request = session_turn(session.client, Raw(b"0"), mailbox, Params(uri=uri), None)
        said = Raw(msgspec.json.encode({"uri": uri}))
        message = ClientMessage("2.0", Raw(b"0"), "resources/subscribe", said)
        try:
            await self._gateway.answer(request, message)
        except Refused as exc:
            logger.info("%r is not followed: %s", uri, exc)

    async def _try_to_come_home(self, session: HttpSession) -> None:
        with suppress(CoordinatorDown):
            await self.come_home(session)

    async def _try_to_end(self, session: HttpSession) -> None:
        with suppress(CoordinatorDown):
            await self.end(session)

    async def pour(
        self, session: HttpSession, name: str, after: int, response: Streaming, extra: Headers
    ) -> bool:
        """Send the rest of a stream that another replica began; False: nothing of it is kept.

        Raises:
            CoordinatorDown: Nobody can say what it was.
        """
        kept = await self.events.read(session.id, name)
        if not kept:
            return False
        writer = EventWriter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._feed, session, name, after, writer)
            try:
                first = opening(name, after, is_primed=session.streams.is_primed())
                await writer.pour(response, extra, first)
            finally:
                tasks.cancel_scope.cancel()
        return True

    async def _feed(self, session: HttpSession, name: str, after: int, writer: EventWriter) -> None:
        request_id, number, told_at, last = b"", after, -_SIGN_OF_LIFE, None
        try:
            async for one in self.events.follow(session.id, name):
                last = one
                if anyio.current_time() - told_at > _SIGN_OF_LIFE:
                    told_at = anyio.current_time()
                    note = _pack(_InSession(session.id, name.encode()))
                    self.bus.tell_soon(one.replica, "resumed", note)
                if not one.number:
                    request_id = one.encoded
                number = max(number, one.number)
                while one.number > after and not writer.ended and not writer.push(one.encoded):
                    await anyio.sleep(_FULL)
        except CoordinatorDown:
            writer.end()  # the client asks again
            return
        if last is not None and not last.is_last and request_id:
            words = "the replica that worked on this request is gone; it may have been done"
            error = Refused(SERVER_ERROR, words, {"reason": "unavailable"})
            event_id = b"%b-%d" % (name.encode(), number + 1)
            encoded = event(refusal(Raw(request_id), error), event_id)
            writer.push(encoded)
            final = KeptEvent(name, number + 1, encoded, True, self.bus.name)
            self.events.keep(session.id, final)
        writer.end()

    def tell_all_soon(self, kind: str, note: _InSession) -> None:
        self._gateway.tasks.start_soon(self._try_to_tell_all, kind, _pack(note))

    async def _try_to_tell_all(self, kind: str, data: bytes) -> None:
        with suppress(CoordinatorDown):
            await self.bus.tell_all(kind, data)

    def _keep(self, session: HttpSession, logged: LoggedEvent) -> None:
        kept = KeptEvent(
            logged.stream, logged.number, logged.encoded, logged.is_last, self.bus.name
        )
        self.events.keep(session.id, kept)

    def _keep_opening(self, session: HttpSession, name: str, asked: bytes) -> None:
        try:
            request_id = bytes(parse(asked).id)
        except UNPARSABLE:
            return
        self.events.keep(session.id, KeptEvent(name, 0, request_id, False, self.bus.name))

    async def _client_of(self, request: RelayedRequest) -> Client | None:
        """The client that another replica sends a request of."""
        if not request.session_id:
            return self._stateless.of(request.principal, request.holder, request.audience)
        admitted = Admitted(request.principal)
        session = self._sessions.find(request.session_id, admitted)
        session = session or await self.fetch(request.session_id, admitted)
        return session.client if session is not None else None

    def _here(self, note: Note) -> tuple[HttpSession | None, bytes]:
        said = _unpack(note.data)
        return self._sessions.of(said.session_id), said.data

    async def _on_end(self, note: Note) -> None:
        session, _ = self._here(note)
        if session is not None:
            self._sessions.close_soon(session)

    async def _on_cancel(self, note: Note) -> None:
        session, request_id = self._here(note)
        if session is not None:
            session.client.cancel(Raw(request_id), is_here=True)

    async def _on_answer(self, note: Note) -> None:
        session, said = self._here(note)
        if session is not None:
            with suppress(*UNPARSABLE):
                session.client.take_answer(parse(said))

    async def _on_message(self, note: Note) -> None:
        session, body = self._here(note)
        if session is not None:
            mailbox, tasks = session.streams.mailbox, self._gateway.tasks
            Duplex(self._gateway, session.client, mailbox, tasks).take(body)

    async def _on_mail(self, note: Note) -> None:
        session, message = self._here(note)
        if session is not None:
            session.streams.mailbox.send(message)

    async def _on_resign(self, note: Note) -> bytes:
        session, _ = self._here(note)
        if session is None:
            return _pack(_LeftBehind())
        self._become_guest(session, note.sender)
        mailbox = session.streams.mailbox
        # with it, rather than from the coordinator: the last ones may not be written yet
        events = session.streams.log.after(MAILBOX, 0)
        kept = [(one.number, one.encoded) for one in events]
        return _pack(_LeftBehind(mailbox.number, mailbox.heard, kept))

    async def _on_home(self, note: Note) -> None:
        session, home = self._here(note)
        if session is not None:
            self._become_guest(session, home.decode())

    def _become_guest(self, session: HttpSession, home: str) -> None:
        elsewhere = self._known.get(session.id)
        if elsewhere is None or home == self.bus.name:
            return
        was_home, elsewhere.home = not elsewhere.is_guest, home
        session.streams.mailbox.route = elsewhere.mail
        session.streams.mailbox.disconnect()
        if was_home:
            self._gateway.tasks.start_soon(self._gateway.subscriptions.release, session.client)

    async def _on_changed(self, note: Note) -> None:
        session, _ = self._here(note)
        if session is not None and (record := await self.records.read(session.id)) is not None:
            session.client.log_level = record.log_level

    async def _on_resumed(self, note: Note) -> None:
        session, name = self._here(note)
        if session is not None:
            session.streams.go_on_elsewhere(name.decode())


def _asker(request_id: Raw) -> str:
    """The replica that asked a question of this id."""
    try:
        return msgspec.json.decode(request_id, type=str).rpartition(".")[0]
    except UNPARSABLE:
        return ""
