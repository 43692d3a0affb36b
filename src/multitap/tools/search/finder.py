"""Three tools that find, describe and call all others when there are too many for a model."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec

from multitap.catalog import schemas
from multitap.catalog.schemas.schema import is_list, is_object
from multitap.errors import BadArguments, UnknownName, counted, quoted
from multitap.results import ToolResult
from multitap.results.select import shape
from multitap.selectors import Selector
from multitap.tools.registry import ToolRegistry
from multitap.tools.search.embedding import Embedding
from multitap.tools.search.index import Index, summary
from multitap.tools.tool import (
    NOBODY,
    Arguments,
    ToolContext,
    ToolInfo,
    outcome,
    server_of,
    text_result,
)

# of the arguments in a search result, which `describe_tool` shows in full
MAX_OPTIONAL = 12
MAX_CHOICES = 10
MAX_DEPTH = 3
# references may lead back to where they began
MAX_REFERENCES = 16
MORE = "…"

Schema = Mapping[str, Any]


def outline(schema: Schema) -> str:
    """Required arguments, then optional ones; `…` stands for omitted ones."""
    return f"({_members(schema, schema, 0)})"


def _members(schema: Schema, root: Schema, depth: int) -> str:
    schema = _resolve(schema, root)
    properties = schema.get("properties")
    named: Mapping[str, Any] = properties if is_object(properties) else {}
    needed = schema.get("required")
    required = [name for name in named if is_list(needed) and name in needed]
    optional = [name for name in named if name not in required]
    members = [f"{name}: {_kind(named[name], root, depth)}" for name in required]
    members += [f"{name}?: {_kind(named[name], root, depth)}" for name in optional[:MAX_OPTIONAL]]
    return ", ".join(members + [MORE] * (len(optional) > MAX_OPTIONAL))


def _kind(schema: Any, root: Schema, depth: int) -> str:
    if not is_object(schema) or depth == MAX_DEPTH:
        return "any"
    schema = _resolve(schema, root)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if is_list(choices):
        return _either(map(_literal, choices[:MAX_CHOICES]), more=len(choices) > MAX_CHOICES)
    branches = schema.get("anyOf", schema.get("oneOf"))
    if is_list(branches):
        return _either(_kind(branch, root, depth + 1) for branch in branches)
    return _type_of(schema, root, depth)


def _type_of(schema: Schema, root: Schema, depth: int) -> str:
    kinds = schema.get("type", "any")
    if kinds == "array":
        return _list_of(_kind(schema.get("items"), root, depth + 1))
    if kinds == "object" and schema.get("properties"):
        return f"{{{_members(schema, root, depth + 1)}}}"
    return _either(map(str, kinds)) if is_list(kinds) else str(kinds)


def _list_of(kind: str) -> str:
    return f"({kind})[]" if " | " in kind else f"{kind}[]"


def _either(kinds: Iterable[str], *, more: bool = False) -> str:
    # `?` already says that it may be null
    distinct = [kind for kind in dict.fromkeys(kinds) if kind != "null"]
    return " | ".join([*distinct, *[MORE] * more]) or "null"


def _literal(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _resolve(schema: Schema, root: Schema) -> Schema:
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        target = _at(reference, root)
        if not is_object(target):
            return {}
        schema = target
    return schema


def _at(reference: str, root: Schema) -> Any:
    place: Any = root
    for part in unquote(reference).removeprefix("#").split("/")[1:]:
        # in this order (RFC 6901): `~01` is `~1`, and not a slash
        name = part.replace("~1", "/").replace("~0", "~")
        if not is_object(place):
            return None
        place = place.get(name)
    return place


USUAL_HITS = 10
MOST_HITS = 20
# a model reads ten of these for each search
LONGEST_SUMMARY = 300
NEAR = 3
"""How many similar names are suggested for an unknown one."""

SEARCH = "search_tools"
DESCRIBE = "describe_tool"
CALL = "call_tool"


class SearchTool(msgspec.Struct, frozen=True):
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
                "select": {
                    "type": "string",
                    "description": "Which fields of the result you need, as JMESPath: "
                    "`items[].{id: id, title: title}`. Saves reading the rest.",
                },
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
        embedding: Compares tools by meaning as well.
    """

    def __init__(
        self,
        listed: Callable[[], Iterable[ToolInfo]],
        find: Callable[[str], ToolInfo | None],
        withheld: Callable[[], str] = str,
        embedding: Embedding | None = None,
    ) -> None:
        self._listed = listed
        self._find = find
        self._withheld = withheld
        self._latest = Index(embedding=embedding)

    def search(self, arguments: Arguments) -> str:
        """The best matches, or an overview if nothing matches."""
        index = self._index()
        hits = index.search(arguments["query"], arguments.get("limit", USUAL_HITS))
        matches = "\n\n".join(_show(hit.tool) for hit in hits)
        return matches or _overview(arguments["query"], index.tools)

    def learn(self) -> None:
        """Have the embedding told which tools it has not read yet."""
        self._index().learn()

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
        near = [repr(candidate) for candidate in dict.fromkeys(alike + meant)][:NEAR]
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
        self._latest.update(self._listed())
        return self._latest


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
    prefix = f"nothing matches {quoted(query)}; " if query.strip() else ""
    return (
        f"{prefix}{counted(len(tools), 'tool')} available: {places}"
        if tools
        else "there are no tools"
    )


def search_mode(tools: ToolRegistry) -> tuple[ToolInfo, ToolInfo, ToolInfo]:
    """`search_tools`, `describe_tool` and `call_tool`, over the current registry at each use."""
    finder = ToolFinder(tools.list, tools.get)

    async def search(arguments: Arguments, _: ToolContext) -> ToolResult:
        return text_result(finder.search(arguments))

    async def describe(arguments: Arguments, _: ToolContext) -> ToolResult:
        return text_result(finder.describe(arguments))

    async def call(arguments: Arguments, context: ToolContext) -> ToolResult:
        name: str = arguments["name"]
        inner: Arguments = arguments.get("arguments", {})
        # checked before the call is made: afterwards it would be too late to refuse
        selector = Selector(arguments["select"]) if "select" in arguments else None
        result = await tools.execute(name, inner, context)
        if result.success:
            return result if selector is None else await _shaped(result, selector)
        if tools.get(name) is None:
            return text_result(f"{result.error}; {finder.advice(name)}", is_error=True)
        if (mismatch := finder.misfit(name, inner)) is None:
            return result
        return text_result(mismatch, is_error=True, tool=name)

    return (
        _BoundSearchTool(search, DEFINITIONS[SEARCH]),
        _BoundSearchTool(describe, DEFINITIONS[DESCRIBE]),
        _BoundSearchTool(call, DEFINITIONS[CALL]),
    )


async def _shaped(result: ToolResult, selector: Selector) -> ToolResult:
    raw = await shape(result.raw, selector)
    return ToolResult(raw, server=result.server, tool=result.tool, seconds=result.seconds)


class _BoundSearchTool(msgspec.Struct, frozen=True, dict=True):
    """One of the three search tools, as a tool of an agent."""

    enter: Callable[[Arguments, ToolContext], Awaitable[ToolResult]]
    definition: SearchTool

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.definition.schema

    async def execute(self, arguments: Arguments, context: ToolContext = NOBODY) -> ToolResult:
        return await outcome(self._enter(arguments, context))

    @cached_property
    def _checker(self) -> schemas.Checker | schemas.Unchecked:
        return schemas.compile_schema(self.parameters)

    async def _enter(self, arguments: Arguments, context: ToolContext) -> ToolResult:
        self._checker.check(arguments)
        return await self.enter(arguments, context)
