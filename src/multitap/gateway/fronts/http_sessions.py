"""The sessions of handshake-era clients over HTTP."""

import asyncio
import heapq
import secrets
from collections import deque
from collections.abc import Iterator

import anyio

from multitap.catalog.audience import Audience
from multitap.gateway.client import Client
from multitap.gateway.gateway import Gateway
from multitap.http.server.access import Admitted
from multitap.http.server.event_writer import EventWriter
from multitap.records import dataclass
from multitap.shares import Shares
from multitap.upstream.attempt import now


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What sessions may cost."""

    most: int = 10_000
    """Sessions at the same time."""
    idle: float = 1800.0
    """Seconds without a message after which a session ends."""
    look: float = 15.0
    """Seconds between two looks for such sessions."""
    requests: int = 1024
    """Requests of one session that are worked on at the same time."""
    grace: float = 60.0
    """Seconds without a message before which a session in use makes no room for another."""


_BACKLOG = 256
_ROOM = 1024 * 1024
"""Bytes that are kept for a client that does not listen."""
_FEW = 2
"""Messages before which a session counts as one that nobody uses."""
_AT_ONCE = 100
"""One in this many sessions ends at once to make room."""


class Mailbox:
    """What a client is told outside its requests, kept until it listens; an `Outlet`."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._stream: EventWriter | None = None

    @property
    def open(self) -> bool:
        return self._stream is not None

    def send(self, message: bytes) -> bool:
        if self._stream is not None:
            if self._stream.send(message):
                return True
            self._stream.end()  # it does not read: that something is missing, it has to notice
            return False
        self._waiting.append(message)
        self._size += len(message)
        # many clients never listen: what they miss must not be kept for good
        while len(self._waiting) > _BACKLOG or self._size > _ROOM:
            self._size -= len(self._waiting.popleft())
        return True

    def listen(self) -> EventWriter:
        """The stream on which the client listens from now on; an earlier one ends."""
        if self._stream is not None:
            self._stream.end()
        stream = self._stream = EventWriter()
        while self._waiting:
            stream.send(self._waiting.popleft())
        self._size = 0
        return stream

    def hang_up(self, stream: EventWriter) -> None:
        """The client does not listen there any more."""
        stream.end()
        if self._stream is stream:
            self._stream = None

    def close(self) -> None:
        """Let a client that listens know that there is no more."""
        if self._stream is not None:
            self._stream.end()


class HttpSession:
    """One client's session.

    Args:
        admitted: Who it is.
        audience: With whom it shares what it sees.
        holder: On whose share it counts.
    """

    def __init__(self, admitted: Admitted, audience: Audience, holder: str) -> None:
        # 192 random bits: without tokens, the id is all that protects a session
        self.id = secrets.token_urlsafe(24)
        self.mailbox = Mailbox()
        self.client = Client(
            self.mailbox, principal=admitted.principal, holder=holder, audience=audience
        )
        self.used = now()
        self.uses = 0
        self.is_open = True

    @property
    def busy(self) -> bool:
        return bool(self.client.scopes) or self.mailbox.open


class HttpSessions:
    """All sessions, bounded in number and in idle time.

    Args:
        gateway: Told of those that end.
        limits: What they may cost.
    """

    def __init__(self, gateway: Gateway, limits: SessionLimits = SessionLimits()) -> None:
        self._gateway = gateway
        self.limits = limits
        self._clock = asyncio.get_running_loop().time  # to find the loop costs more than to ask it
        self._sessions: dict[str, HttpSession] = {}
        self.shares = Shares(limits.most, "sessions")

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[HttpSession]:
        # a copy: sessions end while somebody walks through them
        return iter(tuple(self._sessions.values()))

    def open(self, admitted: Admitted, audience: Audience, holder: str) -> HttpSession | None:
        """A new session; None where there are too many that are in use."""
        if not self.shares.take(holder):
            self._make_room(holder)
            if not self.shares.take(holder):
                return None
        session = HttpSession(admitted, audience, holder)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, admitted: Admitted) -> HttpSession | None:
        """A client's own session; that of another one does not exist for it."""
        session = self._sessions.get(session_id)
        if session is None or session.client.principal != admitted.principal:
            return None
        session.used = self._clock()
        session.uses += 1
        return session

    async def close(self, session: HttpSession) -> None:
        if session.id in self._sessions:
            self._forget(session)
            await self._gateway.left(session.client)

    def end_streams(self) -> None:
        """Let every client that listens know that there is no more."""
        for session in self:
            session.mailbox.close()

    async def reap(self) -> None:
        """End sessions that nobody uses, until cancelled."""
        while True:
            await anyio.sleep(self.limits.look)
            oldest = now() - self.limits.idle
            for session in self:
                if session.used < oldest and not session.busy:
                    self.close_soon(session)

    def _make_room(self, holder: str) -> None:
        """End sessions that are hardly used: a flood of them must not end the others.

        Those of the client that wants more go first; others only if there is none left at all.
        """
        oldest = now() - self.limits.grace
        idle = [one for one in self if not one.busy and (one.uses < _FEW or one.used < oldest)]
        own = [one for one in idle if one.client.holder == holder]
        if not own and self.shares.total < self.shares.most:
            return
        count = 1 + self.limits.most // _AT_ONCE  # looking through all for each would be slow
        for session in heapq.nsmallest(count, own or idle, key=lambda one: (one.uses, one.used)):
            self.close_soon(session)

    def close_soon(self, session: HttpSession) -> None:
        """Servers are told in their own time; that it is gone holds at once."""
        self._forget(session)
        self._gateway.tasks.start_soon(self._gateway.left, session.client)

    def _forget(self, session: HttpSession) -> None:
        session.is_open = False
        del self._sessions[session.id]
        self.shares.give(session.client.holder)
        session.mailbox.close()
