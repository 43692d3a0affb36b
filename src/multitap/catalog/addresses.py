"""Addresses of resources: who has one, which one callers use, and which are withheld."""

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from multitap.errors import NotAllowed, quoted

if TYPE_CHECKING:
    from mcp.shared import uri_template

_MARK = "/~/"
_HEAD = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?)(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_PATH_ONLY = frozenset("/?#")
"""Characters that a plain variable of a template never matches."""
# The comparison is quadratic, and runs for each pair of templates of two servers.
LONGEST_COMPARED = 512
"""Characters of templates that are compared exactly; longer ones count as overlapping."""


def rename(server: str, uri: str) -> str:
    """The address of a server's resource that no other server can have: the scheme stays."""
    head, rest = _split_head(uri)
    return f"{head}{_quote(server)}{_MARK}{rest}"


def split(address: str) -> tuple[str, str] | None:
    """The server and its own address in a renamed address; None if it is not one."""
    head, rest = _split_head(address)
    quoted, mark, raw = rest.partition(_MARK)
    # a quoted name never has a slash: this is part of an ordinary path
    if not mark or "/" in quoted:
        return None
    try:
        server = unquote(quoted, errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    # only our own spelling, otherwise one resource would have several addresses
    return (server, head + raw) if _quote(server) == quoted else None


def choose_addresses(
    server: str, uris: Collection[str], held: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """The address for callers of each of a server's resources; its own unless that is taken.

    Args:
        server: The owner.
        uris: The server's own addresses of resources that have none for callers yet.
        held: The owner of each address that callers know.
    """
    # an address that looks like a renamed one would lead to another server
    return {
        uri: rename(server, uri) if uri in held or split(uri) is not None else uri for uri in uris
    }


def choose_templates(
    server: str, templates: Collection[str], held: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """The template for callers of each of a server's templates; like `choose_addresses`.

    A template of another server that overlaps with it counts as taken, too.
    """
    others = [name for name, (owner, raw) in held.items() if owner != server and name == raw]
    names = choose_addresses(server, templates, held)
    return {
        template: rename(server, template)
        if any(overlap(template, other) for other in others)
        else name
        for template, name in names.items()
    }


def overlap(first: str, other: str) -> bool:
    """Whether two templates may match the same address."""
    if max(len(first), len(other)) > LONGEST_COMPARED:
        # conservative: may rename an address unnecessarily, but never shares one
        return _literal(first).startswith(_literal(other)) or _literal(other).startswith(
            _literal(first)
        )
    left, right = _pieces(first), _pieces(other)
    # visited pairs: without them, variables that may be empty would take exponential time
    reached = {(0, 0)}
    todo = [(0, 0)]
    while todo:
        at, to = todo.pop()
        if at == len(left) and to == len(right):
            return True
        for step in _steps(left, right, at, to):
            if step not in reached:
                reached.add(step)
                todo.append(step)
    return False


_Piece = str | frozenset[str]
"""A character, or a variable: any text without some characters."""


def _steps(
    left: tuple[_Piece, ...], right: tuple[_Piece, ...], at: int, to: int
) -> list[tuple[int, int]]:
    step = left[at] if at < len(left) else None
    other = right[to] if to < len(right) else None
    steps: list[tuple[int, int]] = []
    if isinstance(step, frozenset):
        steps.append((at + 1, to))
        if isinstance(other, str) and other not in step:
            steps.append((at, to + 1))
    if isinstance(other, frozenset):
        steps.append((at, to + 1))
        if isinstance(step, str) and step not in other:
            steps.append((at + 1, to))
    if isinstance(step, str) and step == other:
        steps.append((at + 1, to + 1))
    return steps


@lru_cache(maxsize=1024)
def _pieces(template: str) -> tuple[_Piece, ...]:
    pieces: list[_Piece] = []
    for number, part in enumerate(_VARIABLE.split(template)):
        if number % 2 == 0:
            pieces += part
        else:
            plain = part[:1].isalnum() or part[:1] == "_"
            pieces.append(_PATH_ONLY if plain else frozenset())
    return tuple(pieces)


def _literal(template: str) -> str:
    return template.partition("{")[0]


def _split_head(address: str) -> tuple[str, str]:
    match = _HEAD.fullmatch(address)
    return (match[1], match[2]) if match else ("", address)


def _quote(server: str) -> str:
    return quote(server, safe="", errors="surrogatepass")


Pair = tuple[str, str]


class AddressDirectory(msgspec.Struct, frozen=True, dict=True):
    """The known addresses of all configured servers at one moment, up or not.

    An address belongs to the server that listed it, otherwise to the one with a template for it.
    It does not matter which servers are up: none answers for another.
    """

    servers: Collection[str] = frozenset()
    """The configured servers."""
    resources: Mapping[str, Pair] = msgspec.field(default_factory=dict[str, Pair])
    """The server and its own address, by the address that callers use."""
    templates: Mapping[str, Pair] = msgspec.field(default_factory=dict[str, Pair])

    def find(self, address: str) -> Pair | None:
        """The server that has an address, and its own address for it."""
        if (listed := self.resources.get(address)) is not None:
            return listed
        renamed = split(address)
        if renamed is not None and renamed[0] in self.servers:
            return renamed
        for template, (server, raw) in self.templates.items():
            # renamed templates have been recognised by their mark
            if template == raw and fits(template, address):
                return server, address
        return None

    def guess(self, address: str, has: Callable[[str], bool]) -> Pair | None:
        """The server that may have an unlisted address: the only one with similar addresses."""
        scheme = _scheme(address)
        pairs = [pair for pair in self._all() if has(pair[0])]
        near = {server for server, raw in pairs if _scheme(raw) == scheme}
        servers = near or {server for server, _ in pairs}
        return (servers.pop(), address) if len(servers) == 1 else None

    def expose(self, server: str, uri: str) -> str:
        """The address that callers use for a server's own address."""
        holder = self.find(uri)
        if holder == (server, uri):
            return uri
        if holder is not None or (server, uri) in self._renamed:
            return rename(server, uri)
        is_made = any(fits(raw, uri) for owner, raw in self._renamed if owner == server)
        return rename(server, uri) if is_made else uri

    @cached_property
    def renaming(self) -> frozenset[str]:
        """The servers with an address that callers know under another one."""
        return frozenset(server for server, _ in self._renamed)

    @cached_property
    def _renamed(self) -> frozenset[Pair]:
        both = (*self.resources.items(), *self.templates.items())
        return frozenset(pair for address, pair in both if address != pair[1])

    def _all(self) -> Iterable[Pair]:
        yield from self.resources.values()
        yield from self.templates.values()


def fits(template: str, uri: str) -> bool:
    """Whether a template matches an address."""
    parsed = _parse(template)
    return parsed is not None and parsed.match(uri) is not None


@lru_cache(maxsize=1024)
def _parse(template: str) -> "uri_template.UriTemplate | None":
    from mcp.shared import uri_template  # noqa: PLC0415 - slow to import; most servers have none

    try:
        return uri_template.UriTemplate.parse(template)
    except uri_template.InvalidUriTemplate:
        return None


def _scheme(uri: str) -> str:
    return uri.partition(":")[0]


_RESOURCE, _TEMPLATE = "resource ", "template "


class WithholdingReason(msgspec.Struct, frozen=True):
    """Why an offer is neither shown nor used, and what to do about it."""

    words: str
    hint: str


class WithheldResources:
    """Withheld resources of all servers, by the servers' own addresses.

    Args:
        withheld: Withheld items besides tools, by server: `resource URI`, `template URI`.
    """

    def __init__(self, withheld: Mapping[str, Mapping[str, WithholdingReason]]) -> None:
        self._resources = {server: _of_kind(_RESOURCE, held) for server, held in withheld.items()}
        self._templates = {server: _of_kind(_TEMPLATE, held) for server, held in withheld.items()}
        self._spellings = {
            server: {_canonical(uri): reason for uri, reason in held.items()}
            for server, held in self._resources.items()
        }

    def check(self, server: str, uri: str, visible: Iterable[str]) -> None:
        """Check that an address is not withheld, in any spelling.

        Args:
            server: The owner of the address.
            uri: The server's own address.
            visible: Addresses and templates of the server that may be read.

        Raises:
            NotAllowed: It waits for review, or only a withheld template matches it.
        """
        reason = self._reason(server, uri, visible)
        if reason is not None:
            raise NotAllowed(
                f"the resource {quoted(uri)} is withheld: {reason.words}", hint=reason.hint
            )

    def _reason(self, server: str, uri: str, visible: Iterable[str]) -> WithholdingReason | None:
        if not self._resources.get(server) and not self._templates.get(server):
            return None  # true for nearly every server
        readable = frozenset(visible)
        if uri in readable:
            return None
        plain = _canonical(uri)
        if (reason := self._spellings[server].get(plain)) is not None:
            return reason
        if any(fits(template, uri) for template in readable):
            return None
        for template, reason in self._templates[server].items():
            if template == uri or fits(template, uri) or fits(template, plain):
                return reason
        return None


def _of_kind(kind: str, held: Mapping[str, WithholdingReason]) -> dict[str, WithholdingReason]:
    return {name.removeprefix(kind): held[name] for name in held if name.startswith(kind)}


# A server decides what an address means: it may well take `note://%61` and `NOTE://a/.` for the
# `note://a` that is withheld.
def _canonical(uri: str) -> str:
    # twice: a server may decode what its framework has decoded already
    scheme, colon, rest = unquote(unquote(uri)).partition(":")
    path, mark, query = rest.partition("#")[0].partition("?")
    slashes = "//" if path.startswith("//") else ""
    plain = posixpath.normpath(path.lstrip("/") or ".")
    return f"{scheme.lower()}{colon}{slashes}{plain.lower()}{mark}{query}"
