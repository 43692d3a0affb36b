"""All connections of one server, and their shared limits."""

import asyncio
import heapq
import ipaddress
import resource
from collections.abc import Callable
from typing import Protocol

import anyio

from multitap.http.server.fair_turns import FairTurns, TurnTaker
from multitap.http.server.http_request import HttpApp, RequestHead
from multitap.records import dataclass
from multitap.shares import Shares
from multitap.tasks import Tasks

READ = 16 * 1024
"""Bytes that are read at once from who may send anything: what cannot be parsed yet is kept."""
_MOST_READ = 256 * 1024
"""Bytes that are read at once of a long body."""
_AT_ONCE = 100
"""One in this many connections is closed at once to make room."""
_NETWORK = 64
"""Bits of an IPv6 address that its owner has from somebody else."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What connections may cost."""

    connections: int = 20_000
    """At the same time, or half of the descriptors that the system allows, if that is less."""
    head: int = 64 * 1024
    """Bytes of a request's head, and of anything else around a body."""
    fields: int = 100
    """Headers of a request, with those after its body."""
    body: int = 32 * 1024 * 1024
    """Bytes of a request's body."""
    memory: int = 44 * 1024 * 1024
    """Bytes that all requests hold that are not answered yet; one holder's share has room for one
    with the longest body."""
    queued: int = 16
    """Requests that may wait for the one before them."""
    request_timeout: float = 30.0
    """Seconds from the first byte of a request to its last."""
    keep_alive: float = 120.0
    """Seconds a connection may be silent between requests."""
    write_timeout: float = 60.0
    """Seconds a client may leave unread what it is sent."""
    linger: float = 5.0
    """Seconds a client has to read the last words on a connection."""
    ping: float = 15.0
    """Seconds of silence after which a client is shown that its request is still worked on."""
    drain: float = 2.0
    """Seconds for requests in progress when the server ends; then their connections are closed."""


_FIRST_REQUEST = 0.25
"""Seconds for the first request of a connection that was made just before the end."""


class OpenConnection(TurnTaker, Protocol):
    """One connection."""

    since: float
    answered: int
    holder: str
    weight: int

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer on it."""
        ...

    @property
    def arriving(self) -> int:
        """Bytes of its request that is not complete yet."""
        ...

    def look(self, now: float) -> None:
        """Close it if its client is too slow or silent."""
        ...

    def concerns(self, is_meant: Callable[[RequestHead], bool]) -> bool:
        """Whether a request on it that is not answered yet is one of those."""
        ...

    def shed(self, words: str) -> None:
        """Give up the request that arrives on it."""
        ...

    def close(self) -> None:
        """Take no further request; the current one is still answered."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


class Connections:
    """All connections of one server."""

    def __init__(self, app: HttpApp, tasks: Tasks, limits: HttpLimits) -> None:
        self.app = app
        self.tasks = tasks
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.fair_turns = FairTurns()
        self.space = memoryview(bytearray(_MOST_READ))
        """What is read goes here first, from all connections: it is looked at at once."""
        self.room = self.space[:READ]
        self.closing = False
        self.edition = object()
        """What every remembered head is compared with; see `forget_heads`."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(limits.connections, files // 2)  # servers need some too
        self.under_way = Shares(self.most, "requests at a time")
        self.memory = Shares(limits.memory, "bytes for unanswered requests")
        self._members: set[OpenConnection] = set()

    def enter(self, member: OpenConnection) -> bool:
        """Count a new connection; False if there are too many."""
        # also while it closes: the system had accepted it before the last answers go out
        if len(self._members) >= self.most and not self._make_room():
            return False
        self._members.add(member)
        return True

    def leave(self, member: OpenConnection) -> None:
        self._members.discard(member)
        self.weigh(member, 0)

    def weigh(self, member: OpenConnection, weight: int) -> None:
        """Count the memory that a connection holds.

        Where it gets no more, the longest request gives way that its holder has not sent to the
        end: small ones are not kept out by large ones.
        """
        grown, holder = weight - member.weight, member.holder
        if grown <= 0:
            member.weight = weight
            if grown:
                self.memory.give(holder, -grown)
            return
        while not self.memory.take(holder, grown):
            theirs = (one for one in self._members if one.holder == holder and one.arriving)
            longest = max(theirs, key=lambda one: one.arriving, default=member)
            longest.shed(self.memory.refusal(holder))
            if longest is member:
                return
        member.weight = weight

    def forget_heads(self) -> None:
        """Have every request decided about again, also those that are known by their heads."""
        self.edition = object()

    def abort(self, is_meant: Callable[[RequestHead], bool]) -> None:
        """Close the connections on which one of these requests is not answered yet."""
        # a copy: one that is closed leaves at once
        for member in tuple(self._members):
            if member.concerns(is_meant):
                member.abort()

    def _make_room(self) -> bool:
        """End connections that nobody waits on, above all those that never asked anything."""
        idle = [one for one in self._members if one.idle]
        count = 1 + self.most // _AT_ONCE  # looking through all for each would be slow
        for one in heapq.nsmallest(count, idle, key=lambda one: (one.answered, one.since)):
            # at once, though its transport ends later: the new one needs the place now
            self._members.discard(one)
            one.abort()
        return bool(idle)

    async def watch(self) -> None:
        """Look after them, until cancelled."""
        pause = min(1.0, self.limits.ping / 4, self.limits.request_timeout / 4)
        while True:
            await anyio.sleep(pause)
            self._look()

    def _look(self) -> None:  # a function, or the last one it looked at would be kept until then
        now = self.loop.time()
        for member in tuple(self._members):
            member.look(now)

    async def close(self) -> None:
        """Let requests under way be answered, for a moment."""
        self.closing = True
        # a client that has only just connected is about to ask, and cannot know that we leave
        late = self.loop.time() + min(_FIRST_REQUEST, self.limits.drain)
        while self.loop.time() < late and any(_is_new(one) for one in self._members):
            for member in [one for one in self._members if not _is_new(one)]:
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
        self.fair_turns.stop()


def address_of(host: str) -> str:
    """Whose address it is: of an IPv6 one its owner chooses the second half."""
    if ":" not in host:
        return host
    whole = int(ipaddress.IPv6Address(host.partition("%")[0]))
    return f"{ipaddress.IPv6Address(whole >> _NETWORK << _NETWORK)}/{_NETWORK}"


def _is_new(member: OpenConnection) -> bool:
    """Whether nothing was asked on it yet."""
    return member.idle and not member.answered
