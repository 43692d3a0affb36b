"""A coordinator in another process on this machine, used through a socket."""

import asyncio
import contextlib
import hmac
import itertools
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, get_type_hints

import anyio
import msgspec

from multitap.cluster.coordinator import (
    Channels,
    ChannelSubscribers,
    Coordinator,
    Health,
    Leases,
    Message,
    Records,
    SharedLimits,
    Streams,
)
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.errors import CoordinatorDown
from multitap.tasks import Bell, Tasks

logger = logging.getLogger(__name__)

_PROOF = 32  # bytes
_PATIENCE = 30.0  # seconds for a process to send it, which may wait for a processor
_HEAD = 4  # bytes of the length before each message
_MOST = 64 * 1024 * 1024  # bytes of a message: a greater length is invalid
_ROOMS = {
    "records": Records,
    "leases": Leases,
    "channels": Channels,
    "streams": Streams,
    "limits": SharedLimits,
}


class _Order(msgspec.Struct, array_like=True):
    number: int
    room: str
    method: str
    args: list[Any] = []
    named: dict[str, Any] = {}


class _Outcome(msgspec.Struct, array_like=True):
    number: int
    """The number of the order; 0: a message to a subscriber."""
    result: msgspec.Raw = msgspec.Raw(b"")
    error: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_order = msgspec.msgpack.Decoder(_Order).decode
_outcome = msgspec.msgpack.Decoder(_Outcome).decode
_float: Callable[[msgspec.Raw], float] = msgspec.msgpack.Decoder(float).decode
# what a worker may call: the names come over the socket, and `getattr` would find anything
_RESULTS: Mapping[tuple[str, str], Callable[[msgspec.Raw], Any]] = {
    (room, name): msgspec.msgpack.Decoder(get_type_hints(method)["return"]).decode
    for room, protocol in _ROOMS.items()
    for name, method in vars(protocol).items()
    if iscoroutinefunction(method)
}
"""By room and method, how its result is read."""


class _Line:
    """Our end of the socket: orders go out, outcomes come back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._subscriptions = ChannelSubscribers()
        self.health = Health(is_up=True)
        self.health_changed = Bell()

    async def order(self, room: str, method: str, *args: Any, **named: Any) -> msgspec.Raw:
        # nothing is awaited from here to the wait: `listen` cannot end in between, after which
        # nobody would answer
        if not self.health.is_up:
            raise CoordinatorDown(f"the coordinator is gone: {self.health.reason}")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            _write(self._writer, _Order(number, room, method, list(args), named))
            result: msgspec.Raw = await future
            return result
        finally:
            del self._waiting[number]

    async def listen(self) -> None:
        """Receive outcomes and messages until the other process is gone."""
        try:
            while True:
                self._take(_outcome(await _read(self._reader)))
        except (OSError, EOFError, msgspec.DecodeError) as exc:
            self.health = Health(is_up=False, reason=str(exc) or "its process has ended")
            # or they would wait forever
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(CoordinatorDown("the coordinator is gone"))
            self.health_changed.ring()

    def _take(self, outcome: _Outcome) -> None:
        if not outcome.number:
            self._subscriptions.feed(msgspec.msgpack.decode(outcome.result, type=Message))
            return
        future = self._waiting.get(outcome.number)
        # the caller may have been cancelled since
        if future is None or future.done():
            return
        if outcome.error is None:
            future.set_result(outcome.result)
        else:
            future.set_exception(CoordinatorDown(outcome.error))

    @asynccontextmanager
    async def subscribe(self, *channels: str) -> AsyncGenerator[AsyncIterator[Message | None]]:
        # before the order is sent: messages may arrive together with its outcome. At the end the
        # other process is not notified, and goes on sending: `feed` drops the rest.
        with self._subscriptions.listen(*channels) as subscriber:
            await self.order("channels", "subscribe", *channels)
            yield subscriber


class _Room:
    """One room of the coordinator: its methods are carried out by the other process."""

    def __init__(self, line: _Line, name: str) -> None:
        self._line = line
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if (decode := _RESULTS.get((self._name, method))) is None:
            raise AttributeError(method)

        async def ask(*args: Any, **named: Any) -> Any:
            return decode(await self._line.order(self._name, method, *args, **named))

        setattr(self, method, ask)  # from here on it is found without us
        return ask


class _Channels(_Room):
    def __init__(self, line: _Line) -> None:
        super().__init__(line, "channels")
        self.subscribe = line.subscribe


class SocketCoordinator(Coordinator):
    """See `Coordinator`; made by `open_socket`."""

    # A busy machine starves all its processes for a while, and a worker that lost its servers would
    # run them beside the next owner's. So leases end with the connection, and not before: this is
    # only how long a worker relies on a parent that does not answer.
    lease_ttl = 30.0
    outlives_us = False

    def __init__(self, line: _Line) -> None:
        rooms: dict[str, Any] = {room: _Room(line, room) for room in _ROOMS}
        rooms["channels"] = _Channels(line)
        super().__init__(line, **rooms)
        self._order = line.order

    async def time(self) -> float:
        return _float(await self._order("", "time"))


@asynccontextmanager
async def open_socket(path: Path, key: bytes) -> AsyncGenerator[SocketCoordinator]:
    """A coordinator that another process serves at `path`.

    Raises:
        CoordinatorDown: Nothing listens there.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=_MOST)
    except OSError as exc:
        raise CoordinatorDown(f"there is no coordinator at {path}: {exc}") from None
    writer.write(_proof(key))
    line = _Line(reader, writer)
    try:
        async with Tasks() as tasks:
            tasks.start_soon(line.listen)
            yield SocketCoordinator(line)
    finally:
        writer.close()


@asynccontextmanager
async def serve_coordinator(
    path: Path, coordinator: LocalCoordinator, key: bytes
) -> AsyncGenerator[None]:
    """While entered, other processes of this user can use the coordinator.

    Args:
        key: What they have to know: confined servers are processes of this user, too.
    """
    async with Tasks() as tasks:

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.start_soon(_serve, coordinator, key, reader, writer)

        server = await asyncio.start_unix_server(accept, str(path), limit=_MOST)
        # only now: until then the folder protects it, which only the user can enter
        os.chmod(path, 0o600)  # noqa: PTH101 - nothing else of a path is needed
        try:
            yield
        finally:
            server.close()


async def _serve(
    coordinator: LocalCoordinator,
    key: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    holders: set[str] = set()
    try:
        with anyio.fail_after(_PATIENCE):
            proof = await reader.readexactly(_PROOF)
        if not hmac.compare_digest(proof, _proof(key)):
            return
        async with Tasks() as tasks:
            while True:
                order = _order(await _read(reader))
                if (order.room, order.method) == ("leases", "acquire"):
                    holders.add(order.args[1])
                    coordinator.add_holder(order.args[1])
                # each in its own task: a read that waits for a stream must not delay a renewal
                if (order.room, order.method) == ("channels", "subscribe"):
                    tasks.start_soon(_forward, coordinator, order, writer)
                else:
                    tasks.start_soon(_obey, coordinator, order, writer)
    except (OSError, EOFError, msgspec.DecodeError):
        return  # the worker has ended
    finally:
        writer.close()
        # not at once: its servers need a moment to end, too
        for holder in holders:
            coordinator.drop_holder(holder)


def _proof(key: bytes) -> bytes:
    """What a process sends first."""
    return hmac.digest(key, b"coordinator", "sha256")


async def _obey(coordinator: Coordinator, order: _Order, writer: asyncio.StreamWriter) -> None:
    try:
        if order.method == "time":
            result: Any = await coordinator.time()
        elif (order.room, order.method) in _RESULTS:
            room = getattr(coordinator, order.room)
            result = await getattr(room, order.method)(*order.args, **order.named)
        else:
            raise ValueError(f"{order.room}.{order.method} is not known")  # noqa: TRY301 - one way out
        _write(writer, _Outcome(order.number, msgspec.Raw(_encode(result))))
    except Exception as exc:  # noqa: BLE001 - boundary: the worker has to have an answer
        _write(writer, _Outcome(order.number, error=f"{type(exc).__name__}: {exc}"))


async def _forward(coordinator: Coordinator, order: _Order, writer: asyncio.StreamWriter) -> None:
    async with coordinator.channels.subscribe(*order.args) as messages:
        # only now: messages published after the caller is notified must reach it
        _write(writer, _Outcome(order.number, msgspec.Raw(_encode(None))))
        async for message in messages:
            if message is not None:
                _write(writer, _Outcome(0, msgspec.Raw(_encode(message))))


def _write(writer: asyncio.StreamWriter, value: msgspec.Struct) -> None:
    # head and body in one write, and no await: messages of several tasks cannot mix, so there is no
    # lock. A peer that is gone is noticed by the side that reads.
    data = _encode(value)
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(len(data).to_bytes(_HEAD) + data)


async def _read(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_HEAD))
    if size > _MOST:
        raise msgspec.DecodeError(f"a message of {size:,} bytes")
    return await reader.readexactly(size)
