"""Connections of proxies that begin with a header of the PROXY protocol."""

import asyncio

from multitap.http.server.connection import ServerConnection
from multitap.http.server.connections import Connections
from multitap.http.server.proxies import (
    NotProxied,
    TrustedProxies,
    parse_address,
    parse_proxy_header,
)

PATIENCE = 5.0
"""Seconds for the header, which proxies send at once."""


class ProxiedConnection(asyncio.BufferedProtocol):
    """Reads the header, and hands the connection over to the HTTP server.

    Only a trusted proxy may send one; the connections of others are HTTP from the first byte. A
    trusted proxy has to: with an optional header, its clients could send one of their own.
    """

    def __init__(self, connections: Connections, proxies: TrustedProxies) -> None:
        self._connections = connections
        self._proxies = proxies
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is not a subclass
        peer = transport.get_extra_info("peername")
        if peer and self._proxies.trusts(parse_address(peer[0])):
            self._late = self._connections.loop.call_later(PATIENCE, self._give_up)
        else:
            self._hand_over(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._stop_timer()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._connections.room

    def buffer_updated(self, nbytes: int) -> None:
        self._received += bytes(self._connections.room[:nbytes])
        try:
            header = parse_proxy_header(self._received)
        except NotProxied:
            self._give_up()
            return
        if header is not None:
            self._stop_timer()
            self._hand_over(header.address, self._received[header.size :])

    def _hand_over(self, client: str | None, rest: bytes = b"") -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        connection = ServerConnection(self._connections, client)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        self._transport, self._received = None, b""
        if rest:
            # as if just received: the header arrives in one piece with the first request
            room = self._connections.room
            room[: len(rest)] = rest
            connection.buffer_updated(len(rest))

    def _give_up(self) -> None:
        """Close it without an answer: what it speaks is unknown."""
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
