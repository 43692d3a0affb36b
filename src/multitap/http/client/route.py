"""Which addresses a request may go to, and the way there: proxies and TLS."""

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
from yarl import URL

from multitap.http.addresses import is_loopback
from multitap.http.client.messages import lines


def show_url(url: URL) -> str:
    """`url` without user, password and query, which may be secret."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


def without_credentials(url: URL) -> tuple[URL, dict[str, str]]:
    """`url` without user and password, and a header with them."""
    if url.user is None and url.password is None:
        return url, {}
    pair = f"{url.user or ''}:{url.password or ''}".encode()
    return url.with_user(None), {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def same_origin(url: URL, other: URL) -> bool:
    return (url.scheme, url.host, url.port) == (other.scheme, other.host, other.port)


def join_url(url: URL, reference: str) -> URL | None:
    """Resolve `reference` against `url`; None if it is not a web address."""
    try:
        target = url.join(URL(reference)).with_fragment(None)
    except ValueError:
        return None
    # credentials in a redirect or an endpoint come from the server, not from the user
    return target.with_user(None) if target.scheme in ("http", "https") and target.host else None


def stays_home(url: URL, target: URL) -> bool:
    """Whether our headers may be sent to the target of a redirect."""
    # the same host, now encrypted: no other party sees our headers
    upgrade = (url.scheme, url.port) == ("http", 80) and (target.scheme, target.port) == (
        "https",
        443,
    )
    return same_origin(url, target) or (upgrade and url.host == target.host)


def proxy_for(url: URL) -> str | None:
    """The web proxy that the environment names for `url`."""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - imports all of `email`

    host = url.host or ""
    # a remote proxy cannot reach loopback addresses
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxy = getproxies().get(url.scheme)
    return proxy if proxy and proxy.startswith(("http://", "https://")) else None


# seconds, seconds, probes: a vanished peer is noticed within a minute
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_HEAD_START = 0.25  # seconds before the next address is tried in parallel
_LONGEST_REPLY = 64 * 1024  # bytes of a proxy's response
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")

_Made = TypeVar("_Made", bound=asyncio.Protocol)
Address = tuple[int, int, int, str, Any]
"""An entry of `getaddrinfo`: family, type, protocol, canonical name, socket address."""
Resolve = Callable[[asyncio.AbstractEventLoop, str, int], Awaitable[Sequence[Address]]]
"""Resolves a host and port; raises `OSError` if there is no address that may be used."""


class OpenedConnection(NamedTuple, Generic[_Made]):
    """A transport and its protocol."""

    transport: asyncio.Transport
    protocol: _Made


class ProxyRefused(Exception):
    """The proxy refuses the connection; the message is its reason."""


class OriginRoute:
    """How to reach the origin of `url`.

    Args:
        url: The origin.
        proxy: The URL of a web proxy, with its credentials.
        tls: The TLS context; None: the system's trust store.
        resolve: Resolves the origin's host; a proxy resolves it itself.

    Raises:
        ValueError: The proxy has no valid address.
    """

    def __init__(
        self,
        url: URL,
        proxy: str | None,
        tls: ssl.SSLContext | None,
        resolve: Resolve | None = None,
    ) -> None:
        self._url = url
        self._tls = tls
        self._resolve = resolve
        self._proxy: URL | None = None
        self.headers: dict[str, str] = {}
        """Headers of each request for the proxy."""
        self.proxied = False
        """Whether requests are sent to the proxy itself instead of through a tunnel."""
        if proxy is not None:
            self._proxy, credentials = without_credentials(URL(proxy))
            self.headers = {f"Proxy-{name}": value for name, value in credentials.items()}
            self.proxied = url.scheme == "http"

    async def open(self, loop: asyncio.AbstractEventLoop, make: Callable[[], _Made]) -> _Made:
        """Connect a protocol that `make` creates; protocols of failed attempts are discarded.

        Raises:
            OSError: The origin cannot be reached, or is not trusted.
            ProxyRefused: The proxy refuses the connection.
        """
        if self._proxy is None or self.proxied:
            here = self._proxy or self._url
            resolve = self._resolve if self._proxy is None else None
            return (await open_route(loop, make, here, resolve, **self._security(here))).protocol
        security = self._security(self._proxy)
        transport, reply = await open_route(loop, lambda: _Reply(loop), self._proxy, **security)
        try:
            transport.write(self._connect())
            await reply.welcome
            protocol = make()
            secured = await loop.start_tls(
                transport,
                protocol,
                self._tls or _system_trust(),
                server_hostname=_server_name(self._url),
            )
        except BaseException:
            transport.abort()
            raise
        if secured is not None and not secured.is_closing():
            # `start_tls` leaves that to its caller
            protocol.connection_made(secured)
        return protocol

    def _connect(self) -> bytes:
        there = f"{self._url.host_subcomponent}:{self._url.port}"
        fields = lines({"Host": there, **self.headers})
        return b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (there.encode(), fields)

    def _security(self, url: URL) -> dict[str, Any]:
        if url.scheme == "http":
            return {}
        return {"ssl": self._tls or _system_trust(), "server_hostname": _server_name(url)}


class _Reply(asyncio.Protocol):
    """Receives a proxy's response to CONNECT."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.welcome: asyncio.Future[None] = loop.create_future()
        self._data = b""

    def data_received(self, data: bytes) -> None:
        if self.welcome.done():
            return  # the caller closes it
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if end or len(self._data) > _LONGEST_REPLY:
            self._settle(_objection(head if end else b"", rest))

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(exc or OSError(None, "the proxy closed the connection"))

    def _settle(self, objection: Exception | None) -> None:
        if self.welcome.done():
            return
        if objection is None:
            self.welcome.set_result(None)
        else:
            self.welcome.set_exception(objection)


def _objection(head: bytes, rest: bytes) -> Exception | None:
    status = _STATUS.match(head)
    if status is None:
        return OSError(None, "the proxy does not answer in HTTP")
    if not status[1].startswith(b"2"):
        return ProxyRefused(f"HTTP {status[1].decode()}")
    if rest:
        return OSError(None, "the proxy answered in place of the server")
    return None


@cache
def _system_trust() -> ssl.SSLContext:
    """The system's trust store; read once, because that takes longer than a handshake."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _server_name(url: URL) -> str:
    # a certificate names a host without the final dot
    return (url.raw_host or "").rstrip(".")


async def open_route(
    loop: asyncio.AbstractEventLoop,
    make: Callable[[], _Made],
    url: URL,
    resolve: Resolve | None = None,
    **security: Any,
) -> OpenedConnection[_Made]:
    """Connect to the first of the host's addresses that answers."""
    addresses = in_turns(await (resolve or resolve_host)(loop, url.raw_host or "", url.port or 0))
    if len(addresses) == 1:
        return await _open_at(addresses[0], loop, make, security)
    won: list[OpenedConnection[_Made]] = []
    faults: list[OSError] = []

    async def attempt(address: Address, over: anyio.Event) -> None:
        try:
            won.append(await _open_at(address, loop, make, security))
        except OSError as exc:
            faults.append(exc)
        else:
            tasks.cancel_scope.cancel()
        over.set()

    try:
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                over = anyio.Event()
                tasks.start_soon(attempt, address, over)
                # RFC 8305: a dead IPv6 route must not cost a whole connect timeout
                with anyio.move_on_after(_HEAD_START):
                    await over.wait()
    except BaseException:
        _abort(won)
        raise
    # two may have connected before the first could cancel the others
    _abort(won[1:])
    if not won:
        raise faults[0] if faults else OSError(None, "the host name does not resolve")
    return won[0]


def _abort(unwanted: Sequence[OpenedConnection[Any]]) -> None:
    for transport in unwanted:
        transport.transport.abort()


async def resolve_host(loop: asyncio.AbstractEventLoop, host: str, port: int) -> Sequence[Address]:
    """All addresses of a host."""
    try:
        return socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )  # a numeric address, without a lookup in a thread
    except (socket.gaierror, UnicodeError):
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def in_turns(addresses: Sequence[Address]) -> Sequence[Address]:
    """Alternate IPv6 and IPv4 addresses, since many hosts are reachable over only one."""
    if not addresses:
        return []
    like_first = [address for address in addresses if address[0] == addresses[0][0]]
    others = [address for address in addresses if address[0] != addresses[0][0]]
    return [address for address in chain(*zip_longest(like_first, others)) if address is not None]


# By address, not with a socket of ours: uvloop would close it twice after a cancellation.
async def _open_at(
    address: Address,
    loop: asyncio.AbstractEventLoop,
    make: Callable[[], _Made],
    security: Mapping[str, Any],
) -> OpenedConnection[_Made]:
    host, port = address[4][:2]
    transport, protocol = await loop.create_connection(
        make, host, port, family=address[0], flags=socket.AI_NUMERICHOST, **security
    )
    if not transport.is_closing():
        _probe(transport.get_extra_info("socket"))
    return OpenedConnection(transport, protocol)


def _probe(connected: socket.socket) -> None:
    """Enable TCP keep-alive, so that a vanished peer is noticed during long waits."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        if (number := getattr(socket, option, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, number, value)
