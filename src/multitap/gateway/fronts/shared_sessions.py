"""Sessions over HTTP that every replica of a cluster can serve.

A session is a record that all replicas read. Each of them answers its requests, and relays
messages that another one waits for.
"""

import logging
from contextlib import suppress

import anyio
import msgspec
from msgspec import Raw

from multitap.cluster.coordinator import CoordinatorDown
from multitap.gateway.client import Client
from multitap.gateway.client_message import (
    UNPARSABLE,
    ClientMessage,
    Result,
    parse,
)
from multitap.gateway.fronts.http_sessions import HttpSession, HttpSessions
from multitap.gateway.fronts.remote_streams import RemoteStreams
from multitap.gateway.fronts.session_homes import SessionHomes
from multitap.gateway.fronts.stateless_clients import StatelessClients
from multitap.gateway.gateway import Gateway
from multitap.gateway.replicas.kept_events import KeptEvents
from multitap.gateway.replicas.relayed_requests import RelayedRequest, RelayedRequests, to_relay
from multitap.gateway.replicas.replica_bus import ReplicaBus, ReplicaMessage, SessionMessage
from multitap.gateway.replicas.session_records import SessionRecord, SessionRecords
from multitap.http.server.access import Admitted
from multitap.upstream.attempt import now

logger = logging.getLogger(__name__)


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
    def is_guest(self) -> bool:
        return self.home != self.name

    async def save(self) -> None:
        await self._shared.save(self._session)

    async def request(self, method: str, params: Raw) -> Result | None:
        """The answer of the home, if only that may answer; else None."""
        # the home is dead: the first replica that is asked takes over
        if not self._shared.bus.is_alive(self.home):
            await self._shared.homes.come_home(self._session)
        if not self.is_guest:
            return None
        asked = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
        client, session = self._session.client, self._session
        request = to_relay(client, session.id, msgspec.json.encode(asked))
        return await self._shared.requests.send(self.home, request, session.streams.mailbox)

    def cancel(self, request_id: Raw) -> None:
        note = SessionMessage(self._session.id, bytes(request_id))
        self._shared.bus.tell_all_soon("cancel", note.pack())

    def take_answer(self, message: ClientMessage) -> None:
        replica = _asker(message.id)
        if replica and replica != self.name:
            said = {"jsonrpc": "2.0", "id": message.id}
            said |= {"error": message.error} if len(message.error) else {"result": message.result}
            note = SessionMessage(self._session.id, msgspec.json.encode(said))
            self._shared.bus.tell_soon(replica, "answer", note.pack())

    def mail(self, message: bytes) -> bool:
        """Send the client a message outside its requests, through its home."""
        note = SessionMessage(self._session.id, message)
        self._shared.bus.tell_soon(self.home, "mail", note.pack())
        return True

    def tell_home(self) -> None:
        """Tell the home that the session is used here, so that it does not end there."""
        self._shared.bus.tell_soon(self.home, "used", SessionMessage(self._session.id).pack())


class SharedSessions:
    """The sessions of all replicas, as one of them sees them.

    Args:
        gateway: The gateway.
        sessions: The sessions of this replica.
        stateless: Its clients without a session.
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
        self._known: dict[str, _OtherReplicas] = {}
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
            session: The session.
            home: The replica that notifies its client of changes; None: this one.
        """
        elsewhere = _OtherReplicas(self, session, home or self.bus.name)
        self._known[session.id] = elsewhere
        session.client.elsewhere = elsewhere
        self.streams.attach(session)
        if elsewhere.is_guest:
            session.streams.mailbox.route = elsewhere.mail

    def detach(self, session: HttpSession) -> None:
        """Forget a session here; it may continue at other replicas."""
        self._known.pop(session.id, None)
        self.events.forget(session.id)

    async def save(self, session: HttpSession) -> None:
        """Write the record of a session.

        Raises:
            CoordinatorDown: It cannot be written now.
        """
        elsewhere = self._known.get(session.id)
        if elsewhere is None:
            return
        record = SessionRecord.of(session.client, elsewhere.home)
        await self.records.write(session.id, record, ttl=self._sessions.life(session))
        # a new session is not known elsewhere yet
        if elsewhere.is_saved:
            await self.bus.tell_all("changed", SessionMessage(session.id).pack())
        elsewhere.is_saved = True

    async def fetch(self, session_id: str, admitted: Admitted) -> HttpSession | None:
        """Fetch a session that another replica opened; None if there is none.

        Raises:
            CoordinatorDown: The record cannot be read now.
        """
        record = await self.records.read(session_id)
        # bound to the principal that opened it: a leaked id alone gives no access
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
        # nothing is awaited from `adopt` to `joined`: other requests find the session complete
        self._known[session_id].is_saved = True
        self._gateway.subscriptions.on_joined(session.client)
        await self.records.touch(session_id)
        if not self.bus.is_alive(record.home):
            # in a task: the request that brought the session here need not wait for the move
            self._gateway.tasks.start_soon(self.homes.try_to_come_home, session)
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
        self._gateway.tasks.start_soon(self._try_to_end, session)

    async def check_all(self) -> None:
        """Prolong the sessions in use, and drop those that ended elsewhere."""
        for session in self._sessions:
            elsewhere = self._known.get(session.id)
            if elsewhere is None or not elsewhere.is_saved:
                continue
            # twice the interval: a use just after the last look must still count in this one
            is_recent = session.used > now() - 2 * self._sessions.limits.look
            if session.busy or (session.is_used and is_recent):
                there = await self.records.touch(session.id)
                if elsewhere.is_guest:
                    elsewhere.tell_home()
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
        said = SessionMessage.of(note)
        return self._sessions.of(said.session_id), said.data

    async def _on_end(self, note: ReplicaMessage) -> None:
        session, _ = self._here(note)
        self.records.end(SessionMessage.of(note).session_id)
        if session is not None:
            self._sessions.close_soon(session)

    async def _on_cancel(self, note: ReplicaMessage) -> None:
        session, request_id = self._here(note)
        if session is not None:
            session.client.cancel(Raw(request_id), is_here=True)

    async def _on_answer(self, note: ReplicaMessage) -> None:
        session, said = self._here(note)
        if session is not None:
            with suppress(*UNPARSABLE):
                session.client.take_answer(parse(said))

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
