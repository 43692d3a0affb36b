"""The home of a session: the replica that notifies its client of changes.

That is the replica where the client listens or, before that, the one that opened the session.
If it dies, the next one that serves the session takes over.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import anyio
import msgspec
from msgspec import Raw

from multitap.cluster.coordinator import CoordinatorDown
from multitap.errors import Unavailable
from multitap.gateway.client import Client
from multitap.gateway.client_message import ClientMessage, Params, Refused, notification
from multitap.gateway.client_request import session_turn
from multitap.gateway.fronts.event_log import LoggedEvent
from multitap.gateway.fronts.http_sessions import HttpSession, HttpSessions
from multitap.gateway.fronts.resumable_streams import MAILBOX
from multitap.gateway.gateway import Gateway
from multitap.gateway.replicas.kept_events import KeptEvents
from multitap.gateway.replicas.replica_bus import ReplicaBus, ReplicaMessage, SessionMessage
from multitap.gateway.replicas.session_records import SessionRecord, SessionRecords
from multitap.upstream.attempt import now

logger = logging.getLogger(__name__)

_KINDS = ("tools", "prompts", "resources")

_pack = msgspec.msgpack.Encoder().encode


class _LeftBehind(msgspec.Struct, array_like=True):
    """The state of a mailbox that moves to a new home."""

    number: int = 0
    heard: int = 0
    events: list[tuple[int, bytes]] = []


class HomeState(Protocol):
    """The home of a session, as one replica knows it."""

    home: str
    lock: anyio.Lock

    @property
    def is_guest(self) -> bool: ...

    def mail(self, message: bytes) -> bool: ...


class SessionHomes:
    """Moves sessions from one replica to another.

    Args:
        gateway: The gateway.
        sessions: The sessions of this replica.
        bus: The other replicas.
        records: The session records.
        events: The kept events.
        known: Returns the home of a session, as known here.
    """

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        gateway: Gateway,
        sessions: HttpSessions,
        bus: ReplicaBus,
        records: SessionRecords,
        events: KeptEvents,
        known: Callable[[str], HomeState | None],
    ) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._bus = bus
        self._records = records
        self._events = events
        self._known = known
        bus.on("resign", self._on_resign)
        bus.on("home", self._on_home)

    async def come_home(self, session: HttpSession) -> None:
        """Move the home of a session to this replica.

        Raises:
            CoordinatorDown: The session cannot be moved now.
        """
        elsewhere = self._known(session.id)
        if elsewhere is None or not elsewhere.is_guest:
            return
        async with elsewhere.lock:
            # checked again: it may have moved here while we waited for the lock
            if not elsewhere.is_guest:
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
            await self._take_over(session, elsewhere, record, left)

    async def _take_over(
        self,
        session: HttpSession,
        elsewhere: HomeState,
        record: SessionRecord,
        left: "_LeftBehind | None",
    ) -> None:
        mailbox = session.streams.mailbox
        # the last await before the switch below: what arrives until then takes the old route
        kept = await self._events.read(session.id, MAILBOX)
        found = {one.number: one.encoded for one in kept}
        found |= dict(left.events) if left is not None else {}
        log = session.streams.log
        keep, log.on_add = log.on_add, None  # they are kept already
        for number, encoded in sorted(found.items()):
            if number > mailbox.number:
                mailbox.number = number
                log.add(LoggedEvent(MAILBOX, number, encoded, False, now()))
        log.on_add = keep
        if left is not None:
            mailbox.number, mailbox.heard = max(mailbox.number, left.number), left.heard
        else:
            mailbox.heard = mailbox.number
        # home and route change together, without an await: no message falls in between
        elsewhere.home = self._bus.name
        mailbox.route = None
        self._gateway.subscriptions.on_joined(session.client)
        record.home = self._bus.name
        # the record before the note: those who miss the note read the record
        await self._records.write(session.id, record)
        await self._bus.tell_all("home", SessionMessage(session.id, self._bus.name.encode()).pack())
        for uri in record.uris:
            self._gateway.tasks.start_soon(self._follow, session, uri)
        if left is None:
            # the last home is gone, and its unsent messages with it
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

    async def try_to_come_home(self, session: HttpSession) -> None:
        with suppress(CoordinatorDown):
            await self.come_home(session)

    async def _on_resign(self, note: ReplicaMessage) -> bytes:
        session = self._sessions.of(SessionMessage.of(note).session_id)
        if session is None:
            return _pack(_LeftBehind())
        # before its mailbox is packed: nothing can be added to what is left behind
        self._become_guest(session, note.sender)
        mailbox = session.streams.mailbox
        # with it, rather than from the coordinator: the last ones may not be written yet
        events = session.streams.log.after(MAILBOX, 0)
        kept = [(one.number, one.encoded) for one in events]
        return _pack(_LeftBehind(mailbox.number, mailbox.heard, kept))

    async def _on_home(self, note: ReplicaMessage) -> None:
        said = SessionMessage.of(note)
        if (session := self._sessions.of(said.session_id)) is not None:
            self._become_guest(session, said.data.decode())

    def _become_guest(self, session: HttpSession, home: str) -> None:
        elsewhere = self._known(session.id)
        if elsewhere is None or home == self._bus.name:
            return
        was_home, elsewhere.home = not elsewhere.is_guest, home
        session.streams.mailbox.route = elsewhere.mail
        # the client follows it at the new home; here it would hear nothing more
        session.streams.mailbox.disconnect()
        if was_home:
            self._gateway.tasks.start_soon(self._release, session.client)

    async def _release(self, client: Client) -> None:
        await self._gateway.subscriptions.on_left(client, is_elsewhere=True)
