"""Which web addresses a browser may open, and the host that it opens for them."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from multitap.http.loopback import is_loopback

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
