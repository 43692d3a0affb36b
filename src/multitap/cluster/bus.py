"""Messages between the replicas of one cluster, sealed with the key that they share."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import msgspec

from multitap.cluster.coordinator import Coordinator, CoordinatorClock
from multitap.errors import CoordinatorDown, MultitapError, Unavailable
from multitap.tasks import Tasks
from multitap.trust.single_use import ReplayGuard, Seal, Unsealed

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds to wait for a reply, if the replica does not go down before."""

_EVERYBODY = "replicas"
_LOOK = 0.5
"""Seconds between two checks that a replica we wait for is alive."""
_TICK = 1.0
"""Seconds between two looks at the coordinator's clock."""


class ReplicaMessage(msgspec.Struct, array_like=True):
    """One message to a replica, or to all of them."""

    kind: str
    sender: str
    key: str = ""
    """Identifies the request; empty if no reply is expected."""
    data: bytes = b""
    failure: str = ""
    """Why there is no reply."""


class SessionMessage(msgspec.Struct, array_like=True):
    """The data of a message about a session."""

    session_id: str
    data: bytes = b""

    def pack(self) -> bytes:
        return _pack(self)

    @classmethod
    def of(cls, note: ReplicaMessage) -> "SessionMessage":
        return _unpack_session(note.data)


On = Callable[[ReplicaMessage], Awaitable[bytes | None]]
"""Handles a message; returns the reply."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(ReplicaMessage).decode
_unpack_session = msgspec.msgpack.Decoder(SessionMessage).decode


class ReplicaIdentity(msgspec.Struct, frozen=True):
    """This process as one of several."""

    name: str
    coordinator: Coordinator
    key: bytes
    """Shared by all replicas; 32 bytes."""
    is_alive: Callable[[str], bool]
    """Whether a replica showed signs of life recently."""


class ReplicaBus:
    """Sends messages to other replicas, and handles theirs."""

    def __init__(self, replica: ReplicaIdentity, tasks: Tasks) -> None:
        self.name = replica.name
        self.coordinator = replica.coordinator
        self.is_alive = replica.is_alive
        self.clock = CoordinatorClock(replica.coordinator)
        """The clock that all replicas seal by."""
        self.seal = Seal(replica.key, self.clock)
        self.on_gap: list[Callable[[], Awaitable[None]]] = []
        """Called when messages to all replicas may have been missed."""
        self.tasks = tasks
        self._handlers: dict[str, On] = {}
        self._waiting: dict[str, asyncio.Future[ReplicaMessage]] = {}
        self._listening = asyncio.Event()

    async def wait_listening(self) -> None:
        """Wait until messages arrive here: requests that are relayed earlier would be lost."""
        await self._listening.wait()

    def on(self, kind: str, handler: On) -> None:
        """Register the handler for messages of one kind."""
        self._handlers[kind] = handler

    async def tell(self, replica: str, kind: str, data: bytes) -> None:
        """Send a message to one replica; delivery is not confirmed.

        Raises:
            CoordinatorDown: It cannot be sent.
        """
        await self._send(_channel(replica), ReplicaMessage(kind, self.name, data=data))

    async def tell_all(self, kind: str, data: bytes) -> None:
        """Send a message to all other replicas; delivery is not confirmed.

        Raises:
            CoordinatorDown: It cannot be sent.
        """
        await self._send(_EVERYBODY, ReplicaMessage(kind, self.name, data=data))

    def tell_soon(self, replica: str, kind: str, data: bytes) -> None:
        """Send a message to one replica from a callback; dropped if it cannot be sent."""
        self.tasks.start_soon(self._try_to_tell, replica, kind, data)

    def tell_all_soon(self, kind: str, data: bytes) -> None:
        """Send a message to all other replicas from a callback; dropped if it cannot be sent."""
        self.tasks.start_soon(self._try_to_tell, None, kind, data)

    async def ask(
        self,
        replica: str,
        kind: str,
        data: bytes,
        *,
        within: float = PATIENCE,
        key: str = "",
    ) -> bytes:
        """The reply of a replica.

        Args:
            within: Seconds to wait, if the replica does not go down before.
            key: Identifies the request, if further messages refer to it.

        Raises:
            Unavailable: There is no reply, or it is a failure.
            CoordinatorDown: It cannot be asked.
        """
        key = key or secrets.token_urlsafe(9)
        waiting: asyncio.Future[ReplicaMessage] = asyncio.get_running_loop().create_future()
        # before it is sent: the reply may arrive before `publish` returns
        self._waiting[key] = waiting
        try:
            await self._send(_channel(replica), ReplicaMessage(kind, self.name, key, data))
            until = anyio.current_time() + within
            while not waiting.done():
                if not self.is_alive(replica) or anyio.current_time() > until:
                    raise Unavailable(replica, "the replica no longer answers")
                # a replica that dies sends nothing: check again that it is alive
                await asyncio.wait((waiting,), timeout=min(_LOOK, within))
            reply = waiting.result()
        finally:
            del self._waiting[key]
        if reply.failure:
            raise Unavailable(replica, reply.failure)
        return reply.data

    async def run(self) -> None:
        """Handle messages of other replicas until cancelled."""
        channels = self.coordinator.channels
        with suppress(CoordinatorDown):
            await self.clock.adjust()
        # nothing older is meant for this process: channels keep no messages
        guard = ReplayGuard(self.clock, since=self.clock())
        self.tasks.start_soon(self._keep_time)
        async with channels.subscribe(_channel(self.name), _EVERYBODY) as messages:
            self._listening.set()
            async for message in messages:
                if message is None:
                    # in tasks: these ask the coordinator, and messages must not wait for that
                    for look in self.on_gap:
                        self.tasks.start_soon(self._look, look)
                    continue
                opened = self.seal.unseal(message.data, message.channel)
                if opened is None:
                    logger.warning("a message to the cluster is not sealed with our key")
                    continue
                if not await self._is_new(guard, opened):
                    logger.warning("a message to the cluster is old, or was sent again: dropped")
                    continue
                with suppress(msgspec.MsgspecError):
                    self._take(_unpack(opened.data))

    async def _is_new(self, guard: ReplayGuard, opened: Unsealed) -> bool:
        if guard.accept(opened):
            return True
        # our own clock may be what is wrong
        with suppress(CoordinatorDown):
            await self.clock.check()
        return guard.accept(opened)

    async def _keep_time(self) -> None:
        while True:
            await anyio.sleep(_TICK)
            with suppress(CoordinatorDown):
                await self.clock.adjust()

    def _take(self, note: ReplicaMessage) -> None:
        if note.kind == "reply":
            waiting = self._waiting.get(note.key)
            if waiting is not None and not waiting.done():
                waiting.set_result(note)
        elif note.sender != self.name and (handler := self._handlers.get(note.kind)) is not None:
            # each in a task: a request may take minutes. Tasks start in order, so messages whose
            # handlers act before they wait are handled in order.
            self.tasks.start_soon(self._work_on, note, handler)

    async def _work_on(self, note: ReplicaMessage, handler: On) -> None:
        failure, data = "", None
        try:
            data = await handler(note)
        except MultitapError as exc:
            failure = str(exc) or type(exc).__name__
        except Exception as exc:  # boundary: a message that fails must not stop the others
            logger.exception("a message of another replica failed")
            failure = type(exc).__name__
        if note.key:
            reply = ReplicaMessage("reply", self.name, note.key, data or b"", failure)
            with suppress(CoordinatorDown):
                await self._send(_channel(note.sender), reply)

    async def _try_to_tell(self, replica: str | None, kind: str, data: bytes) -> None:
        with suppress(CoordinatorDown):
            if replica is None:
                await self.tell_all(kind, data)
            else:
                await self.tell(replica, kind, data)

    async def _look(self, look: Callable[[], Awaitable[None]]) -> None:
        with suppress(CoordinatorDown):
            await look()

    async def _send(self, channel: str, note: ReplicaMessage) -> None:
        await self.clock.check()
        await self.coordinator.channels.publish(channel, self.seal.seal(_pack(note), channel))


def _channel(replica: str) -> str:
    return f"replica:{replica}"
