"""The words of a tool's definition, with weights."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.records import dataclass
from multitap.tools.search.tokens import of_name, of_prose
from multitap.tools.tool import HubTool, ToolInfo, server_of

MAX_DESCRIPTION = 4_000
MAX_ARGUMENTS = 64
MAX_ARGUMENT_TEXT = 300
MAX_DEPTH = 4
"""Characters, arguments and levels of a schema that are indexed."""

_SENTENCE = re.compile(r"(?<=[.!?。])\s|\n")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a tool's definition."""

    weight: float
    """The weight of a word in a field of average length."""
    usual: float
    """The average length in words; fixed, so that weights do not depend on other tools."""
    bend: float
    """How much a longer field reduces a word's weight: 0 not at all, 1 proportionally."""

    def share(self, length: int) -> float:
        return self.weight / (1 - self.bend + self.bend * max(length, 1) / self.usual)


NAME = Field(5.5, 3, 0.6)
SERVER = Field(3.0, 1, 0.4)
TITLE = Field(1.8, 3, 0.5)
SUMMARY = Field(2.5, 10, 0.5)
DETAIL = Field(1.0, 40, 0.7)
ARGUMENT = Field(1.0, 5, 0.8)
ARGUMENT_TEXT = Field(0.45, 40, 0.9)

_CHANGING = """
    add append apply approve archive assign attach cancel clear click close complete connect copy
    create delete deny disconnect drag drop edit fill finalize fork format hover import insert
    install invite make manage merge modify move mute new patch post press protect publish push put
    remove rename replace reply reschedule respond restore revoke schedule select send set start
    stop subscribe transition type unarchive uncomplete uninstall unmute unprotect unsubscribe
    update updater upgrade upload write
"""
CHANGING = frozenset(_CHANGING.split())
"""Words in the names of tools that change something."""
_VERB_WITHIN = 3  # words of a name: `jira_create_issue`
_SUMMARY_WORDS = 4


@dataclass(frozen=True, slots=True)
class ToolDocument:
    """A tool in the search index."""

    weights: Mapping[str, float]
    """The weight of each word."""
    names: frozenset[str]
    """Its names here and at its server, in lower case."""
    server: frozenset[str]
    """The words of its server's name."""
    changes: bool
    """Whether its name suggests that it changes something."""


def read(tool: ToolInfo) -> ToolDocument:
    """The document of a tool's definition."""
    own, server = own_name(tool), server_of(tool) or ""
    return ToolDocument(
        _weights(tool),
        frozenset({tool.name.casefold(), own.casefold()}),
        frozenset(of_name(server)),
        changes=not CHANGING.isdisjoint(of_name(own)[:_VERB_WITHIN]),
    )


def own_name(tool: ToolInfo) -> str:
    """The server's own name for it."""
    return tool.tool.raw_name if isinstance(tool, HubTool) else tool.name


def summary(tool: ToolInfo) -> str:
    """The first sentence of its description, and more after a short headline."""
    text = _description(tool)
    for end in _SENTENCE.finditer(text):
        if len(_WORD.findall(text[: end.start()])) >= _SUMMARY_WORDS:
            return text[: end.start()]
    return text


def _weights(tool: ToolInfo) -> Mapping[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for field, words in _fields(tool):
        share = field.share(len(words))
        for word in words:
            total[word] += share
    return dict(total)


def _fields(tool: ToolInfo) -> Iterator[tuple[Field, list[str]]]:
    yield NAME, of_name(own_name(tool))
    if isinstance(tool, HubTool):
        yield SERVER, of_name(tool.server)
        yield TITLE, of_prose(tool.title or "")
    first = summary(tool)
    yield SUMMARY, of_prose(first)
    # the rest counts less: long descriptions mention what a tool does not do
    yield DETAIL, of_prose(_description(tool)[len(first) :])
    arguments = list(islice(_arguments(tool.parameters), MAX_ARGUMENTS))
    yield ARGUMENT, [word for name, _ in arguments for word in of_name(name)]
    yield (
        ARGUMENT_TEXT,
        [word for _, schema in arguments for word in of_prose(_schema_text(schema))],
    )


def _description(tool: ToolInfo) -> str:
    return tool.description[:MAX_DESCRIPTION].strip()


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


def _schema_text(schema: Mapping[str, Any]) -> str:
    description, choices = schema.get("description"), schema.get("enum")
    words = description if isinstance(description, str) else ""
    if is_list(choices):
        words += " " + " ".join(choice for choice in choices if isinstance(choice, str))
    # an enum of a thousand countries must not outweigh the tool's own words
    return words[:MAX_ARGUMENT_TEXT]
