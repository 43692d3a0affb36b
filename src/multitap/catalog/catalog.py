"""One immutable picture of everything the servers offer."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any

import msgspec

from multitap.catalog import schemas
from multitap.catalog.addresses import AddressDirectory, WithheldResources, WithholdingReason, fits
from multitap.catalog.naming import NameRegistries, NameRegistry
from multitap.catalog.vetting import Vetting, VettingResult
from multitap.config.models import ServerConfig, ToolFilter
from multitap.errors import quoted
from multitap.names import Naming, ToolNames, names_one_of, prefix_description
from multitap.trust.lock_file import INSTRUCTIONS
from multitap.trust.policy import Policy
from multitap.upstream.link import Link
from multitap.upstream.lists import Definition, Offers

# of a tool; some servers send whole manuals, which every client would get
MAX_DESCRIPTION = 16 * 1024
PAGE_SCHEME = "ui://"
"""How the addresses of MCP apps' pages begin."""
FLAT_PAGE = "ui/resourceUri"
"""The older spelling of a tool's reference to its page, in its `_meta`."""
_ALL = ("*",)


class Tool(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One tool, as callers see it."""

    name: str
    """The name that callers use."""
    server: str
    raw_name: str
    """The server's own name for it."""
    description: str
    definition: Definition
    """The definition as the server sent it, shared and never changed."""
    link: Link

    @property
    def names(self) -> ToolNames:
        """The names that filters and rules go by."""
        return ToolNames(self.name, self.raw_name, self.server)

    @property
    def title(self) -> str | None:
        title = self.definition.get("title") or self.annotations.get("title")
        return title if isinstance(title, str) else None

    @property
    def input_schema(self) -> Mapping[str, Any]:
        # tools without one never get here: `schemas.defect` sorts them out
        schema: Mapping[str, Any] = self.definition["inputSchema"]
        return schema

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        return _object(self.definition.get("outputSchema"))

    @property
    def annotations(self) -> Mapping[str, Any]:
        return _object(self.definition.get("annotations")) or {}

    @property
    def is_for_model(self) -> bool:
        """Whether models may see and call it: some tools are only for the pages of an MCP app."""
        return self._is_visible_to("model")

    @property
    def is_for_apps(self) -> bool:
        """Whether the pages of its own server may call it."""
        return self._is_visible_to("app")

    def _is_visible_to(self, audience: str) -> bool:
        ui = (_object(self.definition.get("_meta")) or {}).get("ui")
        visibility = (_object(ui) or {}).get("visibility")
        # without a list of readers, it is for all of them
        return not isinstance(visibility, list) or audience in visibility

    @cached_property
    def repeatable(self) -> bool:
        """Whether the server declares the tool safe to repeat."""
        # only the server can know; without its hint a lost call is not repeated
        hints = self.annotations
        return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True

    @cached_property
    def checker(self) -> schemas.Checker | schemas.Unchecked:
        return schemas.compile_schema(self.input_schema)

    @cached_property
    def result_checker(self) -> schemas.ResultChecker | None:
        schema = self.output_schema
        return None if schema is None else schemas.ResultChecker(schema)


class Resource(msgspec.Struct, frozen=True, eq=False):
    """One resource or, with a `uriTemplate` in its definition, a family of them."""

    address: str
    """The address that callers use; differs from `uri` if another server has that."""
    server: str
    uri: str
    """The server's own name for it."""
    definition: Definition
    link: Link


class Prompt(msgspec.Struct, frozen=True, eq=False):
    """One prompt, as callers see it."""

    name: str
    server: str
    raw_name: str
    definition: Definition
    link: Link


class WithheldTool(msgspec.Struct, frozen=True, eq=False):
    """A tool that cannot be seen or called until a person has reviewed it."""

    tool: Tool
    reason: WithholdingReason


class HiddenTool(msgspec.Struct, frozen=True):
    """A tool of a server that no caller may see."""

    tool: Tool
    words: str
    """What hides it: `… is hidden by …`."""
    hint: str


class CatalogSection(msgspec.Struct, frozen=True):
    """One server's part of the catalog; rebuilt only when its offers change."""

    offers: Offers
    tools: Mapping[str, Tool]
    hidden: Mapping[str, HiddenTool]
    """By the names that callers would use."""
    prompts: Mapping[str, Prompt]
    resources: tuple[Resource, ...]
    templates: tuple[Resource, ...]
    warnings: tuple[str, ...]
    """Why some of its tools cannot be used."""
    withheld: Mapping[str, WithheldTool]
    vetted: VettingResult


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


class Catalog(msgspec.Struct, frozen=True):
    """Everything that can be called, read and used at one moment."""

    revision: int = 0
    tools: Mapping[str, Tool] = msgspec.field(default_factory=_empty)
    prompts: Mapping[str, Prompt] = msgspec.field(default_factory=_empty)
    resources: tuple[Resource, ...] = ()
    templates: tuple[Resource, ...] = ()
    absent: Mapping[str, Tool] = msgspec.field(default_factory=_empty)
    """Tools of servers that are down right now."""
    hidden: Mapping[str, HiddenTool] = msgspec.field(default_factory=_empty)
    directory: AddressDirectory = msgspec.field(default_factory=AddressDirectory)
    """The owner of each address, whether its server is up or not."""
    links: Mapping[str, Link] = msgspec.field(default_factory=_empty)
    """All servers, up or not."""
    withheld: Mapping[str, WithheldTool] = msgspec.field(
        default_factory=lambda: MappingProxyType({})
    )
    """Tools that wait for review."""
    mute: frozenset[str] = frozenset()
    """Servers whose instructions wait for review, or look like an attack."""
    withheld_resources: WithheldResources = msgspec.field(
        default_factory=lambda: WithheldResources({})
    )
    naming: Naming = Naming.SERVER_TOOL

    def tools_with_raw_name(self, raw_name: str) -> list[Tool]:
        """Tools with this name at their servers, up or down."""
        everything = chain(self.tools.values(), self.absent.values())
        # a linear search: only used after a name was not found
        return [tool for tool in everything if tool.raw_name == raw_name]

    def is_named_like_another(self, tool: Tool) -> bool:
        """Whether the server's own name for a tool begins as the names of another server do.

        A caller that uses it means that other server, which may be down or still starting.
        """
        others = frozenset(self.directory.servers) - {tool.server}
        return names_one_of(tool.raw_name, others, self.naming)

    def find_resource(
        self,
        uri: str,
        server: str | None = None,
        *,
        has: Callable[[str], bool] = lambda _: True,
    ) -> Resource | None:
        """The server that has a resource, up or not.

        Args:
            uri: The address that callers use; with `server`, the server's own address.
            server: The owner, if known.
            has: Whether to consider a server.

        Raises:
            NotAllowed: It is withheld.
        """
        if server is not None:
            self.check_readable(server, uri)
            return self._of(server, uri) or self._find_renamed(server, uri)
        place = self.directory.find(uri)
        # first: a refusal must not reveal the resources of a hidden server
        if place is None or place[0] not in self.links or not has(place[0]):
            return None
        owner, raw = place
        self.check_readable(owner, raw)
        return self._of(owner, raw) or Resource(uri, owner, raw, {}, self.links[owner])

    def guess_resource(self, uri: str, has: Callable[[str], bool]) -> Resource | None:
        """The server that may have an unlisted resource: tools return such addresses.

        Raises:
            NotAllowed: It is withheld.
        """
        place = self.directory.guess(uri, has)
        if place is None or place[0] not in self.links:
            return None
        self.check_readable(*place)
        return Resource(uri, place[0], uri, {}, self.links[place[0]])

    def check_readable(self, server: str, uri: str) -> None:
        """Check that an address of a server is not withheld.

        Raises:
            NotAllowed: It is.
        """
        visible = (
            entry.uri for entry in (*self.resources, *self.templates) if entry.server == server
        )
        self.withheld_resources.check(server, uri, visible)

    def _find_renamed(self, server: str, address: str) -> Resource | None:
        place = self.directory.find(address)
        return self._of(*place) if place is not None and place[0] == server else None

    def _of(self, server: str, uri: str) -> Resource | None:
        for resource in self.resources:
            if resource.uri == uri and resource.server == server:
                return resource
        for template in self.templates:
            if template.server == server and fits(template.uri, uri):
                address = self.directory.expose(server, uri)
                return Resource(address, server, uri, template.definition, template.link)
        return None


def allowed(names: ToolNames, filter_: ToolFilter, *, servers: Collection[str] = ()) -> bool:
    """Whether a filter shows a tool.

    Args:
        names: The tool's names.
        filter_: The filter.
        servers: Globs over the servers that it is for, if it names any.
    """
    if filter_.allow == _ALL and not filter_.deny:
        return True  # the usual case, for every tool of every list
    return names.surely_matches(filter_.allow, servers=servers) and not names.may_match(
        filter_.deny
    )


def build_section(
    link: Link,
    offers: Offers,
    registries: NameRegistries,
    vetting: Vetting,
    policy: Policy,
    *,
    last: CatalogSection | None = None,
) -> CatalogSection:
    """Name and check what one server offers.

    Args:
        link: The server.
        offers: Its lists.
        registries: The owners of names.
        vetting: Decides what may be shown.
        policy: Tools that it denies for all arguments are left out.
        last: Its last section: tools with the same definition are not checked again.
    """
    # unusable tools get no name: they must not take one from a tool that works
    usable, warnings = _usable(offers.tools, {} if last is None else last.vetted.seen)
    aliases, odd = _words(link.config, usable)
    warnings += odd
    names_given = registries.tools.give(link.name, tuple(aliases.values()))
    names = {raw: names_given[word] for raw, word in aliases.items()}
    described = link.config.tool_descriptions
    instructions = link.session.instructions if link.session is not None else None
    vetted = vetting.vet(
        link.name, link.config, usable, names=names, offers=offers, instructions=instructions
    )
    tools: dict[str, Tool] = {}
    withheld: dict[str, WithheldTool] = {}
    hidden: dict[str, HiddenTool] = {}
    for raw_name, definition in usable.items():
        name = names[raw_name]
        description = prefix_description(
            registries.naming,
            link.name,
            described.get(raw_name) or _text(definition.get("description")),
        )
        tool = Tool(name, link.name, raw_name, description, definition, link)
        if (hides := _hide(tool, policy)) is not None:
            hidden[name] = hides
        elif (reason := vetted.withheld.get(raw_name)) is None:
            tools[name] = tool
        else:
            withheld[name] = WithheldTool(tool, reason)
    return CatalogSection(
        offers,
        tools,
        hidden,
        _prompts(link, offers, registries.prompts, vetted),
        _resources(
            link,
            offers.resources,
            "uri",
            registries.resources,
            vetted,
            unlisted=pages_of(offers.tools),
        ),
        _resources(link, offers.templates, "uriTemplate", registries.templates, vetted),
        tuple(warnings),
        withheld,
        vetted,
    )


def _hide(tool: Tool, policy: Policy) -> HiddenTool | None:
    """Why a tool is hidden; None if it is not."""
    config = tool.link.config
    if not allowed(tool.names, config.filter, servers=(tool.server,)):
        return HiddenTool(tool, "hidden by a filter", "change the server's `filter`")
    guard = policy.guard(tool.names, config, tool.annotations)
    # rules about arguments are evaluated at the call; only an unconditional deny hides a tool
    if guard and guard.always and guard.is_closed:
        return HiddenTool(tool, f"denied by the policy{guard.always.because}", guard.always.hint)
    return None


def _words(
    config: ServerConfig, usable: Mapping[str, Definition]
) -> tuple[dict[str, str], list[str]]:
    """The base of each tool's name, its own or from `tool_names`, and problems with those."""
    tool_names = config.tool_names
    odd = [
        f"`{key}.{raw}`: the server has no such tool"
        for key, keys in (
            ("tool_names", tool_names),
            ("tool_descriptions", config.tool_descriptions),
            ("select", config.select),
        )
        for raw in keys
        if raw not in usable
    ]
    aliases = {raw: tool_names.get(raw, raw) for raw in usable}
    if len({*aliases.values()}) == len(aliases):
        return aliases, odd
    # all of them: a caller could not tell which of the two tools a name means
    return {raw: raw for raw in usable}, [*odd, "`tool_names` has a name that another tool has"]


def reserve(server: str, config: ServerConfig, offers: Offers, registries: NameRegistries) -> None:
    """Reserve the names of a server's last offers while it is down."""
    usable, _ = _usable(offers.tools, {})
    aliases, _ = _words(config, usable)
    # otherwise a server that starts faster would take the names that callers know
    registries.tools.give(server, tuple(aliases.values()))
    registries.prompts.give(server, tuple(texts(offers.prompts, "name")))
    uris = dict.fromkeys((*texts(offers.resources, "uri"), *pages_of(offers.tools)))
    registries.resources.give(server, tuple(uris))
    registries.templates.give(server, tuple(texts(offers.templates, "uriTemplate")))


def build(
    sections: Iterable[tuple[Link, CatalogSection]],
    revision: int,
    registries: NameRegistries,
    links: Mapping[str, Link],
) -> Catalog:
    """The catalog of all servers' offers, in the order of the servers' names."""
    tools: dict[str, Tool] = {}
    absent: dict[str, Tool] = {}
    prompts: dict[str, Prompt] = {}
    resources: list[Resource] = []
    templates: list[Resource] = []
    hidden: dict[str, HiddenTool] = {}
    withheld: dict[str, WithheldTool] = {}
    mute: set[str] = set()
    others: dict[str, Mapping[str, WithholdingReason]] = {}
    # by name, not by start order: lists must not change their order from run to run
    for link, section in sorted(sections, key=lambda pair: pair[0].name):
        if INSTRUCTIONS in section.vetted.withheld_others:
            mute.add(link.name)
        others[link.name] = section.vetted.withheld_others
        hidden |= section.hidden
        withheld |= section.withheld
        # no longer listed, but still found by name: a call then says why the server is down
        if not link.live:
            absent.update(section.tools)
            continue
        tools.update(section.tools)
        prompts.update(section.prompts)
        resources += section.resources
        templates += section.templates
    return Catalog(
        revision,
        MappingProxyType(tools),
        MappingProxyType(prompts),
        tuple(resources),
        tuple(templates),
        MappingProxyType(absent),
        MappingProxyType(hidden),
        AddressDirectory(
            registries.servers, registries.resources.holders, registries.templates.holders
        ),
        MappingProxyType(dict(links)),
        MappingProxyType(withheld),
        frozenset(mute),
        WithheldResources(others),
        registries.naming,
    )


def _usable(
    definitions: Iterable[Definition], seen: Mapping[str, tuple[str, Definition]]
) -> tuple[dict[str, Definition], list[str]]:
    usable: dict[str, Definition] = {}
    warnings: list[str] = []
    checked = {id(definition) for _, definition in seen.values()}
    for definition in definitions:
        if id(definition) not in checked and (reason := schemas.defect(definition)) is not None:
            warnings.append(f"tool {quoted(definition.get('name'))} is skipped: {reason}")
        elif definition["name"] in usable:
            warnings.append(
                f"tool {quoted(definition['name'])} is listed twice; the first one is used"
            )
        else:
            usable[definition["name"]] = definition
    return usable, warnings


def _prompts(
    link: Link, offers: Offers, registry: NameRegistry, vetted: VettingResult
) -> dict[str, Prompt]:
    # of duplicates only the first, which the server itself would find
    usable = texts(offers.prompts, "name")
    names = registry.give(link.name, tuple(usable))
    return {
        names[raw]: Prompt(names[raw], link.name, raw, definition, link)
        for raw, definition in usable.items()
        if f"prompt {raw}" not in vetted.withheld_others
    }


def _resources(
    link: Link,
    definitions: Iterable[Definition],
    key: str,
    registry: NameRegistry,
    vetted: VettingResult,
    *,
    unlisted: Iterable[str] = (),
) -> tuple[Resource, ...]:
    usable = texts(definitions, key)
    addresses = registry.give(link.name, tuple(dict.fromkeys((*usable, *unlisted))))
    kind = "resource" if key == "uri" else "template"
    return tuple(
        Resource(addresses[uri], link.name, uri, definition, link)
        for uri, definition in usable.items()
        if f"{kind} {uri}" not in vetted.withheld_others
    )


def pages_of(tools: Iterable[Definition]) -> tuple[str, ...]:
    """The addresses of the pages that tools refer to, which a server need not list."""
    pages: dict[str, None] = {}
    for tool in tools:
        if (meta := _object(tool.get("_meta"))) is not None:
            for uri in ((_object(meta.get("ui")) or {}).get("resourceUri"), meta.get(FLAT_PAGE)):
                if isinstance(uri, str) and uri.startswith(PAGE_SCHEME):
                    pages[uri] = None
    return tuple(pages)


def texts(definitions: Iterable[Definition], key: str) -> dict[str, Definition]:
    """Definitions by one of their fields, if that is a text; the first of duplicates."""
    texts_found: dict[str, Definition] = {}
    for definition in definitions:
        if isinstance(value := definition.get(key), str):
            texts_found.setdefault(value, definition)
    return texts_found


def _text(value: object) -> str:
    return value[:MAX_DESCRIPTION] if isinstance(value, str) else ""


def _object(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None  # pyright: ignore[reportUnknownVariableType]
