"""Hosts and addresses: loopback, what a browser may open, what a program may reach."""

import errno
import ipaddress
import re
import socket
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import msgspec


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


LONGEST = 8192
"""Characters of an address."""

# Only what browsers (the URL standard of the WHATWG) and everybody else read in the same way: both
# slashes, no user, no backslash, nothing invisible and nothing beyond ASCII. Programs that open
# pages are often shell scripts: no characters that a shell interprets, either.
_ADDRESS = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9A-Fa-f:]+\]|[A-Za-z0-9_.-]+)"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?:[/?#][A-Za-z0-9._~:/?&=%+,;@#\[\]-]*)?",
    re.ASCII,
)
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_USUAL = {"http": "80", "https": "443"}
_MOST_PORTS = 65535


def host_of(address: str) -> str | None:
    """The host that a browser opens, with its port unless that is the usual one.

    Returns:
        None if it is neither https nor http on this machine, or if programs read it differently,
        so that no host can be shown for it.
    """
    match = _ADDRESS.fullmatch(address) if len(address) <= LONGEST else None
    host = _read_host(match["host"].lower()) if match else None
    if match is None or host is None:
        return None
    scheme, port = match["scheme"], match["port"]
    if int(port or 0) > _MOST_PORTS or (scheme == "http" and not is_loopback(host)):
        return None
    return host if port in {None, _USUAL[scheme]} else f"{host}:{port}"


def is_safe(address: str) -> bool:
    """Whether an address can be handed to a browser, with its host shown beside it."""
    return host_of(address) is not None


def _read_host(host: str) -> str | None:
    try:
        if host.startswith("["):
            address = IPv6Address(host[1:-1])
            # written in two ways
            return None if address.ipv4_mapped else f"[{address}]"
        # for browsers, 127.1, 2130706433 and 0x7f.0.0.1 are addresses, too
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return str(IPv4Address(host))
    except AddressValueError:
        return None
    return host if _NAME.fullmatch(host) else None


_PORTS = frozenset({80, 443})
_HOST_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 as IPv6, RFC 6052
_TUNNELLED = ipaddress.IPv6Network("2002::/16")  # the same, RFC 3056

_INNER = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3"),
        # all but 2000::/3, where the public addresses are, with tunnels to addresses in them
        *("::/3", "2001::/32", "4000::/2", "8000::/1"),
    )
)
"""Loopback, private, multicast and unspecified networks."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class HostRule(msgspec.Struct, frozen=True):
    """One rule: a name, a pattern `*.name`, `*` for every name, or a network."""

    name: str | None
    network: Network | None
    ports: frozenset[int]

    @classmethod
    def of(cls, text: str) -> "HostRule":
        """Parse a rule such as `api.example.com`, `*.example.com:8443`, `10.0.0.0/8`, `[::1]:80`.

        Raises:
            ValueError: It has none of these forms.
        """
        host, port = _split(text.strip().lower())
        ports = _PORTS if port is None else frozenset({port})
        try:
            return cls(None, ipaddress.ip_network(host.strip("[]"), strict=False), ports)
        except ValueError:
            name = host.rstrip(".")
        if name != "*" and not _HOST_NAME.fullmatch(name.removeprefix("*.")):
            raise ValueError(f"{text!r} is not a host")
        return cls(name, None, ports)

    def names(self, host: str) -> bool:
        if self.name is None:
            return False
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        if self.name == "*":  # loopback needs a rule with its own name
            return host != "localhost"
        return host == self.name

    @property
    def leads_inside(self) -> bool:
        """Whether it opens this machine, a private or a link-local network."""
        if self.network is not None:
            inner = (network for network in _INNER if network.version == self.network.version)
            return any(map(self.network.overlaps, inner)) or self._hides_an_inner_address()
        name = self.name or ""
        return name.removeprefix("*.") in {"localhost", socket.gethostname().lower()} or (
            name.endswith(".localhost")
        )

    def _hides_an_inner_address(self) -> bool:
        """Whether a network of IPv6 contains translated addresses of IPv4, which may be inner."""
        if not isinstance(self.network, ipaddress.IPv6Network):
            return False
        return any(map(self.network.overlaps, (_TRANSLATED, _TUNNELLED)))


class HostRules:
    """All rules of one program."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._rules = tuple(HostRule.of(text) for text in texts)

    def refusal(self, host: str, port: int) -> str | None:
        """Why a host may not be reached at a port; None if it may."""
        host = host.lower().rstrip(".")
        address = _address(host)
        if address is not None:
            fits = [rule for rule in self._rules if rule.network and address in rule.network]
        elif _HOST_NAME.fullmatch(host):
            fits = [rule for rule in self._rules if rule.names(host)]
        else:
            return "not a host name"
        if not fits:
            return "no rule names it"
        if not any(port in rule.ports for rule in fits):
            return f"no rule names its port {port}"
        return None

    def permits(self, host: str, address: str, port: int) -> bool:
        """Whether an allowed host may be reached at this address.

        The owner of a name decides where it leads: only a rule for the address itself opens
        loopback, private networks, or the metadata services of clouds.
        """
        ip = ipaddress.ip_address(address.partition("%")[0])
        plain = _plain(ip)
        if host.rstrip(".").lower() == "localhost" and plain.is_loopback:
            return True
        if any(
            rule.network and port in rule.ports and (ip in rule.network or plain in rule.network)
            for rule in self._rules
        ):
            return True
        return not any(plain in network for network in _INNER)


def is_here(address: str) -> bool:
    """Whether an address leads to this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    plain = _plain(ip)
    if plain.is_loopback or plain.is_unspecified:
        return True
    # only an address of this machine can be bound to
    name = address if plain == ip else str(plain)
    try:
        family, *_, end = socket.getaddrinfo(name, 0, flags=socket.AI_NUMERICHOST)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(end)
    except OSError as exc:
        return exc.errno != errno.EADDRNOTAVAIL
    return True


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _plain(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 address, if any."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _TRANSLATED:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _split(text: str) -> tuple[str, int | None]:
    """Split a host from its port; IPv6 addresses contain colons themselves."""
    if text.startswith("["):
        host, _, port = text.partition("]")
        return host[1:], int(port[1:]) if port.startswith(":") else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, int(port)
    return text, None
