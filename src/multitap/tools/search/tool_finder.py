"""Searches a set of tools: matches, descriptions, near misses of a name."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from multitap.catalog import schemas
from multitap.errors import BadArguments, UnknownName, counted, quoted
from multitap.records import dataclass
from multitap.tools.search.index import Index
from multitap.tools.search.outline import outline
from multitap.tools.search.tool_document import summary
from multitap.tools.tool import Arguments, ToolInfo, server_of

USUAL_HITS = 10
MOST_HITS = 20
# a model reads ten of these for each search
LONGEST_SUMMARY = 300
NEAR = 3
"""How many similar names are suggested for an unknown one."""

SEARCH = "search_tools"
DESCRIBE = "describe_tool"
CALL = "call_tool"


@dataclass(frozen=True, slots=True)
class SearchTool:
    """The definition of one of the three search tools."""

    name: str
    description: str
    schema: Mapping[str, Any]


DEFINITIONS: Mapping[str, SearchTool] = {
    SEARCH: SearchTool(
        SEARCH,
        "Find tools by what they do. Shows names, arguments (`?`: optional) and what they are "
        "for; use one with `call_tool`. Search before you say that something cannot be done.",
        {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "description": "What you want to do, in plain words, with the service if you "
                    "know it; or the name of a tool. Empty: an overview of what there is.",
                },
                "limit": {
                    "type": "integer",
                    "description": f"How many tools to show; {USUAL_HITS} if not given.",
                    "minimum": 1,
                    "maximum": MOST_HITS,
                },
            },
            "required": ["query"],
        },
    ),
    DESCRIBE: SearchTool(
        DESCRIBE,
        "Everything about one tool: its whole description and the JSON Schema of its "
        "arguments. Only needed where `search_tools` does not say enough.",
        {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "The tool's exact name."}},
            "required": ["name"],
        },
    ),
    CALL: SearchTool(
        CALL,
        "Use a tool that `search_tools` found.",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The tool's exact name."},
                "arguments": {"type": "object", "description": "What the tool takes, by name."},
            },
            "required": ["name"],
        },
    ),
}


class ToolFinder:
    """The tools behind the three search tools, up to date at each use.

    Args:
        listed: Lists all tools.
        find: Finds a tool by its name, whether its server is up or down.
        withheld: Says what is not offered because nobody has trusted it.
    """

    def __init__(
        self,
        listed: Callable[[], Iterable[ToolInfo]],
        find: Callable[[str], ToolInfo | None],
        withheld: Callable[[], str] = str,
    ) -> None:
        self._listed = listed
        self._find = find
        self._withheld = withheld
        self._known = Index()

    def search(self, arguments: Arguments) -> str:
        """The best matches, or an overview if nothing matches."""
        index = self._index()
        hits = index.search(arguments["query"], arguments.get("limit", USUAL_HITS))
        found = "\n\n".join(_show(hit.tool) for hit in hits)
        return found or _overview(arguments["query"], index.tools)

    def describe(self, arguments: Arguments) -> str:
        """The full description of one tool.

        Raises:
            UnknownName: There is none of that name.
        """
        name: str = arguments["name"]
        if (tool := self._find(name)) is None:
            raise UnknownName(f"no tool named {quoted(name)}", hint=self.advice(name))
        return f"{tool.name}\n\n{tool.description}\n\narguments: {_schema(tool)}"

    def advice(self, name: str) -> str:
        """A hint for an unknown name."""
        index = self._index()
        alike = get_close_matches(name, [tool.name for tool in index.tools], n=NEAR)
        # models invent plausible names: a search by words finds what a spelling match does not
        meant = [hit.tool.name for hit in index.search(name, NEAR)]
        near = [repr(one) for one in dict.fromkeys(alike + meant)][:NEAR]
        guess = f"the closest are {', '.join(near)}" if near else "`search_tools` finds tools"
        return "; ".join(filter(None, (guess, self._withheld())))

    def misfit(self, name: str, arguments: Arguments) -> str | None:
        """The error for arguments that do not match, with the schema."""
        if (tool := self._find(name)) is None:
            return None
        try:
            # checked here, where the schema can be shown at once: it saves the model a
            # `describe_tool`
            schemas.compile_schema(tool.parameters).check(arguments)
        except BadArguments as exc:
            return f"{exc}; its arguments: {_schema(tool)}"
        return None

    def _index(self) -> Index:
        self._known.update(self._listed())
        return self._known


def _show(tool: ToolInfo) -> str:
    return f"{tool.name}{outline(tool.parameters)}\n{_short(summary(tool))}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SUMMARY else f"{text[:LONGEST_SUMMARY]}…"


def _schema(tool: ToolInfo) -> str:
    return msgspec.json.encode(tool.parameters).decode()


def _overview(query: str, tools: tuple[ToolInfo, ...]) -> str:
    """The answer of a search without matches: which servers have tools."""
    count = Counter(server_of(tool) or "built in" for tool in tools)
    places = ", ".join(f"{place} ({number})" for place, number in sorted(count.items()))
    found = f"nothing matches {quoted(query)}; " if query.strip() else ""
    return (
        f"{found}{counted(len(tools), 'tool')} available: {places}"
        if tools
        else "there are no tools"
    )
