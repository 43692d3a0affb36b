"""Parses `WWW-Authenticate` when a server refuses a request."""

import re
from collections.abc import Mapping

_PARAMETER = re.compile(r'([A-Za-z_][\w-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_ESCAPED = re.compile(r"\\(.)")
_SCHEME = re.compile(r"\s*([A-Za-z][\w-]*)(?:\s|$)")
_LONGEST = 8 * 1024  # characters that are parsed


def parameters(words: str) -> Mapping[str, str]:
    """The parameters of a challenge by lower-case name; the first of a name counts."""
    found: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(words[:_LONGEST]):
        found.setdefault(name.lower(), _ESCAPED.sub(r"\1", quoted) or bare)
    return found


def scheme(words: str) -> str:
    """The scheme of a challenge: `bearer`, `dpop`."""
    found = _SCHEME.match(words)
    return found[1].lower() if found else ""
