"""The other replicas: encrypted connections to them, in both directions."""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import socket
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from multitap.cluster import peer_messages as say
from multitap.cluster.peer_messages import PROTOCOL, Ask, Greeting, PeerMessage, encode, messages
from multitap.cluster.relays import OwnedLink, Relay, RelayedServer
from multitap.cluster.wires import ForwardedWire
from multitap.errors import ConfigError, OwnerUnreachable
from multitap.http.closed_ports import close_port
from multitap.tasks import Tasks

logger = logging.getLogger(__name__)

_MAGIC = b"multitap-peer-1\n"
_NONCE = 32
_HEAD = 4
_TAG = 16
_MOST = 256 * 1024 * 1024  # bytes of a sealed batch: a result may be as long as `limits.message`
_FIRST = 4096  # bytes of the first one, before the other side is authenticated
_BACKLOG = 64 * 1024 * 1024  # unsent bytes above which no more requests are sent
_BATCH = 1024 * 1024  # bytes of requests above which a batch is sealed
PATIENCE = 3.0
"""Seconds for the other side to authenticate."""


class _Transport(Protocol):
    """The part of a transport that is used; those of uvloop are not subclasses of asyncio's."""

    def write(self, data: bytes, /) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class PeerConnection(asyncio.Protocol):
    """An encrypted connection to one other replica.

    Args:
        on_message: Called with each message; must not block or raise.
        on_close: Called once, when the connection is closed.
    """

    def __init__(
        self,
        key: bytes,
        replica: str,
        *,
        is_caller: bool,
        on_message: Callable[["PeerConnection", PeerMessage], None],
        on_close: Callable[["PeerConnection"], None],
    ) -> None:
        self.peer: str | None = None
        """The other side's id, once it is authenticated."""
        self.reason = "the other replica closed the connection"
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done once the other side is authenticated."""
        self.is_closed = False
        self._key = key
        self._replica = replica
        self._is_caller = is_caller
        self._on_message = on_message
        self._on_close = on_close
        self._transport: _Transport | None = None
        self._ours = os.urandom(_NONCE)
        self._received = bytearray()
        self._sealing: AESGCM | None = None
        self._opening: AESGCM | None = None
        self._sent = self._opened = 0
        self._batch: OrderedDict[int, PeerMessage] = OrderedDict()
        """Messages that are not sealed yet, by object; while the other side does not read, these
        wait here, where a request can still be withdrawn."""
        self._full = False
        self._unsent = 0
        """The bytes of requests in the batch."""
        # from the start: a silent peer must not occupy a place
        self._timer = self._loop.call_later(PATIENCE, self._too_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is not a subclass
        if self.is_closed:
            # refused before it began: nothing must be sent to a connection that is not read
            transport.close()
            return
        self._write(_MAGIC + self._ours)

    @property
    def is_congested(self) -> bool:
        """Whether too much is unsent, because the other side does not read."""
        return self._unsent > _BACKLOG

    def send(self, message: PeerMessage) -> None:
        """Send a message, in one batch with others of this turn of the loop; dropped if closed."""
        # no await and no lock: callers are callbacks as often as tasks. Sealing costs about the
        # same for one message as for many, so those of one turn travel together.
        self._batch[id(message)] = message
        self._unsent += _size(message)
        if len(self._batch) == 1:
            self._loop.call_soon(self._flush)

    def withdraw(self, message: PeerMessage) -> bool:
        """Drop a message that is not sent yet; returns whether it was not."""
        if self._batch.pop(id(message), None) is None:
            return False
        self._unsent -= _size(message)
        return True

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()

    def close(self, reason: str) -> None:
        """End it now."""
        if not self.is_closed:
            self.reason = reason
            # what was sent in this turn is still in the batch
            self._full = False
            self._flush()
            if self._transport is not None:
                self._transport.close()
            self._over()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._received += data
        try:
            if self._opening is None:
                self._on_greeting()
            while self._opening is not None and not self.is_closed and self._open_next():
                pass
        except (InvalidTag, msgspec.DecodeError, ValueError) as exc:
            self._refuse(
                "it has a different cluster key"
                if isinstance(exc, InvalidTag)
                else f"it does not speak the replica protocol: {exc}"
            )

    def eof_received(self) -> None:
        """Close the connection: the other side sends nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.reason = f"the connection to the other replica broke: {exc}"
        self._over()

    def _on_greeting(self) -> None:
        size = len(_MAGIC) + _NONCE
        if not _MAGIC.startswith(bytes(self._received[: len(_MAGIC)])):
            raise ValueError("no greeting")
        if len(self._received) < size:
            return
        theirs = bytes(self._received[len(_MAGIC) : size])
        del self._received[:size]
        # both numbers go into both keys, in the same order on both sides: keys are new for each
        # connection, and so a counter may serve as the nonce
        caller, called = (self._ours, theirs) if self._is_caller else (theirs, self._ours)
        keys = [
            AESGCM(hmac.digest(self._key, way + caller + called, hashlib.sha256))
            for way in (b"from caller", b"to caller")
        ]
        self._sealing, self._opening = keys if self._is_caller else reversed(keys)
        self.send(Greeting(PROTOCOL, self._replica))

    def _open_next(self) -> bool:
        received = self._received
        if len(received) < _HEAD:
            return False
        size = int.from_bytes(received[:_HEAD])
        if not _TAG <= size <= (_FIRST if self.peer is None else _MOST):
            raise ValueError(f"a batch of {size:,} bytes")
        if len(received) < _HEAD + size or self._opening is None:
            return False
        sealed = bytes(received[_HEAD : _HEAD + size])
        del received[: _HEAD + size]
        # the counter is not sent: a dropped or repeated batch cannot be decrypted
        batch = self._opening.decrypt(self._opened.to_bytes(12), sealed, None)
        self._opened += 1
        for message in messages(batch):
            if isinstance(message, Greeting):
                self._prove(message)
            # messages before the greeting are not accepted, even with the right key
            elif self.peer is not None:
                self._on_message(self, message)
        return True

    def _prove(self, greeting: Greeting) -> None:
        if greeting.protocol != PROTOCOL:
            raise ValueError(f"it speaks protocol {greeting.protocol}, not {PROTOCOL}")
        self.peer = greeting.replica
        self._timer.cancel()
        if not self.ready.done():
            self.ready.set_result(None)

    def _flush(self) -> None:
        # without a key, pending messages are sent with the greeting
        while self._batch and self._sealing is not None and not (self.is_closed or self._full):
            batch: list[PeerMessage] = []
            size = 0
            while self._batch and size <= _BATCH:
                _, message = self._batch.popitem(last=False)
                size += _size(message)
                batch.append(message)
            self._unsent -= size
            sealed = self._sealing.encrypt(self._sent.to_bytes(12), encode(batch), None)
            self._sent += 1
            self._write(len(sealed).to_bytes(_HEAD) + sealed)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _too_late(self) -> None:
        self._refuse(f"it did not authenticate within {PATIENCE:g} s")

    def _refuse(self, reason: str) -> None:
        logger.warning("a connection to another replica is closed: %s", reason)
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()
        self._over()

    def _over(self) -> None:
        # reached twice: when we close it, and again when the transport reports its loss
        if self.is_closed:
            return
        self.is_closed = True
        self._timer.cancel()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(self.reason))
            self.ready.exception()  # retrieved, or asyncio warns about it
        self._on_close(self)


def _size(message: PeerMessage) -> int:
    """The bytes of a request; other messages are answers to what was bounded by its sender."""
    return len(message.params) if isinstance(message, Ask) and message.params else 0


_STRANGERS = 64  # connections that are not authenticated yet; further ones are closed
UNIX = "unix:"


class Line(msgspec.Struct, frozen=True, eq=False):
    """A connection that we opened, and the wires that it carries."""

    connection: PeerConnection
    wires: dict[int, ForwardedWire]


class Peers:
    """All connections of this replica; made by `open_peers`."""

    def __init__(
        self, key: bytes, replica: str, tasks: Tasks, find: Callable[[str], OwnedLink | None]
    ) -> None:
        self.address = ""
        """Our address for other replicas."""
        self.users: defaultdict[str, set[RelayedServer]] = defaultdict(set)
        """The wires of other replicas to each server that we own, by its name."""
        self._key = key
        self._replica = replica
        self._tasks = tasks
        self._find = find
        self._lines: dict[str, Line] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._relays: dict[PeerConnection, Relay] = {}

    async def line_to(self, address: str) -> Line:
        """A connection to another replica, opened if there is none.

        Raises:
            OwnerUnreachable: It cannot be reached.
        """
        # one lock for each address: wires that open together share a connection, and a replica that
        # does not answer delays no others
        lock = self._opening.setdefault(address, asyncio.Lock())
        async with lock:
            line = self._lines.get(address)
            if line is None or line.connection.is_closed:
                line = self._lines[address] = await self._connect(address)
        return line

    def is_connected(self, replica: str) -> bool:
        """Whether a replica's process lives: its connections end with it, not with its work."""
        outgoing = (line.connection for line in self._lines.values())
        return any(
            connection.peer == replica and not connection.is_closed
            for connection in (*outgoing, *self._relays)
        )

    def accept(self) -> PeerConnection:
        """The protocol for an incoming connection."""
        connection = PeerConnection(
            self._key,
            self._replica,
            is_caller=False,
            on_message=self._serve,
            on_close=self._on_left,
        )
        strangers = sum(1 for relay in self._relays if relay.peer is None)
        self._relays[connection] = Relay(connection, self._tasks, self._find, self.users)
        if strangers >= _STRANGERS:
            connection.close("too many connections that are not authenticated")
        return connection

    def close(self) -> None:
        for line in tuple(self._lines.values()):
            line.connection.close("this replica is leaving")
        # a copy: one that is closed removes itself
        for connection in tuple(self._relays):
            connection.close("this replica is leaving")

    def _serve(self, connection: PeerConnection, message: say.PeerMessage) -> None:
        self._relays[connection].take(message)

    def _on_left(self, connection: PeerConnection) -> None:
        self._relays.pop(connection).close()

    async def _connect(self, address: str) -> Line:
        wires: dict[int, ForwardedWire] = {}

        def take(_: PeerConnection, message: say.PeerMessage) -> None:
            number = getattr(message, "wire", None)
            if isinstance(number, int) and (wire := wires.get(number)) is not None:
                wire.take(message)

        def over(connection: PeerConnection) -> None:
            # a copy: a wire that is cut may leave at once
            for wire in tuple(wires.values()):
                wire.cut(connection.reason)

        loop = asyncio.get_running_loop()
        connection = PeerConnection(
            self._key, self._replica, is_caller=True, on_message=take, on_close=over
        )
        try:
            with anyio.fail_after(PATIENCE):
                if address.startswith(UNIX):
                    path = address.removeprefix(UNIX)
                    await loop.create_unix_connection(lambda: connection, path)
                else:
                    host, _, port = address.rpartition(":")
                    await loop.create_connection(lambda: connection, host.strip("[]"), int(port))
                # the future is the connection's own: our timeout must not cancel it
                await asyncio.shield(connection.ready)
        except (OSError, ValueError, TimeoutError) as exc:
            connection.close("it could not be opened")
            message = f"the replica at {address} cannot be reached: {str(exc) or 'no answer'}"
            raise OwnerUnreachable(message, sent=False) from None
        return Line(connection, wires)


@asynccontextmanager
async def open_peers(
    key: bytes,
    replica: str,
    find: Callable[[str], OwnedLink | None],
    *,
    listen: str,
) -> AsyncGenerator[Peers]:
    """Listen for other replicas; leaving the block closes all connections.

    Args:
        listen: `HOST:PORT`, which is also announced to others, or `unix:PATH`. Port 0 is any.

    Raises:
        ConfigError: The address cannot be used.
    """
    async with Tasks() as tasks, contextlib.AsyncExitStack() as stack:
        peers = Peers(key, replica, tasks, find)
        loop = asyncio.get_running_loop()
        try:
            if listen.startswith(UNIX):
                path = listen.removeprefix(UNIX)
                server = await loop.create_unix_server(peers.accept, path)
                os.chmod(path, 0o600)  # noqa: PTH101 - nothing else of a path is needed
                peers.address = listen
            else:
                host, _, port = listen.rpartition(":")
                server = await loop.create_server(
                    peers.accept, host.strip("[]"), int(port), start_serving=False
                )
                bound: int = server.sockets[0].getsockname()[1]
                stack.enter_context(close_port(bound))
                await server.start_serving()
                peers.address = f"{host}:{bound}"
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"cannot listen for other replicas at {listen!r}: {exc}",
                hint="use `--advertise HOST:PORT` with an address of this machine",
            ) from None
        try:
            yield peers
        finally:
            # before the connections: no new one may arrive while they are closed
            server.close()
            peers.close()
            if listen.startswith(UNIX):
                with contextlib.suppress(OSError):
                    os.unlink(listen.removeprefix(UNIX))  # noqa: PTH108 - as above


def own_address(towards: tuple[str, int]) -> str:
    """This machine's address on the route to another host; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(towards)
        host: str = probe.getsockname()[0]
        return host
    return "127.0.0.1"
