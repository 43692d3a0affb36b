"""The clients that the HTTP front remembers: sessions, and stateless callers."""

import asyncio
import heapq
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Catalog
from multitap.config import Profile
from multitap.gateway.client import Client, declared_extensions, log_level
from multitap.gateway.eras import admit, admit_arguments
from multitap.gateway.fronts.streams import (
    MOST_AWAY,
    MOST_BYTES,
    EventLog,
    LogLimits,
    SessionStreams,
)
from multitap.gateway.fronts.tokens import Admitted
from multitap.gateway.gateway import Gateway
from multitap.http.server.request import RequestHead
from multitap.hub.hub import Hub
from multitap.limits import Shares
from multitap.principal import Principal
from multitap.tasks import now
from multitap.wire.jsonrpc import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    EMPTY,
    LOG_LEVEL_KEY,
    VERSION_HEADER,
    ClientMessage,
    RequestParams,
)


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of sessions."""

    most: int = 10_000
    """Sessions at the same time; beyond that, idle ones are ended."""
    idle: float = 1800.0
    """Seconds without a message after which a session ends."""
    unused: float = 120.0
    """The same for a session without a single request after its handshake: most were abandoned."""
    recent: float = 5.0
    """Seconds after its last message for which a used session is not ended to make room."""
    newcomer: float = 15.0
    """Seconds for which an unused session goes no earlier than a used one: its first request may
    be on its way."""
    look: float = 15.0
    """Seconds between two searches for such sessions, so one may last this much longer."""
    requests: int = 1024
    """Requests of one session in progress at the same time."""
    log: LogLimits = LogLimits()
    """The limits of kept events."""


PRIMED = "2025-11-25"
"""The first version whose clients accept events without a message."""
_AT_ONCE = 100
"""To make room, one of this many idle sessions is ended: each search looks at all of them."""


class SessionUse(NamedTuple):
    """How a session is used, as far as it matters when room is needed."""

    id: str
    holder: str
    address: str
    spent: float
    """The part of its life that has passed since its last message."""
    is_busy: bool


def choose_to_end(
    uses: Sequence[SessionUse], holder: str, *, is_full: bool
) -> Sequence[SessionUse]:
    """The sessions that make room for a new one of a holder; none if it has to be refused.

    The longest unused go first, in proportion to their lives: an abandoned handshake goes before a
    session that is used every few minutes. A holder pays with its own sessions; others pay only if
    there is no room at all and it has no idle one itself.
    """
    idle = [use for use in uses if not use.is_busy]
    own = [use for use in idle if use.holder == holder]
    if own:
        # one token may be used at many places, of which one opens sessions without end
        paying = _with_many(own, [use.address for use in own])
    elif is_full:
        paying = _with_many(idle, [use.holder for use in idle])
    else:
        return []
    return heapq.nlargest(1 + len(paying) // _AT_ONCE, paying, key=lambda use: use.spent)


def _with_many(uses: Sequence[SessionUse], owners: Sequence[str]) -> Sequence[SessionUse]:
    """The sessions of those owners that have at least an even share."""
    counts = Counter(owners)
    if len(counts) < 2:  # noqa: PLR2004 - nothing to compare
        return uses
    even = len(uses) / len(counts)
    return [use for use, owner in zip(uses, owners, strict=True) if counts[owner] >= even]


class HttpSession:
    """One client's session."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        session_id: str,
        admitted: Admitted,
        audience: Audience,
        holder: str,
        address: str,
        log: EventLog,
        away: Shares,
    ) -> None:
        self.id = session_id
        self.address = address
        self.streams = SessionStreams(
            log, away, holder, is_primed=lambda: self.client.version >= PRIMED
        )
        self.client = Client(
            self.streams.mailbox, principal=admitted.principal, holder=holder, audience=audience
        )
        self.opened = self.used = now()
        self.is_used = False
        """Whether there was a request after the handshake."""
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
        self, head: RequestHead, audience: Audience, log: LogLimits | None = None
    ) -> HttpSession | None:
        """A new session for the client that sent a request; None if too many are in use."""
        # 192 random bits: without tokens, the id is all that protects a session
        session_id = secrets.token_urlsafe(24)
        return self.adopt(
            session_id, head.admitted, audience, _holder(head), address=head.address, log=log
        )

    def adopt(
        self,
        session_id: str,
        admitted: Admitted,
        audience: Audience,
        holder: str,
        *,
        address: str = "",
        log: LogLimits | None = None,
        home: str | None = None,
    ) -> HttpSession | None:
        """A session with this id, opened at another replica; None if too many are in use."""
        if not self.shares.take(holder):
            if not self._make_room(holder):
                return None
            # not `take`: it replaces one that has just ended, so no share grows
            self.shares.replace(holder)
        log_ = EventLog(log or self.limits.log, self._bytes_kept, holder)
        session = HttpSession(session_id, admitted, audience, holder, address, log_, self.away)
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
        if session is None or session.client.principal.key != admitted.principal.key:
            return None
        session.used = self._clock()
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
            for session in self:
                session.streams.expire(now())
                if session.busy:
                    # its life begins when the stream or the last request ends: a client that loses
                    # a stream after hours has time to come back
                    session.used = self._clock()
                elif self._clock() - session.used > self.life(session):
                    self.close_soon(session)

    def life(self, session: HttpSession) -> float:
        """Seconds without a message after which a session ends."""
        limits = self.limits
        return limits.idle if session.is_used else min(limits.unused, limits.idle)

    def _use(self, session: HttpSession) -> SessionUse:
        age = self._clock() - session.used
        return SessionUse(
            session.id,
            session.client.holder,
            session.address,
            age / (self.limits.idle if age < self.limits.newcomer else self.life(session)),
            session.busy or (session.is_used and age < self.limits.recent),
        )

    def _make_room(self, holder: str) -> bool:
        """End idle sessions for a new one of a holder; False if there are none to end."""
        uses = [self._use(session) for session in self._sessions.values()]
        ending = choose_to_end(uses, holder, is_full=self.shares.total >= self.shares.most)
        for use in ending:
            # its share is free at once, though servers hear of it later
            self.close_soon(self._sessions[use.id])
        return bool(ending)

    def close_soon(self, session: HttpSession) -> None:
        """End a session at once; servers are notified in a task."""
        self._forget(session)
        self._gateway.tasks.start_apart(self._gateway.on_left, session.client)

    def _forget(self, session: HttpSession) -> None:
        # connections remember the session, and check this before they use it
        session.is_open = False
        if self.shared is not None:
            self.shared.detach(session)
        del self._sessions[session.id]
        self._gateway.metrics.on_session(session.client.version, now() - session.opened)
        self.shares.give(session.client.holder)
        session.streams.close()


def _holder(head: RequestHead) -> str:
    """The holder of what a request opens: its principal, also if that was verified later."""
    return head.admitted.principal.key or head.holder


_ADDRESSES = 1024
"""Clients that are remembered; beyond that, those without a token are forgotten. They lose nothing:
the next request creates them again."""
VERSION_FIELD = VERSION_HEADER.encode()
"""The header with the protocol version of a request."""


class _NoOutlet:
    """The outlet of stateless clients, which can only be reached during their own requests."""

    def send(self, message: bytes) -> bool:  # noqa: ARG002 - an `Outlet`
        return False


class KnownCall(NamedTuple):
    """The last call with the same head: an equal one comes from the same client.

    Valid as long as catalog and profiles are the same.
    """

    name: str
    meta: Mapping[str, Raw]
    client: Client
    catalog: Catalog
    profiles: Mapping[str, Profile]
    capabilities: Raw
    log_level: str | None
    caller: str
    """The client's label for people."""

    def fits(self, params: RequestParams, hub: Hub) -> bool:
        """Whether a call with the same head is an equal one."""
        return (
            self.name == params.name
            and self.meta == params.meta
            and self.catalog is hub.catalog
            and self.profiles is hub.settings.profiles
        )


class StatelessClients:
    """Owns the stateless clients, one for each principal, address and audience."""

    def __init__(
        self, gateway: Gateway, choose_audience: Callable[[RequestHead], Audience]
    ) -> None:
        self._gateway = gateway
        self._chosen = choose_audience
        self._clients: dict[tuple[Principal, str, Audience], Client] = {}

    def admit(self, head: RequestHead, message: ClientMessage, params: RequestParams) -> Client:
        """The client of a request without a session, after a check against its head.

        Raises:
            RpcError: Head and body do not agree, or there is no such profile.
        """
        admit(message, params, head.pairs, head.headers)
        client = self.client_of(head, params.meta.get(CLIENT_CAPABILITIES_KEY, EMPTY))
        if message.method == "tools/call":
            hub, view = self._gateway.hub, self._gateway.view(client.audience)
            if view.wants_headers(params.name):
                admit_arguments(view.tools[params.name], params, head.pairs)
            elif VERSION_FIELD in head.headers:  # otherwise the body decides the era
                meta = {key: value.copy() for key, value in params.meta.items()}
                level, info = (meta.get(key) for key in (LOG_LEVEL_KEY, CLIENT_INFO_KEY))
                head.memory = KnownCall(
                    params.name,
                    meta,
                    client,
                    view.catalog,
                    hub.settings.profiles,
                    meta.get(CLIENT_CAPABILITIES_KEY, EMPTY),
                    None if level is None else log_level(level),
                    client.caller if info is None else client.caller_of(info),
                )
        return client

    def all(self) -> list[Client]:
        return [*self._clients.values()]

    def drop(self, principals: Collection[str]) -> list[Client]:
        """Forget the clients of some principals, by their keys, and return them."""
        dropped = [client for key, client in self._clients.items() if key[0].key in principals]
        self._clients = {
            key: client for key, client in self._clients.items() if key[0].key not in principals
        }
        return dropped

    def client_of(self, head: RequestHead, capabilities: Raw = EMPTY) -> Client:
        """The client of a request, by its head and what it can do."""
        declared = declared_extensions(capabilities)
        audience = self._chosen(head)
        if declared:
            audience = audience._replace(declared=declared)
        return self.of(head.admitted.principal, _holder(head), audience)

    def of(self, principal: Principal, holder: str, audience: Audience) -> Client:
        """The client of a principal, address and audience."""
        key = (principal, holder, audience)
        if (client := self._clients.get(key)) is None:
            if len(self._clients) >= _ADDRESSES:
                self._clients = {key: client for key, client in self._clients.items() if key[0].key}
            client = Client(_NoOutlet(), principal=key[0], holder=key[1], audience=key[2])
            self._clients[key] = client
        return client
