"""The only way to contact an authorization server: with address rules and limits."""

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlencode

import anyio
import msgspec
from yarl import URL

from multitap.errors import RequestFailed
from multitap.http.addresses import is_loopback
from multitap.http.client.client import HttpClient
from multitap.http.client.messages import DEFAULTS, Headers, Response, merge
from multitap.http.client.route import (
    Address,
    OriginRoute,
    Resolve,
    join_url,
    proxy_for,
    resolve_host,
    same_origin,
    show_url,
)
from multitap.oauth.errors import LoginFailed, clean

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

# 100.64.0.0/10 is for networks of providers (RFC 6598), and used by VPNs such as Tailscale
_PRIVATE = tuple(
    ipaddress.ip_network(block)
    for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
"""Private networks, allowed only for servers that are in one themselves."""
# of most clouds, of AWS over IPv6, of Alibaba Cloud
_METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")
)
"""The metadata services of clouds, which return credentials."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_PUBLIC = ipaddress.ip_network("2000::/3")
"""All public IPv6 addresses. For `ipaddress`, some that embed IPv4 addresses or are site-local are
global as well."""
_PROOF_PATIENCE = 4.0  # seconds for a server to prove its name; metadata has five
_PROXIED_PATIENCE = 2.0  # seconds to resolve a name: behind a proxy, no name may resolve
LONGEST = 256 * 1024
"""Bytes of one answer."""
METADATA_TIMEOUT, GRANT_TIMEOUT = 5.0, 20.0
"""Seconds for metadata, and for a grant."""
_REDIRECTS = 3
_REDIRECT = frozenset({301, 302, 303, 307, 308})
_KEPT_HEADERS = ("DPoP-Nonce",)
_NONE: Headers = {}
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"


class AddressRules:
    """The rules for one server.

    Only https, or http to the loopback host that the server itself is on. No address of a private
    network, of this machine or of a cloud's metadata service, unless the server itself is there.
    The owner of a name decides where it leads: that the server is at an inner address counts only
    if it proves its name there by TLS (by the system's trust store, without a context in `tls`), or
    if the configuration has that address instead of a name.
    """

    def __init__(
        self, server: URL, *, resolve: Resolve = resolve_host, tls: ssl.SSLContext | None = None
    ) -> None:
        self._server = server
        self._resolve = resolve
        self._tls = tls
        self._proven: set[Ip] = set()

    def check(self, address: str) -> URL:
        """Check an address, as far as possible without resolving its host.

        Raises:
            LoginFailed: It is not allowed.
        """
        url = _web_address(address)
        if url.user is not None or url.password is not None:
            raise LoginFailed(f"{show_url(url)} has a user name in it")
        host = url.host or ""
        if url.scheme == "http" and not (
            is_loopback(host) and is_loopback(self._server.host or "")
        ):
            raise LoginFailed(f"{show_url(url)} is not https")
        return url

    async def resolve(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int
    ) -> Sequence[Address]:
        """See `Resolve`: the allowed addresses, which are then connected to.

        Raises:
            LoginFailed: None of the host's addresses is allowed.
        """
        addresses = await self._resolve(loop, host, port)
        usable = await self._usable_among(loop, addresses)
        if addresses and not usable:
            raise LoginFailed(_inner(host))
        return usable

    async def check_proxied(self, url: URL) -> None:
        """Check an address that a web proxy resolves itself, as far as its host resolves here.

        Raises:
            LoginFailed: One of its addresses is not allowed, and the proxy may choose that one.
        """
        loop, host = asyncio.get_running_loop(), url.raw_host or ""
        try:
            with anyio.fail_after(_PROXIED_PATIENCE):
                addresses = await self._resolve(loop, host, url.port or 0)
        except (OSError, UnicodeError):
            return  # only the proxy knows, and applies its own rules
        if len(await self._usable_among(loop, addresses)) < len(addresses):
            raise LoginFailed(_inner(host))

    async def _usable_among(
        self, loop: asyncio.AbstractEventLoop, addresses: Sequence[Address]
    ) -> Sequence[Address]:
        if all(permitted(_ip(address), self._proven) for address in addresses):
            return addresses
        await self._prove(loop)
        return [address for address in addresses if permitted(_ip(address), self._proven)]

    async def _prove(self, loop: asyncio.AbstractEventLoop) -> None:
        """Find out at which inner addresses the server is."""
        host = self._server.raw_host or ""
        if (literal := _literal(host)) is not None:
            self._proven.add(literal)
            return
        own = await self._resolve(loop, host, self._server.port or 0)
        if is_loopback(host):
            self._proven.update(map(_ip, own))
            return
        for address in own:
            if not permitted(_ip(address), self._proven) and await self._is_at(loop, address):
                self._proven.add(_ip(address))

    async def _is_at(self, loop: asyncio.AbstractEventLoop, address: Address) -> bool:
        """Whether the server's name is proven at an address."""
        if self._server.scheme != "https":
            return False

        async def only(*_: object) -> Sequence[Address]:
            return [address]

        route = OriginRoute(self._server, None, self._tls, only)
        try:
            with anyio.fail_after(_PROOF_PATIENCE):
                greeting = await route.open(loop, _Greeting)
        except OSError:
            return False
        greeting.close()
        return True


class _Greeting(asyncio.Protocol):
    """A connection that is closed once it is open."""

    _transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _inner(host: str) -> str:
    return (
        f"{host} is an address of a private network, or of this machine, and the server itself is "
        "somewhere else"
    )


def permitted(address: Ip, own: Collection[Ip]) -> bool:
    """Whether a server at `own` may send us to an address."""
    address = _unwrap(address)
    if address in own:
        return True
    if address in _METADATA:
        return False
    for network in _PRIVATE:
        if address in network:
            return any(ours in network for ours in own)
    if isinstance(address, ipaddress.IPv6Address) and address not in _PUBLIC:
        return False
    return address.is_global and not address.is_multicast


def _unwrap(address: Ip) -> Ip:
    """The IPv4 address embedded in an IPv6 address, if any."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address


def _ip(address: Address) -> Ip:
    # without the zone of a link-local address
    return _unwrap(ipaddress.ip_address(str(address[4][0]).partition("%")[0]))


def _web_address(address: str) -> URL:
    with contextlib.suppress(ValueError):
        url = URL(address)
        if url.scheme in {"http", "https"} and url.host and url.port:
            return url
    raise LoginFailed(f"{clean(address)!r} is not a web address")


def _literal(host: str) -> Ip | None:
    try:
        return _unwrap(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return None


class FetchedReply(NamedTuple):
    """A complete HTTP response."""

    status: int
    headers: Headers
    body: bytes

    def decode_json(self) -> Mapping[str, object]:
        """The JSON object in the body; empty if there is none."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}


class GuardedFetch:
    """Asks the addresses that a server names.

    Raises:
        LoginFailed: From every method: the address is not allowed, or its answer too large.
        RequestFailed: It cannot be reached now.
    """

    def __init__(self, server: str) -> None:
        self.rules = AddressRules(URL(server))

    async def describe(
        self, address: str, headers: Headers, *, redirects: int = _REDIRECTS
    ) -> FetchedReply:
        """Fetch metadata; some redirects are followed, within the origin."""
        url = self.rules.check(address)
        with _patience(url, METADATA_TIMEOUT):
            for _ in range(redirects + 1):
                reply, location = await self._ask("GET", url, headers, None)
                if location is None:
                    return reply
                target = join_url(url, location)
                # the rules were checked for this origin only
                if target is None or not same_origin(url, target):
                    raise LoginFailed(f"{show_url(url)} redirects to another origin")
                url = target
        raise LoginFailed(f"{show_url(url)} redirects too often")

    async def post_form(
        self, address: str, form: Mapping[str, str], headers: Headers = _NONE
    ) -> FetchedReply:
        """Post a form, which may contain secrets; redirects are not followed."""
        return await self._post(address, urlencode(form).encode(), _FORM, headers)

    async def post_json(self, address: str, message: Mapping[str, object]) -> FetchedReply:
        return await self._post(address, msgspec.json.encode(message), _JSON, {})

    async def _post(self, address: str, body: bytes, kind: str, headers: Headers) -> FetchedReply:
        url = self.rules.check(address)
        headers = merge({"Content-Type": kind}, headers)
        with _patience(url, GRANT_TIMEOUT):
            reply, location = await self._ask("POST", url, headers, body)
        if location is not None:
            raise LoginFailed(f"{show_url(url)} redirects, which would lose what was sent")
        return reply

    async def _ask(
        self, method: str, url: URL, headers: Headers, body: bytes | None
    ) -> tuple[FetchedReply, str | None]:
        headers = merge(DEFAULTS, {"Accept": _JSON}, headers)
        if proxy_for(url) is not None:
            await self.rules.check_proxied(url)
        async with HttpClient(show_url(url), resolve=self.rules.resolve) as client:
            response = await client.send(client.head(method, url, headers), body)
            location = response.header("Location") if response.status in _REDIRECT else None
            content = await _read_bounded(response, url) if location is None else b""
        values = ((name, response.header(name)) for name in _KEPT_HEADERS)
        kept_headers = {name: value for name, value in values if value is not None}
        return FetchedReply(response.status, kept_headers, content), location


@contextmanager
def _patience(url: URL, seconds: float) -> Generator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        message = f"{show_url(url)} did not answer within {seconds:g} s"
        raise RequestFailed(message, sent=False) from None


async def _read_bounded(response: Response, url: URL) -> bytes:
    body = b""
    while chunk := await response.chunk():
        body += chunk
        if len(body) > LONGEST:
            response.close()
            raise LoginFailed(f"{show_url(url)} answers with more than {LONGEST:,} bytes")
    return body
