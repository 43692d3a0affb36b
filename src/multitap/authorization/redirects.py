"""Where a client may have people sent back to, and whether an address is one of those."""

import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from multitap.http.addresses import is_loopback

LONGEST = 512
"""Characters of a redirect URI."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PLAIN = re.compile(r"[!-~]+")  # ASCII without spaces: browsers drop or convert others
_DANGEROUS = frozenset(
    {"javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source",
     "ws", "wss", "ftp", "mailto", "tel", "intent", "content", "chrome", "resource", "jar",
     "search", "search-ms", "shell", "res", "mk", "its", "hcp", "ldap", "smb", "ssh", "telnet",
     "sms", "callto", "market", "livescript", "mhtml"}
)  # fmt: skip
"""Schemes that run something in the browser or the system, or belong to no program that could be a
client."""
_OF_SYSTEMS = ("ms-", "x-apple", "chrome-", "moz-", "edge-")
"""How the schemes of systems and browsers begin: some of their programs run what they are given."""


def why_refused(uri: str) -> str | None:
    """Why a client cannot have a redirect URI; None if it can."""
    if len(uri) > LONGEST or not _PLAIN.fullmatch(uri) or "\\" in uri:
        return "it is too long, or has characters that a URL cannot have"
    if (url := _split(uri)) is None or not _SCHEME.fullmatch(url.scheme):
        return "it is not a URL"
    is_dangerous = url.scheme in _DANGEROUS or url.scheme.startswith(_OF_SYSTEMS)
    if "#" in uri or "@" in url.netloc or is_dangerous:
        return "it has a fragment, a user name, or a scheme that is not allowed"
    if url.scheme == "https" and not url.hostname:
        return "it has no host"
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        return "http is allowed only on the person's own machine"
    return None  # otherwise the scheme of a program, such as `cursor://`


def is_registered(uri: str, registered: Collection[str]) -> bool:
    """Whether a redirect URI is one of those that a client registered.

    Exactly, apart from the port of a loopback address: a program gets a free one from the system
    (RFC 8252).
    """
    if why_refused(uri) is not None:
        return False
    return any(uri == other or _same_loopback(uri, other) for other in registered)


def describe_target(uri: str) -> str:
    """Where a redirect URI leads, for people."""
    url = urlsplit(uri)
    if url.scheme == "http":
        return f"a program on your own computer ({url.netloc})"
    if url.scheme != "https":
        return f"a program on your own computer ({url.scheme}:)"
    return url.netloc


def is_local(uri: str) -> bool:
    """Whether any program of the person's computer could be at the other end."""
    return urlsplit(uri).scheme != "https"


def _same_loopback(uri: str, other: str) -> bool:
    url, registered = _split(uri), _split(other)
    if url is None or registered is None or url.scheme != "http" or registered.scheme != "http":
        return False
    return (
        is_loopback(url.hostname or "")
        and url.hostname == registered.hostname
        # an empty path and `/` are the same address
        and (url.path or "/") == (registered.path or "/")
        and url.query == registered.query
    )


def _split(uri: str) -> SplitResult | None:
    try:
        url = urlsplit(uri)
        _ = url.port  # raises for a port that is not a number
    except ValueError:
        return None
    return url
