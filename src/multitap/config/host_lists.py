"""Whether a URL belongs to one of the listed hosts, however a program may parse it."""

import re
from collections.abc import Iterable
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from multitap.records import dataclass

# Most servers refuse longer addresses; here one counts as unclear, which no rule allows.
LONGEST = 8192

# Only URLs that every parser reads in the same way: no user, no backslash, no white space, no
# empty host. Programs disagree about others, and the server's own parser decides.
_URL = re.compile(
    r"(?:[a-zA-Z][a-zA-Z0-9+.-]*://)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/\\?#@:\[\]%\x00-\x20\x7f]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/[^\\\s\x00-\x20\x7f]*|[?#][^\\\s@\x00-\x20\x7f]*)?"
)
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_DEVIATIONS = frozenset("ßς\u200c\u200d\u0130\u0131")
"""Letters that versions of IDNA convert to different names."""

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class HostList:
    """The hosts of a rule."""

    written: tuple[str, ...]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for one in self.written if (name := _written_name(one)))

    @cached_property
    def _suffixes(self) -> tuple[tuple[str, str], ...]:
        """The ends of names with a wildcard, and their ports."""
        split = (name.rpartition(":") for name in self._names if name.startswith("*."))
        return tuple((host[1:], port) for host, _, port in split)

    @cached_property
    def _networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(one, strict=False) for one in self.written if "/" in one)

    def has(self, url: object) -> bool | None:
        """Whether a URL leads to one of the hosts; None if programs may disagree about that."""
        if not isinstance(url, str) or len(url) > LONGEST:
            return None
        match = _URL.fullmatch(url)
        host = match and _canonical(match["host"])
        if not match or not host:
            return None
        port = match["port"] or ""
        if f"{host}:" in self._names or (port and f"{host}:{int(port)}" in self._names):
            return True
        if any(
            host.endswith(suffix) and its_port in {"", port} for suffix, its_port in self._suffixes
        ):
            return True
        return bool(self._networks) and _is_in(host, self._networks)


def is_host(written: str) -> bool:
    """Whether an entry of a rule is a valid host."""
    try:
        return bool(ip_network(written, strict=False) if "/" in written else _written_name(written))
    except ValueError:
        return False


def _written_name(written: str) -> str:
    """`host:port`, with an empty port for any; empty for a network or an invalid entry."""
    if "/" in written:
        return ""
    wild = written.startswith("*.")
    match = _URL.fullmatch(written[2:] if wild else written)
    host = match and _canonical(match["host"])
    if not match or not host:
        return ""
    return f"{'*.' if wild else ''}{host}:{match['port'] or ''}"


def _canonical(host: str) -> str | None:
    """The host as DNS and sockets know it; None if programs read it differently."""
    try:
        if host.startswith("["):
            return f"[{IPv6Address(host[1:-1])}]"
        if not host.isascii():
            if not _DEVIATIONS.isdisjoint(host):
                return None
            host = host.encode("idna").decode("ascii")
        host = host.lower().removesuffix(".")
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return str(
                IPv4Address(host)
            )  # some programs accept 127.1, 0x7f000001 and 0177.0.0.1 as addresses
    except ValueError:
        return None
    return host if _NAME.fullmatch(host) else None


def _is_in(host: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    try:
        address: Address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    found = (address,) if mapped is None else (address, mapped)
    return any(one in network for network in networks for one in found)
