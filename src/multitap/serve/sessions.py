"""Clients of the handshake era over HTTP: a session each, until they leave or fall silent."""

import asyncio
import heapq
import secrets
from collections import deque
from collections.abc import Iterator

import anyio

from multitap.records import dataclass
from multitap.serve.access import Admitted
from multitap.serve.event_stream import Stream
from multitap.serve.gateway import Gateway
from multitap.serve.peer import Peer
from multitap.shares import Shares
from multitap.upstream.trial import now


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
"""The share of all sessions, one in so many, that ends at once to make room."""


class Mailbox:
    """What a client is told outside its requests, kept until it listens; an `Outlet`."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._stream: Stream | None = None

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
        while len(self._waiting) > _BACKLOG or self._size > _ROOM:
            self._size -= len(self._waiting.popleft())
        return True

    def listen(self) -> Stream:
        """The stream on which the client listens from now on; an earlier one ends."""
        if self._stream is not None:
            self._stream.end()
        stream = self._stream = Stream()
        while self._waiting:
            stream.send(self._waiting.popleft())
        self._size = 0
        return stream

    def hang_up(self, stream: Stream) -> None:
        """The client does not listen there any more."""
        stream.end()
        if self._stream is stream:
            self._stream = None

    def close(self) -> None:
        """Let a client that listens know that there is no more."""
        if self._stream is not None:
            self._stream.end()


class Session:
    """One client's session.

    Args:
        admitted: Who it is.
        profile: What it sees.
        holder: On whose share it counts.
    """

    def __init__(self, admitted: Admitted, profile: str | None, holder: str) -> None:
        self.id = secrets.token_urlsafe(24)
        self.mailbox = Mailbox()
        self.peer = Peer(self.mailbox, principal=admitted.principal, holder=holder, profile=profile)
        self.used = now()
        self.uses = 0
        self.is_open = True

    @property
    def busy(self) -> bool:
        return bool(self.peer.scopes) or self.mailbox.open


class Sessions:
    """All sessions, bounded in number and in idle time.

    Args:
        gateway: Told of those that end.
        limits: What they may cost.
    """

    def __init__(self, gateway: Gateway, limits: SessionLimits = SessionLimits()) -> None:
        self._gateway = gateway
        self.limits = limits
        self._clock = asyncio.get_running_loop().time  # to find the loop costs more than to ask it
        self._sessions: dict[str, Session] = {}
        self.shares = Shares(limits.most, "sessions")

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def open(self, admitted: Admitted, profile: str | None, holder: str) -> Session | None:
        """A new session; None where there are too many that are in use."""
        if not self.shares.take(holder):
            self._make_room(holder)
            if not self.shares.take(holder):
                return None
        session = Session(admitted, profile, holder)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, admitted: Admitted) -> Session | None:
        """A client's own session; that of another one does not exist for it."""
        session = self._sessions.get(session_id)
        if session is None or session.peer.principal != admitted.principal:
            return None
        session.used = self._clock()
        session.uses += 1
        return session

    async def close(self, session: Session) -> None:
        if session.id in self._sessions:
            self._forget(session)
            await self._gateway.left(session.peer)

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
                    self._close_soon(session)

    def _make_room(self, holder: str) -> None:
        """End sessions that are hardly used: a flood of them must not end the others.

        Those of whoever wants more go first; of others only where there is none left at all.
        """
        oldest = now() - self.limits.grace
        idle = [one for one in self if not one.busy and (one.uses < _FEW or one.used < oldest)]
        own = [one for one in idle if one.peer.holder == holder]
        if not own and self.shares.total < self.shares.most:
            return
        count = 1 + self.limits.most // _AT_ONCE  # looking through all for each would be slow
        for session in heapq.nsmallest(count, own or idle, key=lambda one: (one.uses, one.used)):
            self._close_soon(session)

    def _close_soon(self, session: Session) -> None:
        """Servers are told in their own time; that it is gone holds at once."""
        self._forget(session)
        self._gateway.tasks.start_soon(self._gateway.left, session.peer)

    def _forget(self, session: Session) -> None:
        session.is_open = False
        del self._sessions[session.id]
        self.shares.give(session.peer.holder)
        session.mailbox.close()
