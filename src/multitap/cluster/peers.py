"""Connections to other replicas, outgoing and incoming."""

import asyncio
import contextlib
import logging
import os
import socket
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from multitap.cluster import peer_messages as say
from multitap.cluster.forwarded_wire import ForwardedWire
from multitap.cluster.peer_connection import PATIENCE, PeerConnection
from multitap.cluster.relay import OwnedLink, Relay, RelayedServer
from multitap.errors import ConfigError
from multitap.faults import OwnerUnreachable
from multitap.http.closed_ports import close_port
from multitap.records import dataclass
from multitap.tasks import Tasks

logger = logging.getLogger(__name__)

_STRANGERS = 64  # connections that are not authenticated yet; further ones are closed
UNIX = "unix:"


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A connection that we opened, and the wires that it carries."""

    connection: PeerConnection
    wires: dict[int, ForwardedWire]


class Peers:
    """All connections of this replica; made by `open_peers`.

    Args:
        key: The cluster's key.
        replica: Our id.
        tasks: Runs the calls of other replicas.
        find: Returns the link to a server that we own now, if we do.
    """

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
            known = self._lines.get(address)
            if known is None or known.connection.is_closed:
                known = self._lines[address] = await self._connect(address)
        return known

    def accept(self) -> PeerConnection:
        """The protocol for an incoming connection."""
        connection = PeerConnection(
            self._key,
            self._replica,
            is_caller=False,
            on_message=self._serve,
            on_close=self._on_left,
        )
        strangers = sum(1 for one in self._relays if one.peer is None)
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
            words = f"the replica at {address} cannot be reached: {exc or 'no answer'}"
            raise OwnerUnreachable(words, sent=False) from None
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
        key: The cluster's key.
        replica: Our id.
        find: Returns the link to a server that we own now, if we do.
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
