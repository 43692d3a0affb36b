"""Makes the address that callers use when two servers share one."""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from urllib.parse import quote, unquote

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
    chosen = choose_addresses(server, templates, held)
    return {
        template: rename(server, template)
        if any(overlap(template, other) for other in others)
        else name
        for template, name in chosen.items()
    }


def overlap(one: str, other: str) -> bool:
    """Whether two templates may match the same address."""
    if max(len(one), len(other)) > LONGEST_COMPARED:
        # conservative: may rename an address unnecessarily, but never shares one
        return _literal(one).startswith(_literal(other)) or _literal(other).startswith(
            _literal(one)
        )
    left, right = _pieces(one), _pieces(other)
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
    one = left[at] if at < len(left) else None
    other = right[to] if to < len(right) else None
    steps: list[tuple[int, int]] = []
    if isinstance(one, frozenset):
        steps.append((at + 1, to))
        if isinstance(other, str) and other not in one:
            steps.append((at, to + 1))
    if isinstance(other, frozenset):
        steps.append((at, to + 1))
        if isinstance(one, str) and one not in other:
            steps.append((at + 1, to))
    if isinstance(one, str) and one == other:
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
