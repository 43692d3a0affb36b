"""One immutable picture of everything the servers offer."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from multitap import schemas
from multitap.config import ToolFilter
from multitap.errors import quoted
from multitap.later import Later
from multitap.names import Naming, expose, prefix_description
from multitap.upstream.link import Link
from multitap.upstream.listing import Definition, Offers

if TYPE_CHECKING:
    from mcp.shared import uri_template
else:
    uri_template = Later("mcp.shared.uri_template")

MAX_DESCRIPTION = 16 * 1024
_ALL = ("*",)


@dataclass(frozen=True, eq=False)
class Tool:
    """One tool, as callers see it."""

    name: str
    """What callers see."""
    server: str
    raw_name: str
    """What the server calls it."""
    description: str
    definition: Definition
    """The server's own words, shared and never changed."""
    link: Link = field(repr=False)

    @property
    def title(self) -> str | None:
        title = self.definition.get("title") or self.annotations.get("title")
        return title if isinstance(title, str) else None

    @property
    def input_schema(self) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = self.definition["inputSchema"]
        return schema

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        return _object(self.definition.get("outputSchema"))

    @property
    def annotations(self) -> Mapping[str, Any]:
        return _object(self.definition.get("annotations")) or {}

    @cached_property
    def repeatable(self) -> bool:
        """Whether the server says that a second run does no harm."""
        hints = self.annotations
        return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True

    @cached_property
    def checker(self) -> schemas.Checker | schemas.Unchecked:
        return schemas.compile_schema(self.input_schema)

    @cached_property
    def result_checker(self) -> schemas.ResultChecker | None:
        schema = self.output_schema
        return None if schema is None else schemas.ResultChecker(schema)


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """One resource or, with a `uriTemplate` in its definition, a family of them."""

    uri: str
    server: str
    definition: Definition
    link: Link = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One prompt, as callers see it."""

    name: str
    server: str
    raw_name: str
    definition: Definition
    link: Link = field(repr=False)


@dataclass(frozen=True, slots=True)
class Shelf:
    """One server's part of the catalog; made anew only when its offers change."""

    offers: Offers
    tools: Mapping[str, Tool]
    hidden: frozenset[str]
    """Names of tools that the server has and a filter hides."""
    prompts: Mapping[str, Prompt]
    resources: tuple[Resource, ...]
    templates: tuple[Resource, ...]
    warnings: tuple[str, ...]
    """Which of its tools are not usable, and why."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What there is to call, read and use at one moment."""

    revision: int = 0
    tools: Mapping[str, Tool] = field(default_factory=lambda: MappingProxyType({}))
    prompts: Mapping[str, Prompt] = field(default_factory=lambda: MappingProxyType({}))
    resources: tuple[Resource, ...] = ()
    templates: tuple[Resource, ...] = ()
    absent: Mapping[str, Tool] = field(default_factory=lambda: MappingProxyType({}))
    """Tools of servers that are down right now."""
    hidden: frozenset[str] = frozenset()

    def named(self, raw_name: str) -> list[Tool]:
        """Tools that their servers call `raw_name`, up or down."""
        everything = chain(self.tools.values(), self.absent.values())
        return [tool for tool in everything if tool.raw_name == raw_name]

    def find_resource(self, uri: str, server: str | None = None) -> Resource | None:
        """Who has `uri`: by its exact name, else by a template that fits."""
        for resource in self.resources:
            if resource.uri == uri and server in {None, resource.server}:
                return resource
        for template in self.templates:
            if server in {None, template.server} and _fits(template.uri, uri):
                return template
        return None


def allowed(name: str, filter_: ToolFilter) -> bool:
    if filter_.allow == _ALL and not filter_.deny:
        return True  # the usual case, for every tool of every list
    return any(fnmatchcase(name, glob) for glob in filter_.allow) and not any(
        fnmatchcase(name, glob) for glob in filter_.deny
    )


def stock(
    link: Link, offers: Offers, servers: Collection[str], naming: Naming, shared: Collection[str]
) -> Shelf:
    """Name and check what one server offers.

    Args:
        link: The server.
        offers: What it says it has.
        servers: All configured servers, up or not, because names must not depend on that.
        naming: The shape of names.
        shared: Tool names known from more than one server, which matter to bare names only.
    """
    usable, warnings = _usable(offers.tools)
    names = expose(link.name, tuple(usable), servers=servers, naming=naming, shared=shared)
    tools: dict[str, Tool] = {}
    hidden: set[str] = set()
    for raw_name, definition in usable.items():
        name = names[raw_name]
        if not allowed(raw_name, link.config.filter):
            hidden.add(name)
            continue
        description = prefix_description(naming, link.name, _text(definition.get("description")))
        tools[name] = Tool(name, link.name, raw_name, description, definition, link)
    return Shelf(
        offers,
        tools,
        frozenset(hidden),
        _prompts(link, offers, servers, naming),
        _resources(link, offers.resources, "uri"),
        _resources(link, offers.templates, "uriTemplate"),
        tuple(warnings),
    )


def build(stocked: Iterable[tuple[Link, Shelf]], revision: int) -> Catalog:
    """Everything on the shelves, in the order of the servers' names."""
    tools: dict[str, Tool] = {}
    absent: dict[str, Tool] = {}
    prompts: dict[str, Prompt] = {}
    resources: list[Resource] = []
    templates: list[Resource] = []
    hidden: set[str] = set()
    for link, shelf in sorted(stocked, key=lambda pair: pair[0].name):
        hidden |= shelf.hidden
        if not link.live:
            absent.update(shelf.tools)
            continue
        tools.update(shelf.tools)
        prompts.update(shelf.prompts)
        resources += shelf.resources
        templates += shelf.templates
    return Catalog(
        revision,
        MappingProxyType(tools),
        MappingProxyType(prompts),
        tuple(resources),
        tuple(templates),
        MappingProxyType(absent),
        frozenset(hidden),
    )


def _usable(definitions: Iterable[Definition]) -> tuple[dict[str, Definition], list[str]]:
    usable: dict[str, Definition] = {}
    warnings: list[str] = []
    for definition in definitions:
        if (reason := schemas.defect(definition)) is not None:
            warnings.append(f"tool {quoted(definition.get('name'))} is skipped: {reason}")
        elif definition["name"] in usable:
            warnings.append(
                f"tool {quoted(definition['name'])} is there twice; the first one is used"
            )
        else:
            usable[definition["name"]] = definition
    return usable, warnings


def _prompts(
    link: Link, offers: Offers, servers: Collection[str], naming: Naming
) -> dict[str, Prompt]:
    usable = {
        name: definition
        for definition in offers.prompts
        if isinstance(name := definition.get("name"), str)
    }
    names = expose(link.name, tuple(usable), servers=servers, naming=naming)
    return {
        names[raw]: Prompt(names[raw], link.name, raw, definition, link)
        for raw, definition in usable.items()
    }


def _resources(link: Link, definitions: Iterable[Definition], key: str) -> tuple[Resource, ...]:
    return tuple(
        Resource(uri, link.name, definition, link)
        for definition in definitions
        if isinstance(uri := definition.get(key), str)
    )


def _fits(template: str, uri: str) -> bool:
    try:
        return uri_template.UriTemplate.parse(template).match(uri) is not None
    except uri_template.InvalidUriTemplate:
        return False


def _text(value: object) -> str:
    return value[:MAX_DESCRIPTION] if isinstance(value, str) else ""


def _object(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None  # pyright: ignore[reportUnknownVariableType]
