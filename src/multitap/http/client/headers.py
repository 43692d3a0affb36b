"""Encodes the head of a request so that no value can inject another header."""

import re
from collections.abc import Mapping
from itertools import starmap

from yarl import URL

from multitap.faults import RequestFailed

Headers = Mapping[str, str]

DEFAULTS: Headers = {"User-Agent": "multitap", "Accept-Encoding": "gzip, deflate"}

# as RFC 9110 has it: a line break in a value would begin another header, or another request
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\0\r\n]*")
_TARGET = re.compile(r"[!-~]+")
_OURS = frozenset({"content-length", "transfer-encoding"})
"""What frames a message follows from the message."""


def merge(*layers: Headers) -> dict[str, str]:
    """Headers of several layers; the last one that names a header, in whatever case, wins."""
    spelled: dict[str, str] = {}
    result: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.items():
            result[spelled.setdefault(name.lower(), name)] = value
    return result


def without(headers: Headers, name: str) -> dict[str, str]:
    """`headers` but for one."""
    return {key: value for key, value in headers.items() if key.lower() != name.lower()}


def encode_head(method: str, url: URL, headers: Headers, *, proxied: bool = False) -> bytes:
    """The head up to where headers of one request only, and its length, are added.

    Raises:
        RequestFailed: Something in it would end a line early.
    """
    target = f"{url.scheme}://{url.host_port_subcomponent}" if proxied else ""
    target += url.raw_path_qs
    if not _TARGET.fullmatch(target):
        raise RequestFailed("the url has characters that are not allowed in a request", sent=False)
    host = {"Host": url.host_port_subcomponent or ""}
    return f"{method} {target} HTTP/1.1\r\n".encode() + lines(merge(host, headers))


def lines(headers: Headers) -> bytes:
    """All headers but those that frame the message, each in a line.

    Raises:
        RequestFailed: See `line`.
    """
    told = (pair for pair in headers.items() if pair[0].lower() not in _OURS)
    return b"".join(starmap(line, told))


def line(name: str, value: str) -> bytes:
    """One header.

    Raises:
        RequestFailed: It would be more than one, or none; a value may be secret and is not shown.
    """
    if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
        try:
            return f"{name}: {value}\r\n".encode()
        except UnicodeEncodeError:
            pass
    raise RequestFailed(
        f"the header {name!r} has characters that are not allowed in a header", sent=False
    )
