"""One client at a time on a session with a server that does not say whose question it asks.

On pipes a server cannot say for which of its calls it asks or logs. The calls of two clients
therefore never run at the same time in a session with a server that does so: each client waits
for its turn, and gets another session if that takes long, as it does while a person thinks.

A server that nobody has seen to ask is tried first: what it has not been asked for before runs
for one client at a time, and alone if the server says that it logs. From then on it works for all
of them at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

import anyio

from multitap.errors import BadArguments, CallTimeout, Overloaded, ServerError
from multitap.events import LinkState
from multitap.serve.peer import Peer
from multitap.serve.private import PrivateLinks, agree_on_logs
from multitap.tasks import Tasks
from multitap.upstream.caller import CallContext, rival_of
from multitap.upstream.link import Link
from multitap.wire.deadline import Deadline

TRIAL = 3.0
"""Seconds for which what a server was never asked for runs for one client at a time."""
TURN = 1.0
"""Seconds a client waits for its turn before it gets another session."""
RETRY = 30.0
"""Seconds until another attempt after one to get another session failed."""
_SETTLE = 5.0
_SHARE = 4  # parts of a call's time, one of which it may wait here before it goes another way
_LOOK = 0.2  # seconds between two looks at a server that is starting

PER_CLIENT = 'set `session = "per-client"` for the server'
"""What to do about questions of which it is not certain whose they are."""


class _Place:
    """One session with a server, and who uses it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._users: dict[object, int] = {}
        self._left: object | None = None
        """Who last gave up a call: the server may not have read that yet."""

    def is_used_only_by(self, party: object) -> bool:
        return not self._users or self._users.keys() == {party}

    def is_free_for(self, party: object) -> bool:
        return self.is_used_only_by(party) and self.link.serves_only(party)

    def enter(self, party: object) -> None:
        self._users[party] = self._users.get(party, 0) + 1

    def leave(self, party: object, *, answered: bool) -> None:
        self._users[party] -= 1
        if not self._users[party]:
            del self._users[party]
        if not answered:
            self._left = party

    async def settle(self, party: object) -> None:
        """Let nothing reach a client that belongs to a call which another one gave up."""
        left = self._left
        if left is not None and left is not party:
            await self.link.settle(_SETTLE)
            if self._left is left:
                self._left = None


class _Floor:
    """All sessions with one server that its clients share."""

    def __init__(self, link: Link) -> None:
        self.first = _Place(link)
        self.spares: list[_Place] = []
        self.tries = 0
        self.trial_until = 0.0
        """When what the server was never asked for has run for one client long enough."""
        self.visitors = 0
        """Calls that have their turn there, or wait for it, and sessions that start for them."""
        self.last: WeakKeyDictionary[Peer, _Place] = WeakKeyDictionary()
        """Where a client was: the server may keep something for it there."""
        self.refused_until = 0.0
        self.refusal = ""
        """Why there is no other session."""

    def refused(self, words: str, until: float) -> None:
        """There is no other session, and none is asked for until then."""
        self.refusal, self.refused_until = words, until

    def places(self) -> tuple[_Place, ...]:
        """All sessions; one of the others only if it can be used."""
        return (self.first, *(place for place in self.spares if place.link.live))

    def pick(self, party: object, *, is_urgent: bool) -> _Place | None:
        """A session that a client can use now; in a hurry, also one where it was not before."""
        places = self.places()
        last = self.last.get(party) if isinstance(party, Peer) else None
        if last is not None and last in places:
            if last.is_free_for(party):
                return last
            if not is_urgent:
                return None
        return next((place for place in places if place.is_free_for(party)), None)


class Floors:
    """Who has their turn on which session.

    Args:
        private: Where other sessions come from, within everybody's fair share.
        tasks: Where they start.
    """

    def __init__(self, private: PrivateLinks, tasks: Tasks) -> None:
        self._private = private
        self._tasks = tasks
        self._clock = asyncio.get_running_loop().time
        self._floors: dict[Link, _Floor] = {}

    @asynccontextmanager
    async def turn(
        self, link: Link, subject: str, context: CallContext, holder: str, deadline: Deadline
    ) -> AsyncGenerator[Link]:
        """Within the block the client has its turn, on the session that is the value.

        Args:
            link: The session that clients share.
            subject: What is asked for: a tool's own name, or a method.
            context: Whose call it is.
            holder: On whose share another session counts.
            deadline: Of the call.

        Raises:
            CallTimeout: It is not its turn in time.
        """
        if not link.may_mix(subject) or rival_of(context) is None:
            yield link
            return
        party = context.party
        floor = self._floor(link)
        floor.visitors += 1
        try:
            place = await self._place(floor, subject, party, holder, deadline)
            async with _using(place, party, subject):
                if isinstance(party, Peer):
                    floor.last[party] = place
                await agree_on_logs(link, place.link)
                with self._trial(floor, subject, party):
                    await self._drained(link, party, min(floor.trial_until, deadline.at))
                    yield place.link
        finally:
            floor.visitors -= 1
            link.habits.changed.ring()

    @contextmanager
    def _trial(self, floor: _Floor, subject: str, party: object) -> Generator[None]:
        """Within the block a server does what it was never asked for, if it is that."""
        link = floor.first.link
        if link.habits.asks or link.is_quiet(subject):
            yield
            return
        if floor.first.is_used_only_by(party):
            floor.trial_until = self._clock() + TRIAL
        floor.tries += 1
        link.is_tried = link.logs
        try:
            yield
        finally:
            floor.tries -= 1
            link.is_tried = link.logs and floor.tries > 0

    async def _drained(self, link: Link, party: object, until: float) -> None:
        """Let the calls of others end first: log messages cannot wait until it is certain."""
        while link.is_tried and not link.serves_only(party) and (now := self._clock()) < until:
            with anyio.move_on_after(until - now):
                await link.habits.changed.wait()

    def _floor(self, link: Link) -> _Floor:
        floor = self._floors.get(link)
        if floor is None:
            self._floors = {
                known: one
                for known, one in self._floors.items()
                if one.visitors or any(self._private.has(spare.link) for spare in one.spares)
            }
            floor = self._floors[link] = _Floor(link)
        return floor

    async def _place(
        self, floor: _Floor, subject: str, party: object, holder: str, deadline: Deadline
    ) -> _Place:
        """Wait for a session that the client can use."""
        link, habits = floor.first.link, floor.first.link.habits
        since, opened = self._clock(), False
        share = (deadline.at - since) / _SHARE  # where there is little time, nobody waits for long
        turn = min(TURN, share)
        while True:
            now = self._clock()
            if not link.settled:  # nobody's turn has begun yet
                since, floor.trial_until = now, now + TRIAL
            waited, most = now - since, deadline.at - now if link.settled else _LOOK
            if not habits.asks:
                pause = min(floor.trial_until, since + share) - now
                is_over = pause <= 0 or not link.may_mix(subject)
                place = floor.first if is_over or floor.first.is_used_only_by(party) else None
            else:
                is_urgent = waited >= turn
                floor.spares = [one for one in floor.spares if self._private.has(one.link)]
                place = floor.pick(party, is_urgent=is_urgent)
                pause = RETRY if is_urgent else turn - waited
                if place is None and is_urgent and not opened:
                    opened = self._open(floor, holder)
            if place is not None:
                return place
            if now >= deadline.at:
                if not link.settled:
                    return floor.first  # that it is still starting is not for us to say
                raise _late(floor, deadline)
            with anyio.move_on_after(min(pause, most)):
                await habits.changed.wait()

    def _open(self, floor: _Floor, holder: str) -> bool:
        """Have another session started; whether that can be done."""
        if self._clock() < floor.refused_until:
            return False
        try:
            link = self._private.spare(floor.first.link, holder)
        except Overloaded as exc:
            floor.refused(str(exc), self._clock() + RETRY)
            return False
        floor.visitors += 1  # a floor that is forgotten meanwhile would never use it
        self._tasks.start_soon(self._start, floor, link)
        return True

    async def _start(self, floor: _Floor, link: Link) -> None:
        await link.first_settled.wait()
        floor.visitors -= 1
        if link.state is LinkState.CONNECTED or link.asleep:
            floor.spares.append(_Place(link))
        elif self._private.has(link):
            self._private.end(link)
            floor.refused(f"another one failed: {link.failure}", self._clock() + RETRY)
        link.habits.changed.ring()


@asynccontextmanager
async def _using(place: _Place, party: object, subject: str) -> AsyncGenerator[None]:
    """Within the block the client uses the session; what it did not bring is learned."""
    answered = False
    place.enter(party)
    try:
        await place.settle(party)
        yield
        answered = True
    except (ServerError, BadArguments):
        answered = True
        raise
    finally:
        place.leave(party, answered=answered)
        if answered:
            place.link.was_quiet(subject)


def _late(floor: _Floor, deadline: Deadline) -> CallTimeout:
    seconds = deadline.timeout or deadline.hard_timeout or 0.0
    words = f"no turn within {seconds:g} s: it asks questions, and works for another client"
    if floor.refusal:
        words += f"; there is no other session ({floor.refusal})"
    return CallTimeout(floor.first.link.name, words, hint=PER_CLIENT)
