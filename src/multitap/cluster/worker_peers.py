"""The other workers of one gateway: what they answer, their calls, and their events."""

import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import Raw

from multitap.cluster.bus import ReplicaBus, ReplicaMessage
from multitap.control.methods import Method, WorkerControl, worker_method
from multitap.control.overview import Pulse, WorkerFigures, together
from multitap.control.service import BACKLOG, ControlService, Feed
from multitap.errors import CoordinatorDown, Unavailable
from multitap.hub.metrics import RECENT
from multitap.store.tables import CallRecord
from multitap.tasks import Tasks

PATIENCE = 5.0
"""Seconds for another worker to answer; less if it stops sending heartbeats."""
_RELOAD_PATIENCE = 20.0  # seconds: a reload waits for servers that end, and commands wait 30
_REUSE = 0.05  # seconds for which the last answers are reused: several screens may be open
_MOST_CALLS = 200  # calls per worker and question; a screen shows no more
_RENEWAL = 1.0  # seconds between two requests to all workers: one may have started since
_FEED_PATIENCE = 4.0  # seconds after the last such request at which a feed ends
_PAUSE = 0.05  # seconds between two messages of a feed, or two searches for a worker
_METHOD, _FOLLOW, _ITEMS = "control", "follow", "followed"

_Answer = TypeVar("_Answer")
_encode = msgspec.json.Encoder().encode


class _WorkerRequest(msgspec.Struct, array_like=True):
    method: str
    arguments: Raw


class _FeedRequest(msgspec.Struct, array_like=True):
    key: str
    feed: Feed
    server: str | None


class _FeedBatch(msgspec.Struct, array_like=True):
    key: str
    items: list[Raw]


_parse_request = msgspec.json.Decoder(_WorkerRequest).decode
_parse_follow = msgspec.json.Decoder(_FeedRequest).decode
_parse_batch = msgspec.json.Decoder(_FeedBatch).decode


class OtherWorker(WorkerControl):
    """A worker in another process."""

    def __init__(self, bus: ReplicaBus, name: str, patience: float) -> None:
        self._bus = bus
        self._name = name
        self._patience = patience

    def send(self, method: Method, arguments: dict[str, Any]) -> Any:
        return self._ask(method, arguments)

    async def _ask(self, method: Method, arguments: dict[str, Any]) -> Any:
        request = _encode(_WorkerRequest(method.name, Raw(_encode(arguments))))
        reply = await self._bus.ask(self._name, _METHOD, request, within=self._patience)
        return msgspec.json.decode(reply, type=method.answer)


class WorkerPeers:
    """Asks the other workers, and answers them.

    Args:
        count: How many workers the gateway has, this one included.
    """

    def __init__(
        self,
        bus: ReplicaBus,
        others: Callable[[], Collection[str]],
        member: ControlService,
        *,
        count: int,
    ) -> None:
        self._bus = bus
        self._others = others
        self._member = member
        self._count = count
        self.feeds = WorkerFeeds(bus, member)
        """The events of all workers."""
        self.calls = WorkerCalls(bus.name, self, member)
        """The calls of all workers."""
        bus.on(_METHOD, self._on_method)

    async def ask(
        self, question: Callable[[WorkerControl], Awaitable[_Answer]], patience: float = PATIENCE
    ) -> dict[str, _Answer]:
        """The answers of the other workers, by name; of those that answer."""
        return await self.ask_each(lambda _, worker: question(worker), patience)

    async def ask_each(
        self,
        question: Callable[[str, WorkerControl], Awaitable[_Answer]],
        patience: float = PATIENCE,
    ) -> dict[str, _Answer]:
        """The same with a question for each name."""
        answers: dict[str, _Answer] = {}

        async def ask(name: str) -> None:
            # a worker that is being replaced does not answer
            with suppress(Unavailable, CoordinatorDown):
                answers[name] = await question(name, OtherWorker(self._bus, name, patience))

        async with anyio.create_task_group() as tasks:
            for name in self._others():
                tasks.start_soon(ask, name)
        return answers

    def missing(self, answers: Collection[str]) -> int:
        """How many workers did not answer."""
        # one that is being replaced is counted for a moment beside its successor
        return max(self._count - 1 - len(answers), 0)

    async def figures(self) -> WorkerFigures:
        """The figures of all workers that answer, and how many do not."""
        others = await self.ask(lambda worker: worker.figures_here())
        own = await self._member.figures_here()
        return together([own, *others.values()], self.missing(others))

    async def reload(self) -> int:
        """Have the others reload their files; how many have not confirmed it."""
        return self.missing(await self.ask(lambda worker: worker.reload_here(), _RELOAD_PATIENCE))

    async def take_key(self, digest: bytes) -> bool:
        """Use up a console key of another worker; False if none of them issued it."""
        # the worker that issued it may just have started, or be late with its heartbeat
        with anyio.move_on_after(PATIENCE):
            while True:
                answers = await self.ask(lambda worker: worker.take_key_here(digest))
                if any(answers.values()):
                    return True
                if not self.missing(answers):
                    return False
                await anyio.sleep(_PAUSE)
        return False

    async def wait_for_token(self, token_id: str) -> None:
        """Wait until the others know a token: the browser's next request may reach any of them."""
        await self.ask(lambda worker: worker.wait_for_token_here(token_id))

    async def _on_method(self, message: ReplicaMessage) -> bytes:
        request = _parse_request(message.data)
        arguments = worker_method[request.method].unpack(request.arguments)
        return _encode(await getattr(self._member, request.method)(**arguments))


class WorkerCalls:
    """Counters and latest calls of all workers; asked only while a screen is open."""

    def __init__(self, name: str, peers: WorkerPeers, member: ControlService) -> None:
        self._name = name
        self._peers = peers
        self._member = member
        self._seen: dict[str, int] = {}
        self._made = 0
        self._recent: deque[CallRecord] = deque(maxlen=RECENT)
        self._in_flight = self._revision = 0
        self._looked = float("-inf")
        self._lock = anyio.Lock()

    async def pulse(self, seen: int, most: int) -> Pulse:
        """The counters of all workers, and their latest calls after `seen`."""
        # one question at a time: two would count the same calls twice
        async with self._lock:
            if anyio.current_time() - self._looked >= _REUSE:
                await self._look()
        # `seen` comes from outside, and may be from before a restart
        new = min(max(self._made - seen, 0), max(most, 0), len(self._recent))
        latest = tuple(islice(reversed(self._recent), new))[::-1]
        return Pulse(self._made, latest, self._revision, self._in_flight)

    async def _look(self) -> None:
        seen = self._seen
        pulses = await self._peers.ask_each(
            lambda name, worker: worker.pulse_here(seen.get(name, 0), _MOST_CALLS)
        )
        own = await self._member.pulse_here(seen.get(self._name, 0), _MOST_CALLS)
        pulses[self._name] = own
        for worker, pulse in pulses.items():
            self._made += pulse.made - seen.get(worker, 0)
            seen[worker] = pulse.made
        records = (record for pulse in pulses.values() for record in pulse.records)
        self._recent.extend(sorted(records, key=lambda record: record.at))
        self._in_flight = sum(pulse.in_flight for pulse in pulses.values())
        self._revision, self._looked = own.revision, anyio.current_time()


class WorkerFeeds:
    """Streams events from the other workers, and sends them those of this one."""

    def __init__(self, bus: ReplicaBus, member: ControlService) -> None:
        self._bus = bus
        self._member = member
        self._followers: dict[str, Callable[[Any], None]] = {}
        """Followers at this worker, by key."""
        self._feeds: dict[str, anyio.CancelScope] = {}
        """Feeds to other workers, by key."""
        bus.on(_FOLLOW, self._on_follow)
        bus.on(_ITEMS, self._on_batch)

    @asynccontextmanager
    async def follow(self, feed: Feed, server: str | None) -> AsyncGenerator[AsyncIterator[Any]]:
        """While entered, iterate over the events of all workers.

        Raises:
            UnknownName: There is no such server.
        """
        send, receive = anyio.create_memory_object_stream[Any](BACKLOG)

        def add(item: Any) -> None:
            with suppress(anyio.WouldBlock):
                send.send_nowait(item)

        async def pour(own: AsyncIterator[Any]) -> None:
            async for item in own:
                add(item)

        key = secrets.token_urlsafe(9)
        with send, receive, self._member.feed_here(feed, server) as own:
            self._followers[key] = add
            try:
                async with Tasks() as tasks:
                    tasks.start_soon(pour, own)
                    tasks.start_soon(self._renew, _encode(_FeedRequest(key, feed, server)))
                    yield receive
            finally:
                del self._followers[key]

    async def _renew(self, request: bytes) -> None:
        # repeated, so that feeds end by themselves once the follower is gone
        while True:
            with suppress(CoordinatorDown):
                await self._bus.tell_all(_FOLLOW, request)
            await anyio.sleep(_RENEWAL)

    async def _on_follow(self, message: ReplicaMessage) -> None:
        request = _parse_follow(message.data)
        if (scope := self._feeds.get(request.key)) is not None:
            scope.deadline = anyio.current_time() + _FEED_PATIENCE
            return
        with anyio.move_on_after(_FEED_PATIENCE) as scope:
            self._feeds[request.key] = scope
            try:
                with self._member.feed_here(request.feed, request.server) as items:
                    await self._send(message.sender, request.key, items)
            finally:
                del self._feeds[request.key]

    async def _send(self, follower: str, key: str, items: AsyncIterator[Any]) -> None:
        waiting: list[Raw] = []

        async def collect() -> None:
            async for item in items:
                if len(waiting) < BACKLOG:
                    waiting.append(Raw(_encode(item)))

        async with Tasks() as tasks:
            tasks.start_soon(collect)
            while True:
                await anyio.sleep(_PAUSE)
                if waiting:
                    batch = _encode(_FeedBatch(key, waiting))
                    # before the wait: later events belong to the next message
                    waiting.clear()
                    with suppress(CoordinatorDown):
                        await self._bus.tell(follower, _ITEMS, batch)

    async def _on_batch(self, message: ReplicaMessage) -> None:
        batch = _parse_batch(message.data)
        if (add := self._followers.get(batch.key)) is not None:
            for item in batch.items:
                add(item)
