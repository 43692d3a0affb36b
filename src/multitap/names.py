"""How a server's tool is named for callers."""

import re
from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from hashlib import blake2s
from itertools import count

MAX_LENGTH = 64  # the tightest limit among model providers
_SURELY_KEPT = 48  # characters of a name, however long its suffix
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_UNPAIRED = re.compile(r"[\ud800-\udfff]")
_SUFFIX = re.compile(r"_[0-9a-f]{8,}\Z")


class Naming(StrEnum):
    """The shape of a name; `{server}_{tool}` unless told otherwise."""

    SERVER_TOOL = "{server}_{tool}"
    KODE = "{server}:{tool}"
    EXCELMANUS = "mcp_{server}_{tool}"
    CLAUDE = "mcp__{server}__{tool}"
    BARE = "{tool}"


def slug(text: str) -> str:
    """`text` with everything a model provider would reject turned into `_`."""
    return _FOREIGN.sub("_", text)


def expose(
    server: str,
    tools: Collection[str],
    *,
    servers: Collection[str],
    naming: Naming = Naming.SERVER_TOOL,
    shared: Collection[str] = (),
) -> dict[str, str]:
    """The name for callers of each of the server's tools, by the server's own tool name.

    Over all configured servers no two tools share a name, whatever the servers offer. A name that
    had to be cut, or that a tool of another server could have as well, ends in a digest of the
    server and the tool, so that it is the same in every process.

    Args:
        server: Whose tools these are.
        tools: All of the server's own tool names.
        servers: The names of all configured servers, up or not.
        naming: The shape of the names.
        shared: Tool names that more than one server has; only bare names ask for it.
    """
    shared = frozenset(shared) if naming is Naming.BARE else frozenset[str]()
    plain = {tool: _plain(naming, server, tool, prefixed=tool in shared) for tool in tools}
    times = Counter(plain.values())
    rivals = _rival_heads(naming, server, servers)

    def doubtful(tool: str, name: str) -> bool:
        return (
            not name
            or times[name] > 1
            or (naming is not Naming.KODE and len(name) > MAX_LENGTH)
            or name.startswith(rivals)
            or _SUFFIX.search(name) is not None  # else it could equal a suffixed one
            or (naming is Naming.BARE and name != tool and tool not in shared)
        )

    suffixed = {tool: name for tool, name in plain.items() if doubtful(tool, name)}
    return plain | _with_suffix(suffixed, naming, server, servers) if suffixed else plain


def may_be_of(server: str, name: str, naming: Naming) -> bool:
    """Whether a tool or prompt that callers know as `name` can be one of the server's."""
    return naming is Naming.BARE or name.startswith(_head(naming, server)[:_SURELY_KEPT])


def prefix_description(naming: Naming, server: str, description: str) -> str:
    """`description` as the naming wants it: ExcelManus says which server a tool is from."""
    if naming is Naming.EXCELMANUS:
        return f"[MCP:{server}] {description}".rstrip()
    return description


def _plain(naming: Naming, server: str, tool: str, *, prefixed: bool) -> str:
    if naming is Naming.KODE:
        return _head(naming, server) + _UNPAIRED.sub("\ufffd", tool)  # no encoder takes those
    if naming is Naming.BARE and not prefixed:
        return slug(tool)
    return _head(naming, server) + slug(tool)


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
    """How the names of other servers' tools begin, where ours may begin like that too."""
    own = _head(naming, server)
    heads = (_head(naming, other) for other in servers if other != server)
    if naming is Naming.BARE:
        return tuple(heads)
    return tuple(head for head in heads if head.startswith(own) or own.startswith(head))


def _with_suffix(
    names: dict[str, str], naming: Naming, server: str, servers: Collection[str]
) -> dict[str, str]:
    mark = _mark(server, servers)
    spare = count(0x10000)  # probing for a free digest would be quadratic, by a hostile list
    given: dict[str, str] = {}
    taken: set[str] = set()
    for tool in sorted(names):
        name = _join(names[tool], f"_{mark}{_digest(server, tool):04x}", naming)
        if name in taken:
            name = _join(names[tool], f"_{mark}{next(spare):04x}", naming)
        taken.add(name)
        given[tool] = name
    return given


def _join(name: str, suffix: str, naming: Naming) -> str:
    return (name if naming is Naming.KODE else name[: MAX_LENGTH - len(suffix)]) + suffix


def _mark(server: str, servers: Collection[str]) -> str:
    """Four hex digits no other configured server has.

    A digest alone could be forged: a server may choose a tool name until its digest equals that of
    another server's tool.
    """
    marks: dict[str, int] = {}
    taken: set[int] = set()
    for name in sorted({server, *servers}):
        number = _digest(name)
        while number in taken:
            number = (number + 1) % 0x10000
        taken.add(number)
        marks[name] = number
    return f"{marks[server]:04x}"


def _digest(*parts: str) -> int:
    digest = blake2s(digest_size=2)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    return int.from_bytes(digest.digest())
