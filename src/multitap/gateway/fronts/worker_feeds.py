"""The events of all workers of a gateway, as one stream."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.cluster.coordinator import CoordinatorDown
from multitap.gateway.fronts.control_messages import AskEvents, AskTrace
from multitap.gateway.replicas.replica_bus import ReplicaBus, ReplicaMessage
from multitap.tasks import Tasks

BACKLOG = 4096
"""Events that wait to be read or sent; further ones are dropped."""
_RENEWAL = 1.0  # seconds between two requests to all workers: one may have started since
_PATIENCE = 4.0  # seconds after the last such request at which a feed ends
_CALM = 0.05  # seconds between two messages: one may carry many events
_WISH, _NEWS = "follow", "followed"

Followed = AskEvents | AskTrace
"""Questions whose answers are a stream."""
OpenFeed = Callable[[Followed], AbstractContextManager[AsyncIterator[Any]]]
"""Within the block, iterate over the events of this worker."""


class _Wish(msgspec.Struct, array_like=True):
    key: str
    question: Followed


class _News(msgspec.Struct, array_like=True):
    key: str
    events: list[Raw]


_encode = msgspec.json.Encoder().encode
_parse_wish = msgspec.json.Decoder(_Wish).decode
_parse_news = msgspec.json.Decoder(_News).decode


class WorkerFeeds:
    """Streams events from the other workers, and sends them those of this one."""

    def __init__(self, bus: ReplicaBus, open_feed: OpenFeed) -> None:
        self._bus = bus
        self._open_feed = open_feed
        self._followers: dict[str, Callable[[Any], None]] = {}
        """Followers at this worker, by key."""
        self._feeds: dict[str, anyio.CancelScope] = {}
        """Feeds to other workers, by key."""
        bus.on(_WISH, self._feed)
        bus.on(_NEWS, self._take)

    @asynccontextmanager
    async def follow(self, question: Followed) -> AsyncGenerator[AsyncIterator[Any]]:
        """Within the block, iterate over the events of all workers.

        Raises:
            UnknownName: There is no such server.
        """
        send, receive = anyio.create_memory_object_stream[Any](BACKLOG)

        def take(event: Any) -> None:
            with suppress(anyio.WouldBlock):
                send.send_nowait(event)

        async def pour(own: AsyncIterator[Any]) -> None:
            async for event in own:
                take(event)

        key = secrets.token_urlsafe(9)
        with send, receive, self._open_feed(question) as own:
            self._followers[key] = take
            try:
                async with Tasks() as tasks:
                    tasks.start_soon(pour, own)
                    tasks.start_soon(self._keep_asking, _encode(_Wish(key, question)))
                    yield receive
            finally:
                del self._followers[key]

    async def _keep_asking(self, wish: bytes) -> None:
        # repeated, so that feeds end by themselves once the follower is gone
        while True:
            with suppress(CoordinatorDown):
                await self._bus.tell_all(_WISH, wish)
            await anyio.sleep(_RENEWAL)

    async def _feed(self, note: ReplicaMessage) -> None:
        wish = _parse_wish(note.data)
        if (known := self._feeds.get(wish.key)) is not None:
            known.deadline = anyio.current_time() + _PATIENCE
            return
        with anyio.move_on_after(_PATIENCE) as scope:
            self._feeds[wish.key] = scope
            try:
                with self._open_feed(wish.question) as events:
                    await self._send(note.sender, wish.key, events)
            finally:
                del self._feeds[wish.key]

    async def _send(self, follower: str, key: str, events: AsyncIterator[Any]) -> None:
        waiting: list[Raw] = []

        async def collect() -> None:
            async for event in events:
                if len(waiting) < BACKLOG:
                    waiting.append(Raw(_encode(event)))

        async with Tasks() as tasks:
            tasks.start_soon(collect)
            while True:
                await anyio.sleep(_CALM)
                if waiting:
                    news = _encode(_News(key, waiting))
                    # before the wait: later events belong to the next message
                    waiting.clear()
                    with suppress(CoordinatorDown):
                        await self._bus.tell(follower, _NEWS, news)

    async def _take(self, note: ReplicaMessage) -> None:
        news = _parse_news(note.data)
        if (take := self._followers.get(news.key)) is not None:
            for event in news.events:
                take(event)
