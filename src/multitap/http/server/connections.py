"""All connections of one server, and their shared limits."""

import asyncio
import heapq
import ipaddress
import mmap
import resource
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import msgspec

from multitap.http.server.request import HttpApp, RequestHead
from multitap.limits import FairTurns, Shares
from multitap.tasks import Tasks

if TYPE_CHECKING:
    from multitap.http.server.connection import ServerConnection

READ = 16 * 1024
"""Bytes read at once, except from long bodies: unparsed ones are kept."""
_MOST_READ = 256 * 1024
"""Bytes read at once from a long body."""
_AT_ONCE = 100
"""To make room, one of this many connections is closed."""
_NETWORK = 64
"""Bits of an IPv6 network prefix; the owner chooses the rest of an address."""


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of connections."""

    connections: int = 20_000
    """Connections at the same time; at most half of the allowed descriptors."""
    head: int = 64 * 1024
    """Bytes of a request's head, or of the framing of its body."""
    fields: int = 100
    """Headers and trailers of a request."""
    body: int = 32 * 1024 * 1024
    """Bytes of a request's body."""
    memory: int = 44 * 1024 * 1024
    """Bytes of all unanswered requests; the share of one holder has room for one with the longest
    body."""
    queued: int = 16
    """Pipelined requests that may wait on one connection."""
    request_timeout: float = 30.0
    """Seconds from the first byte of a request to its last."""
    keep_alive: float = 120.0
    """Seconds a connection may be silent between requests."""
    write_timeout: float = 60.0
    """Seconds a client may leave responses unread."""
    linger: float = 5.0
    """Seconds a client has to read the last response on a connection."""
    ping: float = 15.0
    """Seconds of silence after which a client gets a keep-alive for its request."""
    drain: float = 2.0
    """Seconds for requests in progress when the server stops; then their connections are closed."""


_FIRST_REQUEST = 0.25
"""Seconds for the first request of a connection that was opened just before the end."""


class Connections:
    """All connections of one server."""

    def __init__(self, app: HttpApp, tasks: Tasks, limits: HttpLimits) -> None:
        self.app = app
        self.tasks = tasks
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.fair_turns = FairTurns()
        # mapped: it takes memory only once long bodies are read
        self.space = memoryview(mmap.mmap(-1, _MOST_READ))
        """The read buffer of all connections; its contents are handled at once."""
        self.room = self.space[:READ]
        self.closing = False
        self.closed = False
        self.edition = object()
        """Remembered heads are valid while they refer to this object; see `forget_heads`."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(limits.connections, files // 2)  # servers need some too
        self.under_way = Shares(self.most, "requests at a time")
        self.memory = Shares(limits.memory, "bytes for unanswered requests")
        self.rejections: Counter[int] = Counter()
        """How many requests were not admitted, by status."""
        self._members: set[ServerConnection] = set()
        self._unread: set[ServerConnection] = set()
        """The newest, whose first request would be closed without an answer if they made room."""

    def enter(self, member: "ServerConnection") -> bool:
        """Count a new connection; False if there are too many."""
        # also while closing: the system had already accepted the connection
        if self.closed:  # it took that long to agree on TLS, or to say whose it is
            member.abort()
            return True
        if len(self._members) >= self.most and not self._make_room():
            return False
        self._members.add(member)
        # in two turns of the loop, what the client has sent with its connection is read
        self._unread.add(member)
        self.loop.call_soon(self.loop.call_soon, self._unread.discard, member)
        return True

    def leave(self, member: "ServerConnection") -> None:
        self._members.discard(member)
        self.weigh(member, 0)

    def weigh(self, member: "ServerConnection", weight: int) -> None:
        """Count the memory of a connection.

        If its holder has too much, the longest incomplete request of the holder is refused, so
        that large requests do not keep out small ones.
        """
        grown, holder = weight - member.weight, member.holder
        if grown <= 0:
            member.weight = weight
            if grown:
                self.memory.give(holder, -grown)
            return
        while not self.memory.take(holder, grown):
            theirs = (other for other in self._members if other.holder == holder and other.arriving)
            longest = max(theirs, key=lambda other: other.arriving, default=member)
            longest.shed(self.memory.refusal(holder))
            if longest is member:
                return
        member.weight = weight

    def forget_heads(self) -> None:
        """Have `admit` called again for every request, also for remembered heads."""
        self.edition = object()

    def abort(self, is_meant: Callable[[RequestHead], bool]) -> None:
        """Close the connections with an unanswered request for which `is_meant` holds."""
        # a copy: one that is closed leaves at once
        for member in tuple(self._members):
            if member.concerns(is_meant):
                member.abort()

    def unanswered(self) -> list[RequestHead]:
        """The heads of all unanswered requests."""
        return [head for member in self._members for head in member.unanswered()]

    def _make_room(self) -> bool:
        """Close idle connections, unused ones first; False if there are none."""
        idle = [member for member in self._members if member.idle and member not in self._unread]
        count = 1 + self.most // _AT_ONCE  # several at once: each search looks at all
        for member in heapq.nsmallest(count, idle, key=lambda it: (it.answered, it.since)):
            # now, although its transport ends later: the new one needs the place
            self._members.discard(member)
            member.abort()
        return bool(idle)

    async def watch(self) -> None:
        """Apply the time limits until cancelled."""
        pause = min(1.0, self.limits.ping / 4, self.limits.request_timeout / 4)
        while True:
            before = self.loop.time()
            await anyio.sleep(pause)
            self._look(self.loop.time() - before - pause, pause)

    # a function, or its last local would keep a connection alive
    def _look(self, late: float, pause: float) -> None:
        now = self.loop.time()
        for member in tuple(self._members):
            # while we had no time to read, no client was slow: uvloop calls us before it reads
            if late > pause:
                member.excuse(late, now)
            member.look(now)

    async def close(self) -> None:
        """Close all connections, after requests in progress have had time to be answered."""
        self.closing = True
        # a client that has just connected is about to send a request
        late = self.loop.time() + min(_FIRST_REQUEST, self.limits.drain)
        while self.loop.time() < late and any(map(_is_new, self._members)):
            for member in [member for member in self._members if not _is_new(member)]:
                member.close()
            await anyio.sleep(0.01)
        for member in tuple(self._members):
            member.close()
        with anyio.move_on_after(self.limits.drain):
            # polled: it happens once, and connections end in callbacks
            while self._members:
                await anyio.sleep(0.01)
        for member in tuple(self._members):
            member.abort()
        self.closed = True
        self.fair_turns.stop()


def address_of(host: str) -> str:
    """The holder for an address; for IPv6 the network, as its owner chooses the rest."""
    if ":" not in host:
        return host
    whole = int(ipaddress.IPv6Address(host.partition("%")[0]))
    return f"{ipaddress.IPv6Address(whole >> _NETWORK << _NETWORK)}/{_NETWORK}"


def _is_new(member: "ServerConnection") -> bool:
    """Whether no request was sent on it yet."""
    return member.idle and not member.answered
