"""Which addresses a server may name during a login."""

import asyncio
import contextlib
import ipaddress
from collections.abc import Collection, Sequence

from yarl import URL

from multitap.http.client.origin_route import Address, resolve_host
from multitap.http.client.origins import proxy_for, show_url
from multitap.http.loopback import is_loopback
from multitap.upstream.oauth.oauth_errors import LoginFailed, clean

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

_PRIVATE = tuple(
    ipaddress.ip_network(block)
    for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
"""Private networks, allowed only for servers that are in one themselves."""
_METADATA = frozenset(
    ipaddress.ip_address(one) for one in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")
)
"""The metadata services of clouds, which return credentials."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_PUBLIC = ipaddress.ip_network("2000::/3")
"""All public IPv6 addresses. For `ipaddress`, some that embed IPv4 addresses or are site-local are
global as well."""


class AddressRules:
    """The rules for one server.

    Only https, or http to the loopback host that the server itself is on. No address of a private
    network, of this machine or of a cloud's metadata service, unless the server itself is there.
    """

    def __init__(self, server: URL) -> None:
        self._server = server
        self._own: frozenset[Ip] | None = None

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
        # a proxy resolves names itself, and applies its own rules
        if (ip := _literal(host)) and proxy_for(url) and not permitted(ip, self._literal_own()):
            raise LoginFailed(f"{show_url(url)} is an address of a private network")
        return url

    async def resolve(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int
    ) -> Sequence[Address]:
        """See `Resolve`: the allowed addresses, which are then connected to.

        Raises:
            LoginFailed: None of the host's addresses is allowed.
        """
        if self._own is None:
            own = await resolve_host(loop, self._server.raw_host or "", self._server.port or 0)
            self._own = frozenset(_ip(one) for one in own)
        found = await resolve_host(loop, host, port)
        usable = [one for one in found if permitted(_ip(one), self._own)]
        if found and not usable:
            raise LoginFailed(
                f"{host} is an address of a private network, or of this machine, and the server "
                "itself is somewhere else"
            )
        return usable

    def _literal_own(self) -> Collection[Ip]:
        ip = _literal(self._server.host or "")
        return () if ip is None else (ip,)


def permitted(address: Ip, own: Collection[Ip]) -> bool:
    """Whether a server at `own` may send us to an address."""
    address = _unwrap(address)
    if address in own:
        return True
    if address in _METADATA:
        return False
    for network in _PRIVATE:
        if address in network:
            return any(one in network for one in own)
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
