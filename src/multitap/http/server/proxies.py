"""Proxies whose word about their clients counts: `X-Forwarded-…`, `Forwarded`, PROXY protocol."""

import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Sequence

import msgspec

from multitap.errors import ConfigError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Pairs = Iterable[tuple[bytes, bytes]]

MOST_HOPS = 32
"""Addresses of a request that are looked at; clients can send any number of them."""
_HOP = re.compile(
    r'\s*(?:for\s*=\s*)?"?(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<plain>[0-9A-Fa-f:.]+?))'
    r'(?::\d{1,5})?"?\s*'
)
_PLAIN_IPV6 = re.compile(r'\s*"?(?P<address>[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)"?\s*')
_PARAMETER = re.compile(r'\s*(?P<name>[A-Za-z]+)\s*=\s*"?(?P<value>[^";,]*)"?\s*')


class ForwardedClient(msgspec.Struct, frozen=True):
    """The client of a proxy, as far as the proxy says."""

    address: str | None = None
    """None if the proxy does not say, or says two things."""
    is_secure: bool | None = None
    """Whether it uses TLS."""
    host: str | None = None
    """The host that it asked for."""


class TrustedProxies:
    """Tells proxies from other clients, and reads what they say.

    Args:
        networks: Their addresses, or networks.

    Raises:
        ConfigError: One of them is not an address.
    """

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = tuple(map(_network, networks))

    def trusts(self, address: _Address | None) -> bool:
        """Whether an address belongs to a proxy."""
        return address is not None and any(address in network for network in self._networks)

    def client(self, pairs: _Pairs) -> ForwardedClient:
        """What the headers of a proxy's request say about its client.

        Each proxy adds the address of whoever connected to it, so only what trusted ones added
        counts: the last address that is not one of theirs.
        """
        listed, forwarded, schemes, hosts = _collect(pairs)
        addresses = {
            address for hops in (listed, forwarded) if (address := self._last_untrusted(hops))
        }
        # a proxy sets one of the two headers, and passes on what a client says in the other
        address = addresses.pop() if len(addresses) == 1 else None
        return ForwardedClient(
            address=None if address is None else str(address),
            is_secure=schemes[-1] == "https" if schemes else None,
            host=hosts[-1] if hosts else None,
        )

    def _last_untrusted(self, hops: Sequence[str]) -> _Address | None:
        for hop in reversed(hops[-MOST_HOPS:]):
            address = parse_hop(hop)
            if address is None:  # a name, or `unknown`: whoever is before it cannot be believed
                return None
            if not self.trusts(address):
                return address
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(
            f"{text!r} under `serve.trusted_proxies` is not an address or network",
            hint="use addresses such as 10.0.0.7, or networks such as 10.0.0.0/8",
        ) from None


def _collect(pairs: _Pairs) -> tuple[list[str], list[str], list[str], list[str]]:
    """The addresses of both headers, and the schemes and hosts, each in order."""
    listed: list[str] = []
    forwarded: list[str] = []
    schemes: list[str] = []
    hosts: list[str] = []
    for name, value in pairs:
        text = value.decode("latin-1")
        if name == b"x-forwarded-for":
            listed += text.split(",")
        elif name == b"x-forwarded-proto":
            schemes += [scheme.strip().lower() for scheme in text.split(",")]
        elif name == b"x-forwarded-host":
            hosts += [host.strip().lower() for host in text.split(",")]
        elif name == b"forwarded":
            for element in text.split(","):
                _add_element(element, forwarded, schemes, hosts)
    return listed, forwarded, schemes, hosts


def _add_element(element: str, forwarded: list[str], schemes: list[str], hosts: list[str]) -> None:
    """Add what one proxy says in `Forwarded`; see RFC 7239."""
    places = {"for": forwarded, "proto": schemes, "host": hosts}
    for part in element.split(";"):
        parameter = _PARAMETER.fullmatch(part)
        if parameter is not None and (place := places.get(parameter["name"].lower())) is not None:
            place.append(parameter["value"].strip().lower())


def parse_hop(text: str) -> _Address | None:
    """An address of `X-Forwarded-For` or `Forwarded`, with or without a port; None if it is not."""
    match = _PLAIN_IPV6.fullmatch(text)
    host = match["address"] if match else None
    if host is None and (match := _HOP.fullmatch(text)):
        host = match["bracketed"] or match["plain"]
    return None if host is None else parse_address(host)


def parse_address(host: str) -> _Address | None:
    """An address without a port; IPv4 in the form of IPv6 is IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED = struct.Struct("!12sBBH")
# the longest line that its specification knows: two IPv6 addresses
_LONGEST_LINE = 107
_LONGEST_HEADER = _FIXED.size + 4096
"""Bytes, with all extensions; senders stay far below."""
_LOCAL, _PROXY = 0x20, 0x21
_INET, _INET6 = 0x10, 0x20
_LINE = re.compile(rb"PROXY (?:UNKNOWN[^\r\n]*|(TCP4|TCP6) (\S+) (\S+) \d{1,5} \d{1,5})\r\n")


class NotProxied(Exception):
    """A connection of a proxy does not begin with a header of the PROXY protocol."""


class ProxyHeader(msgspec.Struct, frozen=True):
    """What a proxy says at the beginning of a connection."""

    size: int
    """Bytes of the header."""
    address: str | None
    """The client's address; None if the proxy speaks for itself, as in a health check."""


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header of the PROXY protocol, version 1 or 2; None if more bytes are needed.

    Raises:
        NotProxied: There is none.
    """
    if data[: len(_SIGNATURE)] == _SIGNATURE[: len(data)]:
        return _binary(data)
    if data[:6] != b"PROXY "[: len(data)]:
        raise NotProxied
    end = data.find(b"\r\n", 0, _LONGEST_LINE) + 2
    if end < 2:  # noqa: PLR2004 - nothing was found
        if len(data) >= _LONGEST_LINE:
            raise NotProxied
        return None
    if (match := _LINE.fullmatch(data[:end])) is None:
        raise NotProxied
    if match[1] is None:
        return ProxyHeader(end, None)
    address = parse_address(match[2].decode("latin-1"))
    if address is None:
        raise NotProxied
    return ProxyHeader(end, str(address))


def _binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED.size:
        return None
    _, command, family, length = _FIXED.unpack_from(data)
    size = _FIXED.size + length
    if command not in {_LOCAL, _PROXY} or size > _LONGEST_HEADER:
        raise NotProxied
    if len(data) < size:
        return None
    packed = data[_FIXED.size : size]
    if command == _PROXY and family & 0xF0 == _INET and length >= 12:  # noqa: PLR2004 - both ends
        return ProxyHeader(size, socket.inet_ntop(socket.AF_INET, packed[:4]))
    if command == _PROXY and family & 0xF0 == _INET6 and length >= 36:  # noqa: PLR2004 - both ends
        address = parse_address(socket.inet_ntop(socket.AF_INET6, packed[:16]))
        return ProxyHeader(size, str(address))
    return ProxyHeader(size, None)
