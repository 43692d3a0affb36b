"""Clients of the handshake era over HTTP: a session each, until they leave or fall silent."""

import secrets
from collections import deque

import anyio

from multitap.serve.access import Admitted
from multitap.serve.gateway import Gateway
from multitap.serve.peer import Peer
from multitap.serve.reply import Stream
from multitap.upstream.trial import now

MOST = 10_000
"""Sessions at the same time."""
IDLE = 1800.0
"""Seconds without a message after which a session ends."""
_LOOK = 15.0
_BACKLOG = 256


class Mailbox:
    """What a client is told outside its requests, kept until it listens; an `Outlet`."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=_BACKLOG)
        self._stream: Stream | None = None

    @property
    def open(self) -> bool:
        return self._stream is not None

    def send(self, message: bytes) -> bool:
        if self._stream is not None:
            return self._stream.send(message)
        self._waiting.append(message)
        return True

    def listen(self) -> Stream:
        """The stream on which the client listens from now on; an earlier one ends."""
        if self._stream is not None:
            self._stream.end()
        stream = self._stream = Stream()
        while self._waiting:
            stream.send(self._waiting.popleft())
        return stream

    def hang_up(self, stream: Stream) -> None:
        """The client does not listen there any more."""
        stream.end()
        if self._stream is stream:
            self._stream = None


class Session:
    """One client's session.

    Args:
        admitted: Who it is.
        profile: What it sees.
    """

    def __init__(self, admitted: Admitted, profile: str | None) -> None:
        self.id = secrets.token_urlsafe(24)
        self.mailbox = Mailbox()
        self.peer = Peer(self.mailbox, principal=admitted.principal, profile=profile)
        self.used = now()

    @property
    def busy(self) -> bool:
        return bool(self.peer.scopes) or self.mailbox.open


class Sessions:
    """All sessions, bounded in number and in idle time.

    Args:
        gateway: Told of those that end.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, admitted: Admitted, profile: str | None) -> Session | None:
        """A new session; None where there are too many that are in use."""
        if len(self._sessions) >= MOST and not self._make_room():
            return None
        session = Session(admitted, profile)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, admitted: Admitted) -> Session | None:
        """A client's own session; that of another one does not exist for it."""
        session = self._sessions.get(session_id)
        if session is None or session.peer.principal != admitted.principal:
            return None
        session.used = now()
        return session

    async def close(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.mailbox.listen().end()
            await self._gateway.left(session.peer)

    async def reap(self) -> None:
        """End sessions that nobody uses, until cancelled."""
        while True:
            await anyio.sleep(_LOOK)
            oldest = now() - IDLE
            for session in tuple(self._sessions.values()):
                if session.used < oldest and not session.busy:
                    await self.close(session)

    def _make_room(self) -> bool:
        idle = [one for one in self._sessions.values() if not one.busy]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one.used)
        self._gateway.tasks.start_soon(self.close, oldest)
        del self._sessions[oldest.id]
        return True
