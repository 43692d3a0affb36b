"""Answers for all workers of one gateway."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol, TypeVar, assert_never

import anyio
import msgspec

from multitap.cluster.coordinator import CoordinatorDown
from multitap.errors import Unavailable
from multitap.gateway.fronts.control_messages import (
    AskExchange,
    AskOpenQuestions,
    AskPulse,
    AskReply,
)
from multitap.gateway.fronts.control_overview import Pulse
from multitap.gateway.fronts.worker_calls import WorkerCalls
from multitap.gateway.fronts.worker_feeds import Followed, WorkerFeeds
from multitap.gateway.fronts.worker_figures import WorkerFigures, together
from multitap.gateway.person_questions import OpenQuestion
from multitap.gateway.replicas.replica_bus import ReplicaBus, ReplicaMessage
from multitap.store.exchanges import RecordedExchange

PATIENCE = 5.0
"""Seconds for another worker to answer; less if it stops sending heartbeats."""
_RELOAD_PATIENCE = 20.0  # seconds: a reload waits for servers that end, and commands wait 30
_FIGURES, _RELOAD, _KEY, _TOKEN = "figures", "reload", "console key", "console token"
_QUESTION = "question"

WorkerQuestion = AskPulse | AskExchange | AskOpenQuestions | AskReply
"""Questions that each worker answers for itself."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerFigures).decode
# JSON, as for screens: the messages of servers and clients are undecoded JSON
_encode_answer = msgspec.json.Encoder().encode
_parse_question = msgspec.json.Decoder(WorkerQuestion).decode

_Answer = TypeVar("_Answer")


class WorkerControl(Protocol):
    """What the workers ask of each other."""

    def figures(self) -> WorkerFigures:
        """Its figures."""
        ...

    def pulse(self, seen: int, most: int) -> Pulse:
        """Its counters, and its latest calls after `seen`."""
        ...

    def feed(self, question: Followed, /) -> AbstractContextManager[AsyncIterator[Any]]:
        """Within the block, iterate over its events."""
        ...

    async def find_here(self, question: WorkerQuestion, /) -> Any:
        """Its own answer."""
        ...


class WorkerPeers:
    """Asks the other workers, and answers them.

    Args:
        bus: Reaches the other workers.
        others: Returns their names.
        member: This worker.
        count: How many workers the gateway has, this one included.
    """

    def __init__(
        self,
        bus: ReplicaBus,
        others: Callable[[], Collection[str]],
        member: WorkerControl,
        *,
        count: int,
    ) -> None:
        self._bus = bus
        self._others = others
        self._member = member
        self._count = count
        self.feeds = WorkerFeeds(bus, member.feed)
        """The events of all workers."""
        self.calls = WorkerCalls(bus.name, member.pulse, lambda each: self._ask(each, Pulse))
        bus.on(_FIGURES, self._on_figures)
        bus.on(_QUESTION, self._on_question)

    async def figures(self) -> WorkerFigures:
        """The figures of all workers that answer, and how many do not."""
        told = await self._ask_all(_FIGURES)
        return together([self._member.figures(), *map(_decode, told.values())], self._missing(told))

    async def _ask(
        self, question: WorkerQuestion | Callable[[str], WorkerQuestion], kind: type[_Answer]
    ) -> Mapping[str, _Answer]:
        """The answers of the other workers, by name.

        Args:
            question: One for all, or a function that returns one for each name.
            kind: The type of the answer.
        """
        told = await self._ask_all(
            _QUESTION,
            lambda worker: _encode_answer(question(worker) if callable(question) else question),
        )
        return {worker: msgspec.json.decode(one, type=kind) for worker, one in told.items()}

    async def find(self, question: WorkerQuestion) -> Any:
        """The answer of all workers together."""
        match question:
            case AskPulse(seen, most):
                return await self.calls.pulse(seen, most)
            case AskOpenQuestions():
                own: list[OpenQuestion] = await self._member.find_here(question)
                told = await self._ask(question, list[OpenQuestion])
                every = [*own, *(one for many in told.values() for one in many)]
                return sorted(every, key=lambda one: one.asked)
            case AskReply():
                if await self._member.find_here(question):
                    return True
                return True in (await self._ask(question, bool)).values()
            case AskExchange():
                kept: list[RecordedExchange] = await self._member.find_here(question)
                if kept:
                    return kept
                found = await self._ask(question, list[RecordedExchange])
                return [one for many in found.values() for one in many]
            case _:
                assert_never(question)

    async def reload(self) -> int:
        """Have the others reload their files; how many have not confirmed it."""
        return self._missing(await self._ask_all(_RELOAD, within=_RELOAD_PATIENCE))

    async def take_key(self, digest: bytes) -> bool:
        """Use up a console key of another worker; False if none of them issued it."""
        told = await self._ask_all(_KEY, lambda _: digest)
        return b"taken" in told.values()

    async def wait_for_token(self, token_id: str) -> None:
        """Wait until the others know a token: the browser's next request may reach any of them."""
        await self._ask_all(_TOKEN, lambda _: token_id.encode())

    def on_reload(self, reload: Callable[[], Awaitable[object]]) -> None:
        """Set how this worker reloads its files when another one asks."""

        async def act(_: ReplicaMessage) -> bytes | None:
            await reload()
            return None

        self._bus.on(_RELOAD, act)

    def on_console(
        self, take: Callable[[bytes], bool], wait: Callable[[str], Awaitable[None]]
    ) -> None:
        """Set how this worker uses up one of its keys, and waits for a token."""

        async def look(note: ReplicaMessage) -> bytes:
            return b"taken" if take(note.data) else b""

        async def hold(note: ReplicaMessage) -> bytes | None:
            await wait(note.data.decode())
            return None

        self._bus.on(_KEY, look)
        self._bus.on(_TOKEN, hold)

    async def _ask_all(
        self,
        kind: str,
        data: Callable[[str], bytes] = lambda _: b"",
        *,
        within: float = PATIENCE,
    ) -> dict[str, bytes]:
        replies: dict[str, bytes] = {}

        async def ask(worker: str) -> None:
            # a worker that is being replaced does not answer
            with suppress(Unavailable, CoordinatorDown):
                replies[worker] = await self._bus.ask(worker, kind, data(worker), within=within)

        async with anyio.create_task_group() as tasks:
            for worker in self._others():
                tasks.start_soon(ask, worker)
        return replies

    def _missing(self, told: Collection[str]) -> int:
        # one that is being replaced is counted for a moment beside its successor
        return max(self._count - 1 - len(told), 0)

    async def _on_question(self, note: ReplicaMessage) -> bytes:
        return _encode_answer(await self._member.find_here(_parse_question(note.data)))

    async def _on_figures(self, _: ReplicaMessage) -> bytes:
        return _encode(self._member.figures())
