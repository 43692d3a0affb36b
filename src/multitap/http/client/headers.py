"""Encodes the head of a request so that no value can inject another header."""

import re
from collections.abc import Mapping
from itertools import starmap

from yarl import URL

from multitap.faults import RequestFailed

Headers = Mapping[str, str]

DEFAULTS: Headers = {"User-Agent": "multitap", "Accept-Encoding": "gzip, deflate"}

# RFC 9110; a line break in a value would begin another header, or another request
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\0\r\n]*")
_TARGET = re.compile(r"[!-~]+")
_OURS = frozenset({"content-length", "transfer-encoding"})
"""Framing headers, which are derived from the message."""


def merge(*layers: Headers) -> dict[str, str]:
    """Merge headers; later ones override earlier ones, in any case."""
    spelled: dict[str, str] = {}
    result: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.items():
            result[spelled.setdefault(name.lower(), name)] = value
    return result


def without(headers: Headers, name: str) -> dict[str, str]:
    """`headers` without one of them."""
    return {key: value for key, value in headers.items() if key.lower() != name.lower()}


def encode_head(method: str, url: URL, headers: Headers, *, proxied: bool = False) -> bytes:
    """The head of a request, without its own headers and its length.

    Raises:
        RequestFailed: The URL or a header contains a line break.
    """
    target = f"{url.scheme}://{url.host_port_subcomponent}" if proxied else ""
    target += url.raw_path_qs
    if not _TARGET.fullmatch(target):
        raise RequestFailed("the url has characters that are not allowed in a request", sent=False)
    host = {"Host": url.host_port_subcomponent or ""}
    return f"{method} {target} HTTP/1.1\r\n".encode() + lines(merge(host, headers))


def lines(headers: Headers) -> bytes:
    """All headers but the framing ones, one per line.

    Raises:
        RequestFailed: See `line`.
    """
    told = (pair for pair in headers.items() if pair[0].lower() not in _OURS)
    return b"".join(starmap(line, told))


def line(name: str, value: str) -> bytes:
    """One header.

    Raises:
        RequestFailed: Name or value is not valid; the value may be secret and is not shown.
    """
    if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
        try:
            return f"{name}: {value}\r\n".encode()
        except UnicodeEncodeError:
            pass
    raise RequestFailed(
        f"the header {name!r} has characters that are not allowed in a header", sent=False
    )
