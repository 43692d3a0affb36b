"""Sessions with servers that one client has for itself, for good or for one call."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Literal
from weakref import WeakKeyDictionary

import anyio
import msgspec

from multitap.config import ServerConfig
from multitap.errors import (
    BadArguments,
    CallTimeout,
    MultitapError,
    Overloaded,
    ServerError,
    Unavailable,
)
from multitap.events import LinkState
from multitap.gateway.client import Client, level_of
from multitap.hub.hub import Hub
from multitap.limits import Shares
from multitap.principal import Person
from multitap.tasks import CancelHandle, Tasks, now
from multitap.upstream.handshake import Era
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext, slot_holder_of
from multitap.wire import jsonrpc
from multitap.wire.request import Deadline

MOST = 256
"""Private links at the same time, over all clients and servers; each may be a process."""
IDLE = 900.0
"""Seconds without a call after which one ends; the next call opens another."""
_LOOK = 15.0  # seconds, by which one may outlive `IDLE`
_DECLARING = "(extensions)"
"""The holder of sessions shared by all clients that declare the same; no principal has this name.
"""
_HANDSHAKE = "(handshake)"
"""The holder of sessions shared by all clients that can be asked; no principal has this name."""


class _PrivateLink(msgspec.Struct, frozen=True, eq=False):
    """One private link."""

    link: Link
    shared: Link
    """The shared link to the same server; the private one ends with it."""
    holder: str
    """The holder whose share it counts against."""
    scope: CancelHandle = msgspec.field(default_factory=CancelHandle)


class PrivateLinks:
    """The sessions that single clients have with servers.

    Stateless clients have no session with us to bind one to, so all clients of a principal share
    theirs; without credentials, those at one address do.
    """

    def __init__(self, hub: Hub, tasks: Tasks, *, most: int = MOST) -> None:
        self._hub = hub
        self._tasks = tasks
        self._shares = Shares(most, "sessions of single clients with servers")
        self._links: dict[tuple[object, str], _PrivateLink] = {}
        self._stateless_only: set[str] = set()
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._links)

    def shares(self, client: Client, shared: Link) -> bool:
        """Whether a client uses the shared session with a server."""
        alone = shared.config.session != "shared"
        return not alone and not (client.can_be_asked and self._needs_handshake(shared))

    async def link(self, client: Client, shared: Link) -> Link:
        """The private link of a client, opened if there is none.

        Raises:
            Overloaded: There are too many.
        """
        if shared.config.session == "shared":
            link = await self._handshaken(shared)
        else:
            key = client.principal.key
            # strangers have no key: those at one address are one client
            owner = client if client.shook_hands or not key else key
            link = self._own(owner, client.holder, shared, None)
        await agree_on_logs(shared, link)
        return link

    async def askable(self, shared: Link) -> Link:
        """A link over which a server can ask questions during a call, if it supports that.

        Raises:
            Overloaded: There are too many.
        """
        return await self._handshaken(shared) if self._needs_handshake(shared) else shared

    def spare(self, shared: Link, holder: str) -> Link:
        """A further session with a server, which clients use in turn.

        Raises:
            Overloaded: There are too many.
        """
        self._claim(shared, holder)
        link = self._another(shared, shared.config)
        self._start((link, shared.name), _PrivateLink(link, self._root(shared), holder))
        return link

    def declaring(self, shared: Link, declared: str, on_change: Callable[[Link], None]) -> Link:
        """A session for all clients that declare the same extensions, opened if there is none.

        Raises:
            Overloaded: There are too many.
        """
        key = (f"{_DECLARING}{declared}", shared.name)
        if (private := self._links.get(key)) is not None and private.shared is shared:
            return private.link
        if private is not None:
            private.scope.cancel()
        else:
            self._claim(shared, _DECLARING)
        extensions: dict[str, Any] = jsonrpc.decode(declared.encode()) if declared else {}
        link = self._hub.make_link(
            shared.name, shared.config, extensions=extensions, on_change=on_change
        )
        self._start(key, _PrivateLink(link, shared, _DECLARING))
        return link

    def _root(self, link: Link) -> Link:
        """The shared link of a server, also for one that stands in for it."""
        # a person's link stands in for nobody else's
        return link if link.person is not None else self._hub.links.get(link.name, link)

    def _another(self, link: Link, config: ServerConfig) -> Link:
        """Another session with a link's server, with the account that it uses."""
        people = self._hub.people
        if link.person is not None and people is not None:
            return people.of(link.person).make_link(link.name, config)
        return self._hub.make_link(link.name, config, extensions=link.extensions)

    def _is_current(self, link: Link) -> bool:
        people = self._hub.people
        if link.person is not None:
            return people is not None and people.link(link.person, link.name) is link
        return self._hub.links.get(link.name) is link

    def has(self, link: Link) -> bool:
        """Whether a private link is still open."""
        return (link, link.name) in self._links

    def end(self, link: Link) -> None:
        """End a private link."""
        if (private := self._links.get((link, link.name))) is not None:
            private.scope.cancel()

    async def follow(self) -> None:
        """End the sessions with servers that were replaced or removed, until cancelled."""
        while True:
            await self._hub.changed.wait()
            for key, private in tuple(self._links.items()):
                # by identity: a replaced server has the same name, and another link
                if not self._is_current(private.shared):
                    self._forget(key)
                    self._tasks.start_apart(self._retire, private)

    async def _retire(self, private: _PrivateLink) -> None:
        await private.link.requests.drain(self._hub.settings.drain_timeout)
        private.scope.cancel()

    def _needs_handshake(self, shared: Link) -> bool:
        """Whether a server that speaks both eras needs the older one to ask clients questions.

        Many tools only ask during a call, which the stateless era does not support.
        """
        return (
            shared.era is Era.STATELESS
            and shared.config.era == "auto"
            and shared.config.transport != "local"
            and shared.name not in self._stateless_only
        )

    async def _handshaken(self, shared: Link) -> Link:
        owner = f"{_HANDSHAKE}{shared.report.session}"
        link = self._own(owner, _HANDSHAKE, shared, "handshake")
        await link.availability.first_settled.wait()
        if link.availability.is_asleep:
            with contextlib.suppress(Unavailable):
                await link.availability.session_by(
                    Deadline.since(now(), link.config.connect_timeout, None)
                )
        if link.state is LinkState.CONNECTED and link.era is Era.HANDSHAKE:
            return link
        private = self._links.get((owner, shared.name))
        if private is not None and private.link is link:  # or it was ended before it could settle
            # remembered: another try would start the server again for every call
            if link.state is not LinkState.NEEDS_AUTH:
                self._stateless_only.add(shared.name)
            private.scope.cancel()
        return shared

    def _own(
        self, owner: object, holder: str, shared: Link, era: Literal["handshake"] | None
    ) -> Link:
        key = (owner, shared.name)
        config = shared.config if era is None else shared.config.replace(era=era)
        private = self._links.get(key)
        if (
            private is not None
            and private.link.config == config
            and private.shared is self._root(shared)  # or it has the account of another link
        ):
            return private.link
        if private is not None:
            private.scope.cancel()
            holder = private.holder  # it takes over the share
        else:
            self._claim(shared, holder)
        link = self._another(shared, config)
        # the shared session does the work if the server does not speak that era
        link.report.is_trial = era is not None
        self._start(key, _PrivateLink(link, self._root(shared), holder))
        return link

    def _claim(self, shared: Link, holder: str) -> None:
        if not self._shares.take(holder):
            raise Overloaded(
                shared.name,
                self._shares.refusal(holder),
                hint='set `session = "shared"`, or let fewer clients use it',
            )

    def _start(self, key: tuple[object, str], private: _PrivateLink) -> None:
        private.link.report.session = f"{next(self._numbers)}"
        # known before it runs: the next call of the client must find it, not start another
        self._links[key] = private
        self._tasks.start_apart(self._run, key, private)

    def _forget(self, key: tuple[object, str]) -> None:
        self._shares.give(self._links.pop(key).holder)

    def drop(self, gone: Client | str | Person) -> None:
        """End the links of a client, of the principal with a key, or with a person's accounts."""
        for (owner, _), private in tuple(self._links.items()):
            is_theirs = isinstance(gone, Person) and private.shared.person == gone
            if owner is gone or (isinstance(gone, str) and owner == gone) or is_theirs:
                private.scope.cancel()

    async def _run(self, key: tuple[object, str], private: _PrivateLink) -> None:
        link = private.link
        try:
            with private.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(link.run)
                    while link.requests.idle_for() < IDLE or link.notifications.is_followed:
                        await anyio.sleep(_LOOK)
                    tasks.cancel_scope.cancel()
        finally:
            if self._links.get(key) is private:  # or another has its place and share
                self._forget(key)
            link.availability.first_settled.set()  # or callers that still wait would wait forever


async def agree_on_logs(shared: Link, link: Link) -> None:
    """Set the log level of the shared session in another session of the server."""
    level, before = shared.notifications.log_level, link.notifications.log_level
    if level is None or link is shared:
        return
    if before is None or level_of(level) < level_of(before):
        with contextlib.suppress(MultitapError):
            await link.notifications.want_logs(level)


TRIAL = 3.0
"""Seconds for which requests that a server has not seen before run for one client at a time."""
TURN = 1.0
"""Seconds a client waits for its turn before it gets another session."""
RETRY = 30.0
"""Seconds until another attempt after one to get another session failed."""
_SETTLE = 5.0  # seconds for a server to read a cancellation
_SHARE = 4  # a call waits here for at most one of this many parts of its time
_TURN_LOOK = 0.2  # seconds between two looks at a server that is starting

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

    def leave(self, owner: object, *, is_answered: bool) -> None:
        self._users[owner] -= 1
        if not self._users[owner]:
            del self._users[owner]
        if not is_answered:
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

    def on_refused(self, reason: str, until: float) -> None:
        """Note why no other session can be opened; not tried again before `until`."""
        self.refusal, self.refused_until = reason, until

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
        """While entered, the client has its turn on the session that is yielded.

        Args:
            subject: A tool's own name, or a method.
            holder: The holder whose share another session counts against.

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
                key: queue
                for key, queue in self._exclusive_use.items()
                if queue.visitors or any(self._private.has(spare.link) for spare in queue.spares)
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
            waited, most = now - since, deadline.at - now if link.is_settled else _TURN_LOOK
            if not habits.asks:
                pause = min(queue.trial_until, since + share) - now
                is_over = pause <= 0 or not link.may_mix(subject)
                place = queue.first if is_over or queue.first.is_used_only_by(owner) else None
            else:
                is_urgent = waited >= turn
                # sessions end while we wait: when idle, or when their server is replaced
                queue.spares = [spare for spare in queue.spares if self._private.has(spare.link)]
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
        self._tasks.start_apart(self._start, queue, link)
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
    is_answered = False
    place.enter(owner)
    try:
        # a server that has not read of a cancellation may still ask for that call
        await place.settle(owner)
        yield
        is_answered = True
    # an error is an answer, too
    except (ServerError, BadArguments):
        is_answered = True
        raise
    finally:
        place.leave(owner, is_answered=is_answered)
        if is_answered:
            place.link.attribution.was_quiet(subject)


def _late(queue: _Queue, deadline: Deadline) -> CallTimeout:
    seconds = deadline.timeout or deadline.hard_timeout or 0.0
    message = f"it is busy with another client, and asks questions: no turn within {seconds:g} s"
    if queue.refusal:
        message += f"; there is no other session ({queue.refusal})"
    return CallTimeout(queue.first.link.name, message, hint=PER_CLIENT)
