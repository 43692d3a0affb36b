"""Makes the names under which callers see tools."""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2s
from itertools import count
from typing import NamedTuple

from multitap.printable import skeleton

MAX_LENGTH = 64  # the tightest limit among model providers
_SURELY_KEPT = 48  # characters of a name, however long its suffix
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_ALL = "*"
_UNPAIRED = re.compile(r"[\ud800-\udfff]")
_SUFFIX = re.compile(r"_[0-9a-f]{8,}\Z")


class Naming(StrEnum):
    """How tool names are made; `{server}_{tool}` by default."""

    SERVER_TOOL = "{server}_{tool}"
    KODE = "{server}:{tool}"
    EXCELMANUS = "mcp_{server}_{tool}"
    CLAUDE = "mcp__{server}__{tool}"
    BARE = "{tool}"


def matches_any(name: str, globs: Iterable[str]) -> bool:
    """Whether a name matches one of some shell-style globs."""
    return any(fnmatchcase(name, glob) for glob in globs)


class ToolNames(NamedTuple):
    """The names by which a person may mean a tool."""

    exposed: str
    """The name that callers see."""
    own: str
    """The server's own name for it."""
    server: str = ""
    """Its server; empty if it has none."""

    def may_match(self, globs: Collection[str]) -> bool:
        """Whether one of some globs may mean the tool: for what forbids.

        Any name counts that a person may have written, also the one that the tool would have if it
        were not renamed or cut, and whatever looks the same: a server chooses its names, and must
        not get past a rule by a capital or by a letter of another script.
        """
        if _ALL in globs:
            return True
        if not globs:
            return False
        written = {self.exposed, self.own, *self._usual_names(self.own)}
        if any(matches_any(name, globs) for name in written):
            return True
        own = skeleton(self.own.strip())
        alike = {own, skeleton(self.exposed), *map(skeleton, self._usual_names(own))}
        # a set of characters such as `[0-9]` has no skeleton
        plain = [skeleton(glob) for glob in globs if "[" not in glob]
        return any(matches_any(name, plain) for name in alike)

    def surely_matches(self, globs: Collection[str], *, servers: Collection[str] = ()) -> bool:
        """Whether one of some globs certainly means the tool: for what allows.

        By the name that callers see. The server's own name counts only beside the name of the
        server: otherwise any server could call its tool like the one that is allowed.

        Args:
            globs: The globs.
            servers: Globs over the servers that they are for.
        """
        if _ALL in globs or matches_any(self.exposed, globs):
            return True
        if not self.server or _ALL in servers or not matches_any(self.server, servers):
            return False
        # beside `git` and `web`, `git_status` is the tool of the one, not of the other
        others = [f"{glob}_*" for glob in servers if not fnmatchcase(self.server, glob)]
        return matches_any(self.own, globs) and not matches_any(self.own, others)

    def _usual_names(self, tool: str) -> Iterable[str]:
        """The names for callers that a tool of the server usually has."""
        if not self.server:
            return ()
        return {
            plain_name(naming, self.server, tool)
            for naming in Naming
            # examples are written in the default shape, and read in every other
            if naming is Naming.SERVER_TOOL or self._is_named(naming)
        }

    def _is_named(self, naming: Naming) -> bool:
        return self.exposed.startswith(_head(naming, self.server)[:_SURELY_KEPT])


def slug(text: str) -> str:
    """`text` with `_` for every character that a model provider would reject."""
    return _FOREIGN.sub("_", text)


def plain_name(naming: Naming, server: str, tool: str) -> str:
    """A tool's name, unless it is too long or taken."""
    return _plain(naming, server, tool, prefixed=naming is not Naming.BARE)


def is_name_of(name: str, naming: Naming, server: str, tool: str) -> bool:
    """Whether a name may have been made for a tool: its plain name, or one with a digest."""
    plain = {_plain(naming, server, tool, prefixed=prefixed) for prefixed in (True, False)}
    return name in plain or bool(_SUFFIX.search(name))


def choose_names(
    server: str,
    tools: Collection[str],
    *,
    servers: Collection[str],
    naming: Naming = Naming.SERVER_TOOL,
    taken: Container[str] = (),
    careful: bool = False,
) -> dict[str, str]:
    """The name for callers of each of the server's tools, by the server's own tool name.

    No two share a name, and none gets one that is taken. A name that is too long or would clash
    ends in a digest of the server and the tool; a bare one is prefixed first, if that is enough.

    Args:
        server: Whose tools these are.
        tools: The server's own names of those that have no name yet.
        servers: The names of all configured servers, up or not.
        naming: The shape of the names.
        taken: Names that others have.
        careful: Whether a name that another configured server may want ends in a digest too: where
            nothing is remembered, names would otherwise depend on who comes first.
    """
    rivals = _rival_heads(naming, server, servers) if careful else ()

    def is_free(tool: str, name: str) -> bool:
        too_long = naming is not Naming.KODE and len(name) > MAX_LENGTH
        if not name or too_long or name in taken:
            return False
        return not careful or not (
            name.startswith(rivals)
            or _SUFFIX.search(name)  # otherwise it could equal a name with a suffix
            or (naming is Naming.BARE and name not in {tool, _head(naming, server) + tool})
        )

    assigned: dict[str, str] = {}
    left: list[str] = sorted(tools)
    for prefixed in (False, True) if naming is Naming.BARE else (True,):
        names = {tool: _plain(naming, server, tool, prefixed=prefixed) for tool in left}
        times = Counter((*names.values(), *assigned.values()))
        assigned |= {
            tool: name for tool, name in names.items() if times[name] == 1 and is_free(tool, name)
        }
        left = [tool for tool in left if tool not in assigned]
    if left:
        names = {tool: plain_name(naming, server, tool) for tool in left}
        mark = _mark(server, servers)
        assigned |= _with_suffix(names, naming, server, mark, taken, {*assigned.values()})
    return assigned


def likely_owners(name: str, servers: Collection[str], naming: Naming) -> list[str]:
    """The servers that a tool or prompt may belong to by its name; the likeliest first."""
    heads = {server: _head(naming, server) for server in servers}
    if naming is Naming.BARE:
        return sorted(servers, key=lambda server: not name.startswith(heads[server]))
    able = (server for server in servers if name.startswith(heads[server][:_SURELY_KEPT]))
    return sorted(able, key=lambda server: -len(heads[server]))


def names_one_of(name: str, servers: Collection[str], naming: Naming) -> bool:
    """Whether a name has the prefix of one of these servers."""
    return naming is not Naming.BARE and any(
        name.startswith(_head(naming, server)) for server in servers
    )


def prefix_description(naming: Naming, server: str, description: str) -> str:
    """`description` in the style of the naming: ExcelManus says which server a tool is from."""
    if naming is Naming.EXCELMANUS:
        return f"[MCP:{server}] {description}".rstrip()
    return description


def _plain(naming: Naming, server: str, tool: str, *, prefixed: bool) -> str:
    head = _head(naming, server) if prefixed else ""
    if naming is Naming.KODE:
        return head + _UNPAIRED.sub("\ufffd", tool)  # lone surrogates, which no encoder accepts
    return head + slug(tool)


def _head(naming: Naming, server: str) -> str:
    match naming:
        case Naming.SERVER_TOOL | Naming.BARE:
            return f"{slug(server)}_"
        case Naming.KODE:
            return _UNPAIRED.sub("\ufffd", server) + ":"
        case Naming.EXCELMANUS:
            return f"mcp_{slug(server).replace('-', '_')}_"
        case Naming.CLAUDE:
            return f"mcp__{slug(server)}__"


def _rival_heads(naming: Naming, server: str, servers: Collection[str]) -> tuple[str, ...]:
    """Prefixes of names that belong to other servers; the longest matching prefix decides."""
    own = _head(naming, server)
    heads = (_head(naming, other) for other in servers if other != server)
    return tuple(head for head in heads if naming is Naming.BARE or head.startswith(own))


def _with_suffix(  # noqa: PLR0917 - its only caller gives them all
    names: dict[str, str],
    naming: Naming,
    server: str,
    mark: str,
    taken: Container[str],
    own: set[str],
) -> dict[str, str]:
    spare = count(0x10000)  # probing for a free digest would be quadratic, by a hostile list
    assigned: dict[str, str] = {}
    for tool, plain in names.items():
        name = _join(plain, f"_{mark}{_digest(server, tool):04x}", naming)
        while name in own or name in taken:
            name = _join(plain, f"_{mark}{next(spare):04x}", naming)
        own.add(name)
        assigned[tool] = name
    return assigned


def _join(name: str, suffix: str, naming: Naming) -> str:
    return (name if naming is Naming.KODE else name[: MAX_LENGTH - len(suffix)]) + suffix


def _mark(server: str, servers: Collection[str]) -> str:
    """Four hex digits that no other configured server has.

    A digest alone could be forged: a server may choose a tool name until its digest equals that of
    another server's tool.
    """
    marks: dict[str, int] = {}
    used_numbers: set[int] = set()
    for name in sorted({server, *servers}):
        number = _digest(name)
        while number in used_numbers:
            number = (number + 1) % 0x10000
        used_numbers.add(number)
        marks[name] = number
    return f"{marks[server]:04x}"


def _digest(*parts: str) -> int:
    digest = blake2s(digest_size=2)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    return int.from_bytes(digest.digest())
