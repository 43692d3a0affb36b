"""What happens at all workers of a gateway, as one stream."""

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
"""Events that wait to be read or sent; further ones are left out."""
_RENEWAL = 1.0  # seconds; a worker that is started meanwhile is told as well
_PATIENCE = 4.0  # seconds after which a follower that no longer says so is gone
_CALM = 0.05  # seconds between two messages: one may carry many events
_WISH, _NEWS = "follow", "followed"

Followed = AskEvents | AskTrace
"""What can be followed."""
OpenFeed = Callable[[Followed], AbstractContextManager[AsyncIterator[Any]]]
"""Within the block, hear what happens at this worker."""


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
    """Follows what happens at the other workers, and tells them what happens here.

    Args:
        bus: The way to them.
        open_feed: What happens here.
    """

    def __init__(self, bus: ReplicaBus, open_feed: OpenFeed) -> None:
        self._bus = bus
        self._open_feed = open_feed
        self._followers: dict[str, Callable[[Any], None]] = {}
        """Those at this worker."""
        self._feeds: dict[str, anyio.CancelScope] = {}
        """Those to other workers."""
        bus.on(_WISH, self._feed)
        bus.on(_NEWS, self._take)

    @asynccontextmanager
    async def follow(self, question: Followed) -> AsyncGenerator[AsyncIterator[Any]]:
        """Within the block, hear what happens at all workers.

        Raises:
            UnknownName: There is nothing of that name here.
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
        # again and again instead of once: nobody has to be told that a follower is gone
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
                    # before the wait: what comes during it belongs to the next message
                    waiting.clear()
                    with suppress(CoordinatorDown):
                        await self._bus.tell(follower, _NEWS, news)

    async def _take(self, note: ReplicaMessage) -> None:
        news = _parse_news(note.data)
        if (take := self._followers.get(news.key)) is not None:
            for event in news.events:
                take(event)
