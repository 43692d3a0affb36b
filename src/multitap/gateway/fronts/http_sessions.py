"""The sessions of handshake-era clients over HTTP."""

import asyncio
import heapq
import secrets
from collections.abc import Iterator
from typing import Protocol

import anyio

from multitap.catalog.audience import Audience
from multitap.gateway.client import Client
from multitap.gateway.fronts.event_log import MOST_BYTES, EventLog, LogLimits
from multitap.gateway.fronts.resumable_streams import MOST_AWAY, SessionStreams
from multitap.gateway.gateway import Gateway
from multitap.http.server.access import Admitted
from multitap.records import dataclass
from multitap.shares import Shares
from multitap.upstream.attempt import now


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of sessions."""

    most: int = 10_000
    """Sessions at the same time; beyond that, rarely used ones are ended."""
    idle: float = 1800.0
    """Seconds without a message after which a session ends."""
    look: float = 15.0
    """Seconds between two searches for such sessions, so one may last this much longer."""
    requests: int = 1024
    """Requests of one session in progress at the same time."""
    grace: float = 60.0
    """Seconds after its last message for which a session in use is not ended to make room."""
    log: LogLimits = LogLimits()
    """The limits of kept events."""


PRIMED = "2025-11-25"
"""The first version whose clients accept events without a message."""
_FEW = 2
"""A session with fewer messages counts as unused."""
_AT_ONCE = 100
"""To make room, one of this many sessions is ended."""


class HttpSession:
    """One client's session."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        session_id: str,
        admitted: Admitted,
        audience: Audience,
        holder: str,
        log: EventLog,
        away: Shares,
    ) -> None:
        self.id = session_id
        self.streams = SessionStreams(
            log, away, holder, is_primed=lambda: self.client.version >= PRIMED
        )
        self.client = Client(
            self.streams.mailbox, principal=admitted.principal, holder=holder, audience=audience
        )
        self.used = now()
        self.uses = 0
        self.is_open = True

    @property
    def busy(self) -> bool:
        return bool(self.client.scopes) or self.streams.mailbox.is_connected


class AttachedSessions(Protocol):
    """Announces sessions to other replicas."""

    def attach(self, session: HttpSession, home: str | None = None) -> None: ...

    def detach(self, session: HttpSession) -> None: ...

    def end_soon(self, session: HttpSession) -> None: ...


class HttpSessions:
    """All sessions, bounded in number and in idle time.

    Args:
        gateway: Notified of those that end.
        limits: The limits of sessions.
    """

    def __init__(self, gateway: Gateway, limits: SessionLimits = SessionLimits()) -> None:
        self._gateway = gateway
        self.limits = limits
        self._clock = asyncio.get_running_loop().time  # looked up once: finding the loop is slow
        self._sessions: dict[str, HttpSession] = {}
        self.shared: AttachedSessions | None = None
        """Announces sessions to other replicas; None without a cluster."""
        self.shares = Shares(limits.most, "sessions")
        self._bytes_kept = Shares(MOST_BYTES, "bytes of kept events")
        self.away = Shares(MOST_AWAY, "requests whose clients are away")

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[HttpSession]:
        # a copy: sessions may end during the iteration
        return iter(tuple(self._sessions.values()))

    def open(
        self, admitted: Admitted, audience: Audience, holder: str, log: LogLimits | None = None
    ) -> HttpSession | None:
        """A new session; None if too many are in use."""
        # 192 random bits: without tokens, the id is all that protects a session
        return self.adopt(secrets.token_urlsafe(24), admitted, audience, holder, log)

    def adopt(  # noqa: PLR0917 - what a session is made of
        self,
        session_id: str,
        admitted: Admitted,
        audience: Audience,
        holder: str,
        log: LogLimits | None = None,
        home: str | None = None,
    ) -> HttpSession | None:
        """A session with this id, opened at another replica; None if too many are in use."""
        # `_make_room` frees the shares at once, though servers hear of it later
        if not self.shares.take(holder):
            self._make_room(holder)
            if not self.shares.take(holder):
                return None
        kept = EventLog(log or self.limits.log, self._bytes_kept, holder)
        session = HttpSession(session_id, admitted, audience, holder, kept, self.away)
        self._sessions[session.id] = session
        # one that ends with its connection cannot move to another replica
        if self.shared is not None and log is None:
            self.shared.attach(session, home)
        return session

    def of(self, session_id: str) -> HttpSession | None:
        """The session with this id, without a check of its owner."""
        return self._sessions.get(session_id)

    def find(self, session_id: str, admitted: Admitted) -> HttpSession | None:
        """The session with this id, if it belongs to the client; else None."""
        session = self._sessions.get(session_id)
        if session is None or session.client.principal != admitted.principal:
            return None
        session.used = self._clock()
        session.uses += 1
        return session

    async def close(self, session: HttpSession) -> None:
        # it may have been closed already: by the reaper, a revocation or another replica
        if session.id in self._sessions:
            self._forget(session)
            await self._gateway.on_left(session.client)

    def end_streams(self) -> None:
        """End the open streams of all clients."""
        for session in self:
            session.streams.mailbox.disconnect()

    async def reap(self) -> None:
        """End idle sessions, until cancelled."""
        while True:
            await anyio.sleep(self.limits.look)
            oldest = now() - self.limits.idle
            for session in self:
                session.streams.expire(now())
                if session.used < oldest and not session.busy:
                    self.close_soon(session)

    def _make_room(self, holder: str) -> None:
        """End rarely used sessions, so that a flood of new ones does not end those in use.

        Those of the same holder go first; others only if it has none.
        """
        oldest = now() - self.limits.grace
        idle = [one for one in self if not one.busy and (one.uses < _FEW or one.used < oldest)]
        own = [one for one in idle if one.client.holder == holder]
        if not own and self.shares.total < self.shares.most:
            return
        count = 1 + self.limits.most // _AT_ONCE  # several at once: each search looks at all
        for session in heapq.nsmallest(count, own or idle, key=lambda one: (one.uses, one.used)):
            self.close_soon(session)

    def close_soon(self, session: HttpSession) -> None:
        """End a session at once; servers are notified in a task."""
        self._forget(session)
        self._gateway.tasks.start_soon(self._gateway.on_left, session.client)

    def _forget(self, session: HttpSession) -> None:
        # connections remember the session, and check this before they use it
        session.is_open = False
        if self.shared is not None:
            self.shared.detach(session)
        del self._sessions[session.id]
        self.shares.give(session.client.holder)
        session.streams.close()
