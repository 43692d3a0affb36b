"""What a tool says about itself, as words that weigh more or less."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from multitap.schemas.values import is_list, is_object
from multitap.tools.search.words import of_name, of_prose
from multitap.tools.tool import HubTool, ToolInfo

MAX_DESCRIPTION = 4_000
MAX_ARGUMENTS = 64
MAX_ARGUMENT_TEXT = 300
MAX_DEPTH = 4
"""Characters, arguments and levels of a schema that are looked at: nobody's words are endless."""

_SENTENCE = re.compile(r"(?<=[.!?。])\s|\n")


_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a tool's definition."""

    weight: float
    """Of a word in a field of usual length."""
    usual: float
    """Words. A fixed number, so that a tool's weights do not depend on its neighbours."""
    bend: float
    """How much less a word weighs in a longer field: 0 nothing, 1 in proportion."""

    def share(self, length: int) -> float:
        return self.weight / (1 - self.bend + self.bend * length / self.usual)


NAME = Field(5.0, 3, 0.6)
SERVER = Field(3.0, 1, 0.0)
TITLE = Field(2.0, 3, 0.5)
SUMMARY = Field(2.5, 10, 0.5)
DETAIL = Field(1.0, 40, 0.7)
ARGUMENT = Field(1.0, 5, 0.6)
ARGUMENT_TEXT = Field(0.5, 40, 0.7)


def weights(tool: ToolInfo) -> dict[str, float]:
    """How much each word stands for a tool."""
    total: defaultdict[str, float] = defaultdict(float)
    for field, words in _fields(tool):
        share = field.share(len(words))
        for word in words:
            total[word] += share
    return dict(total)


def server_of(tool: ToolInfo) -> str | None:
    """The MCP server that has the tool, if one has."""
    return tool.tool.server if isinstance(tool, HubTool) else None


WRITING = frozenset(
    "create add new make insert update edit modify set patch delete remove drop write put append send post publish upload import rename move merge copy fork push assign archive unarchive cancel complete uncomplete approve deny revoke restore invite attach replace format protect unprotect apply install uninstall upgrade schedule reschedule mute unmute clear start stop close connect disconnect finalize transition respond reply manage updater subscribe unsubscribe click type fill press drag drop hover select".split()
)


def changes(tool: ToolInfo) -> bool:
    names = of_name(names_of(tool)[-1])
    return any(w in WRITING for w in names[:3])


def names_of(tool: ToolInfo) -> tuple[str, ...]:
    """What it is called here and, if that is something else, by its server."""
    return (tool.name, tool.tool.raw_name) if isinstance(tool, HubTool) else (tool.name,)


def summary(tool: ToolInfo) -> str:
    """The first sentence of its description."""
    text = tool.description.strip()
    for end in _SENTENCE.finditer(text):
        if len(_WORDS.findall(text[: end.start()])) > 3:
            return text[: end.start()]
    return text


def _fields(tool: ToolInfo) -> Iterator[tuple[Field, list[str]]]:
    if isinstance(tool, HubTool):
        yield NAME, of_name(tool.tool.raw_name)
        yield SERVER, of_name(tool.tool.server)
        yield TITLE, of_prose(tool.tool.title or "")
    else:
        yield NAME, of_name(tool.name)
    first = summary(tool)
    yield SUMMARY, of_prose(first[:MAX_DESCRIPTION])
    yield DETAIL, of_prose(tool.description.strip()[len(first) : MAX_DESCRIPTION])
    arguments = list(_arguments(tool.parameters))[:MAX_ARGUMENTS]
    yield ARGUMENT, [word for name, _ in arguments for word in of_name(name)]
    yield ARGUMENT_TEXT, [word for _, schema in arguments for word in of_prose(_said(schema))]


def _arguments(
    schema: Mapping[str, Any], depth: int = 1
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every named part, the outer ones first."""
    properties = schema.get("properties")
    named = [*properties.items()] if is_object(properties) else []
    inner = [(name, part) for name, part in named if is_object(part)]
    yield from inner
    if depth < MAX_DEPTH:
        for part in _parts(schema, (part for _, part in inner)):
            yield from _arguments(part, depth + 1)


def _parts(
    schema: Mapping[str, Any], properties: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    yield from properties
    if is_object(items := schema.get("items")):
        yield items
    for keyword in ("anyOf", "oneOf", "allOf"):
        if is_list(branches := schema.get(keyword)):
            yield from (branch for branch in branches if is_object(branch))


def _said(schema: Mapping[str, Any]) -> str:
    description, choices = schema.get("description"), schema.get("enum")
    words = description if isinstance(description, str) else ""
    if is_list(choices):
        words += " " + " ".join(choice for choice in choices if isinstance(choice, str))
    return words[:MAX_ARGUMENT_TEXT]
