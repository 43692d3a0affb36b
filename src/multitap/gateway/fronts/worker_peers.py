"""The workers of one gateway, asked as one."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import anyio
import msgspec

from multitap.cluster.coordinator import CoordinatorDown
from multitap.errors import Unavailable
from multitap.gateway.fronts.worker_figures import WorkerFigures, together
from multitap.gateway.replicas.replica_bus import ReplicaBus, ReplicaMessage

PATIENCE = 2.0
"""Seconds for the other workers to answer; who does not is left out."""
_FIGURES, _RELOAD, _KEY, _TOKEN = "figures", "reload", "console key", "console token"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerFigures).decode


class WorkerPeers:
    """Asks the other workers, and answers them.

    Args:
        bus: The way to them.
        others: Their names.
        figures: What to tell of this one.
    """

    def __init__(
        self,
        bus: ReplicaBus,
        others: Callable[[], Collection[str]],
        figures: Callable[[], WorkerFigures],
    ) -> None:
        self._bus = bus
        self._others = others
        self._figures = figures
        bus.on(_FIGURES, self._told)

    async def figures(self) -> WorkerFigures:
        """Those of all workers together."""
        told = await self._ask_all(_FIGURES, b"")
        return together([self._figures(), *map(_decode, told)])

    async def reload(self) -> None:
        """Tell the other workers to reload their files."""
        await self._ask_all(_RELOAD, b"")

    async def take_key(self, digest: bytes) -> bool:
        """Whether another worker gave out a key for the console; it holds no more after that."""
        return b"taken" in await self._ask_all(_KEY, digest)

    async def wait_for_token(self, token_id: str) -> None:
        """Wait until the others know a token: the browser's next request may reach any of them."""
        await self._ask_all(_TOKEN, token_id.encode())

    def on_reload(self, reload: Callable[[], Awaitable[object]]) -> None:
        """How to reload our own files when another worker says so."""

        async def act(_: ReplicaMessage) -> bytes | None:
            await reload()
            return None

        self._bus.on(_RELOAD, act)

    def on_console(
        self, take: Callable[[bytes], bool], wait: Callable[[str], Awaitable[None]]
    ) -> None:
        """How to look up a key of our own, and how to wait for a token."""

        async def look(note: ReplicaMessage) -> bytes:
            return b"taken" if take(note.data) else b""

        async def hold(note: ReplicaMessage) -> bytes | None:
            await wait(note.data.decode())
            return None

        self._bus.on(_KEY, look)
        self._bus.on(_TOKEN, hold)

    async def _ask_all(self, kind: str, data: bytes) -> list[bytes]:
        replies: list[bytes] = []

        async def ask(worker: str) -> None:
            # one that is about to be replaced cannot say what it has
            with suppress(Unavailable, CoordinatorDown):
                replies.append(await self._bus.ask(worker, kind, data, within=PATIENCE))

        async with anyio.create_task_group() as tasks:
            for worker in self._others():
                tasks.start_soon(ask, worker)
        return replies

    async def _told(self, _: ReplicaMessage) -> bytes:
        return _encode(self._figures())
