"""One client at a time on a server whose questions do not say which call they belong to.

On pipes a server cannot say for which of its calls it asks. The calls of two clients therefore
never run at the same time in a session with a server that does so: each client waits for its turn,
and gets another session if that takes long, as it does while a person thinks.

A server that nobody has seen to ask is tried first: what it has not been asked for before runs
for one client at a time. From then on it works for all of them at once. One that only logs is no
reason for turns: log messages that may belong to several clients reach none of them.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import anyio

from multitap.errors import BadArguments, CallTimeout, Overloaded, ServerError
from multitap.events import LinkState
from multitap.gateway.client import Client
from multitap.gateway.private_links import PrivateLinks, agree_on_logs
from multitap.tasks import Tasks
from multitap.upstream.link import Link
from multitap.upstream.on_behalf_of import CallContext, slot_holder_of
from multitap.wire.jsonrpc.deadline import Deadline

TRIAL = 3.0
"""Seconds for which requests that a server has not seen before run for one client at a time."""
TURN = 1.0
"""Seconds a client waits for its turn before it gets another session."""
RETRY = 30.0
"""Seconds until another attempt after one to get another session failed."""
_SETTLE = 5.0  # seconds for a server to read a cancellation
_SHARE = 4  # a call waits here for at most one of this many parts of its time
_LOOK = 0.2  # seconds between two looks at a server that is starting

PER_CLIENT = 'set `session = "per-client"` for the server'
"""The advice for questions that may belong to several clients."""


class _Place:
    """One session with a server, and the client that uses it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._users: dict[object, int] = {}
        self._left: object | None = None
        """The owner who last cancelled a call: the server may not have read that yet."""

    def is_used_only_by(self, owner: object) -> bool:
        return not self._users or self._users.keys() == {owner}

    def is_free_for(self, owner: object) -> bool:
        return self.is_used_only_by(owner) and self.link.requests.serves_only(owner)

    def enter(self, owner: object) -> None:
        self._users[owner] = self._users.get(owner, 0) + 1

    def leave(self, owner: object, *, answered: bool) -> None:
        self._users[owner] -= 1
        if not self._users[owner]:
            del self._users[owner]
        if not answered:
            self._left = owner

    async def settle(self, owner: object) -> None:
        """Let nothing reach a client that belongs to a call which another one gave up."""
        left = self._left
        if left is not None and left is not owner:
            await self.link.requests.settle(_SETTLE)
            # another client may have cancelled a call during the await
            if self._left is left:
                self._left = None


class _Queue:
    """All sessions with one server that its clients share."""

    def __init__(self, link: Link) -> None:
        self.first = _Place(link)
        self.spares: list[_Place] = []
        self.trial_until = 0.0
        """When the trial of a request that the server has not seen before ends."""
        self.visitors = 0
        """Calls that use or wait for one of the sessions, and sessions that start for them."""
        self.last: WeakKeyDictionary[Client, _Place] = WeakKeyDictionary()
        """The session that each client last used: the server may keep state for it there."""
        self.refused_until = 0.0
        self.refusal = ""
        """Why no other session can be opened."""

    def on_refused(self, words: str, until: float) -> None:
        """Note why no other session can be opened; not tried again before `until`."""
        self.refusal, self.refused_until = words, until

    def places(self) -> tuple[_Place, ...]:
        """The shared session, and the other ones that can be used."""
        return (self.first, *(place for place in self.spares if place.link.live))

    def pick(self, owner: object, *, is_urgent: bool) -> _Place | None:
        """A session that a client can use now; if urgent, also one that it has not used before."""
        places = self.places()
        last = self.last.get(owner) if isinstance(owner, Client) else None
        if last is not None and last in places:
            if last.is_free_for(owner):
                return last
            if not is_urgent:
                return None
        return next((place for place in places if place.is_free_for(owner)), None)


class ExclusiveUse:
    """Gives clients their turn on shared sessions."""

    def __init__(self, private: PrivateLinks, tasks: Tasks) -> None:
        self._private = private
        self._tasks = tasks
        self._clock = asyncio.get_running_loop().time
        self._exclusive_use: dict[Link, _Queue] = {}

    @asynccontextmanager
    async def turn(
        self, link: Link, subject: str, context: CallContext, holder: str, deadline: Deadline
    ) -> AsyncGenerator[Link]:
        """Within the block, the client has its turn on the session that is yielded.

        Args:
            link: The session that clients share.
            subject: A tool's own name, or a method.
            context: The context of the call.
            holder: The holder whose share another session counts against.
            deadline: Of the call.

        Raises:
            CallTimeout: It is not its turn in time.
        """
        if not link.may_mix(subject) or slot_holder_of(context) is None:
            yield link
            return
        owner = context.owner
        queue = self._queue(link)
        # counted before any await: a queue with visitors is not forgotten
        queue.visitors += 1
        try:
            place = await self._place(queue, subject, owner, holder, deadline)
            async with _using(place, owner, subject):
                if isinstance(owner, Client):
                    queue.last[owner] = place
                await agree_on_logs(link, place.link)
                self._begin_trial(queue, subject, owner)
                yield place.link
        finally:
            queue.visitors -= 1
            # all waiting calls look again: a session may be free now
            link.habits.changed.ring()

    def _begin_trial(self, queue: _Queue, subject: str, owner: object) -> None:
        """Run the first use of a subject as a trial."""
        attribution = queue.first.link.attribution
        is_tried = not attribution.habits.asks and not attribution.is_quiet(subject)
        if is_tried and queue.first.is_used_only_by(owner):
            queue.trial_until = self._clock() + TRIAL

    def _queue(self, link: Link) -> _Queue:
        queue = self._exclusive_use.get(link)
        if queue is None:
            self._exclusive_use = {
                known: one
                for known, one in self._exclusive_use.items()
                if one.visitors or any(self._private.has(spare.link) for spare in one.spares)
            }
            queue = self._exclusive_use[link] = _Queue(link)
        return queue

    async def _place(
        self, queue: _Queue, subject: str, owner: object, holder: str, deadline: Deadline
    ) -> _Place:
        """Wait for a session that the client can use."""
        link, habits = queue.first.link, queue.first.link.habits
        since, opened = self._clock(), False
        share = (deadline.at - since) / _SHARE  # calls with short deadlines do not wait for long
        turn = min(TURN, share)
        while True:
            now = self._clock()
            if not link.is_settled:  # no turn has begun yet
                since, queue.trial_until = now, now + TRIAL
            waited, most = now - since, deadline.at - now if link.is_settled else _LOOK
            if not habits.asks:
                pause = min(queue.trial_until, since + share) - now
                is_over = pause <= 0 or not link.may_mix(subject)
                place = queue.first if is_over or queue.first.is_used_only_by(owner) else None
            else:
                is_urgent = waited >= turn
                # sessions end while we wait: when idle, or when their server is replaced
                queue.spares = [one for one in queue.spares if self._private.has(one.link)]
                place = queue.pick(owner, is_urgent=is_urgent)
                pause = RETRY if is_urgent else turn - waited
                if place is None and is_urgent and not opened:
                    opened = self._open(queue, holder)
            if place is not None:
                return place
            if now >= deadline.at:
                if not link.is_settled:
                    return queue.first  # the wait for its session reports that it is still starting
                raise _late(queue, deadline)
            with anyio.move_on_after(min(pause, most)):
                await habits.changed.wait()

    def _open(self, queue: _Queue, holder: str) -> bool:
        """Start another session; False if that is not possible."""
        if self._clock() < queue.refused_until:
            return False
        try:
            link = self._private.spare(queue.first.link, holder)
        except Overloaded as exc:
            queue.on_refused(str(exc), self._clock() + RETRY)
            return False
        queue.visitors += 1  # a queue that is dropped meanwhile would never use it
        self._tasks.start_soon(self._start, queue, link)
        return True

    async def _start(self, queue: _Queue, link: Link) -> None:
        # without a limit: `PrivateLinks` sets it even for one that was ended before it started
        await link.availability.first_settled.wait()
        queue.visitors -= 1
        if link.state is LinkState.CONNECTED or link.availability.is_asleep:
            queue.spares.append(_Place(link))
        elif self._private.has(link):
            self._private.end(link)
            queue.on_refused(f"starting another one failed: {link.failure}", self._clock() + RETRY)
        link.habits.changed.ring()


@asynccontextmanager
async def _using(place: _Place, owner: object, subject: str) -> AsyncGenerator[None]:
    """Within the block the client uses the session; what it did not bring is learned."""
    answered = False
    place.enter(owner)
    try:
        # a server that has not read of a cancellation may still ask for that call
        await place.settle(owner)
        yield
        answered = True
    # an error is an answer, too
    except (ServerError, BadArguments):
        answered = True
        raise
    finally:
        place.leave(owner, answered=answered)
        if answered:
            place.link.attribution.was_quiet(subject)


def _late(queue: _Queue, deadline: Deadline) -> CallTimeout:
    seconds = deadline.timeout or deadline.hard_timeout or 0.0
    words = f"it is busy with another client, and asks questions: no turn within {seconds:g} s"
    if queue.refusal:
        words += f"; there is no other session ({queue.refusal})"
    return CallTimeout(queue.first.link.name, words, hint=PER_CLIENT)
