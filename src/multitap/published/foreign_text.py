"""Cleans texts from publishers before they are shown or written."""

import re

from multitap.config.dialects.rewrites import literal
from multitap.errors import shortened
from multitap.printable import printable

LONGEST = 300
_BREAKS = re.compile(r"\s+")
_ODD = re.compile(r"[^a-z0-9]+")
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_VERSION = re.compile(r"(?<=.)[@#:=<>~!\[].*", re.DOTALL)
_AFFIX = re.compile(
    r"^(?:mcp[-_.])?server[-_.]|^mcp[-_.]|(?:[-_.]mcp)?[-_.]server$|[-_.]mcp$|\.(?:git|tgz)$"
)
_GENERIC = frozenset({"", "mcp", "server", "mcp-server", "cli", "latest"})


def clean(text: object) -> str:
    """Text for people, on one line; empty if it is not text."""
    if not isinstance(text, str):
        return ""
    # cut first, so that megabytes are not processed
    return shortened(printable(_BREAKS.sub(" ", text[: 4 * LONGEST])).strip(), LONGEST)


def as_literal(text: object) -> str:
    """A value with `${` escaped, so that it names no variable."""
    return literal(text if isinstance(text, str) else str(text))


def option_name(text: str) -> str:
    """The option for an input: `BRAVE_API_KEY` is `--brave-api-key`."""
    return _ODD.sub("-", text.lower()).strip("-")[:40] or "value"


def server_name(text: str) -> str:
    """A short name for a server: `io.github.someone/weather` is `weather`."""
    return _NAME.sub("-", text.rstrip("/").rpartition("/")[2]).strip("-")[:40] or "server"


def package_nickname(package: str) -> str:
    """A short name for the server in a package: `@modelcontextprotocol/server-git` is `git`."""
    scope, _, last = package.rstrip("/").rpartition("/")
    # twice: `mcp-server-x-mcp` has one at each end, and so has `x-mcp-server.git`
    name = _AFFIX.sub("", _AFFIX.sub("", _VERSION.sub("", last)))
    # @playwright/mcp is `playwright` to people
    return server_name(name if name not in _GENERIC else scope.lstrip("@") or last)
