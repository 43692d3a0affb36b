"""What the clients of one audience see of the catalog, encoded once."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw

from multitap.catalog.addresses import AddressDirectory
from multitap.catalog.audience import AudienceLimits
from multitap.catalog.catalog import FLAT_PAGE, Catalog, Prompt, Resource, Tool
from multitap.config import LocalServer, Profile
from multitap.config.documents import is_list, is_table
from multitap.config.models import Serve
from multitap.gateway.client_errors import ScopeNeeded
from multitap.gateway.own_tools import code_tools, reading_tool, search_tools
from multitap.hub.routes import CallDefaults, Route, route_to
from multitap.telemetry.metrics import BYTES_PER_TOKEN
from multitap.upstream.link import Link
from multitap.upstream.lists import Definition
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import parse_table, text_of

_parse_list = msgspec.json.Decoder(list[Raw]).decode
_SIGNS = (b'uri"', b'esourceUri"')
"""How the keys end whose values may be addresses."""


class References:
    """Rewrites the addresses of one server's renamed resources in its results.

    Only what MCP defines as an address is changed: links, embedded resources, contents, and the
    pages of MCP apps. Everything else stays undecoded.
    """

    def __init__(self, server: str, directory: AddressDirectory) -> None:
        self._server = server
        self._directory = directory

    def in_result(self, result: Raw | bytes) -> Raw | bytes:
        """Rewrite the addresses in the result of a call, a prompt or a read."""
        data = bytes(result)
        # most results have no references: searching bytes costs less than parsing them
        if not any(sign in data for sign in _SIGNS):
            return result
        return _change_values(
            Raw(data),
            {
                "content": self._blocks,
                "contents": self._contents,
                "messages": self._messages,
                "_meta": self._meta,
            },
        )

    def in_meta(self, meta: Any) -> Any:
        """Rewrite the addresses in the decoded `_meta` of a tool."""
        if not isinstance(meta, dict):
            return meta
        raw = Raw(jsonrpc.encode(meta))
        return jsonrpc.decode(self._meta(raw))

    def _contents(self, contents: Raw) -> Raw:
        return _each(contents, self._resource)

    def _messages(self, messages: Raw) -> Raw:
        return _each(messages, lambda message: _change_values(message, {"content": self._blocks}))

    def _blocks(self, blocks: Raw) -> Raw:
        if bytes(memoryview(blocks)[:1]) == b"[":
            return _each(blocks, self._block)
        return self._block(blocks)

    def _block(self, block: Raw) -> Raw:
        if not any(sign in bytes(block) for sign in _SIGNS):
            return block
        return _change_values(
            block, {"uri": self._address, "resource": self._resource, "_meta": self._meta}
        )

    def _resource(self, resource: Raw) -> Raw:
        return _change_values(resource, {"uri": self._address, "_meta": self._meta})

    def _meta(self, meta: Raw) -> Raw:
        ui: Callable[[Raw], Raw] = lambda raw: _change_values(raw, {"resourceUri": self._address})  # noqa: E731
        return _change_values(meta, {"ui": ui, FLAT_PAGE: self._address})

    def _address(self, uri: Raw) -> Raw:
        text = text_of(uri)
        if text is None:
            return uri
        address = self._directory.expose(self._server, text)
        return uri if address == text else Raw(jsonrpc.encode(address))


def _change_values(value: Raw, changes: dict[str, Callable[[Raw], Raw]]) -> Raw:
    """A JSON object with some values changed; any other value unchanged."""
    if bytes(memoryview(value)[:1]) != b"{":
        return value
    table = parse_table(value)
    new = {key: change(table[key]) for key, change in changes.items() if key in table}
    if all(new[key] is table[key] for key in new):
        return value
    return Raw(jsonrpc.encode({**table, **new}))


def _each(values: Raw, change: Callable[[Raw], Raw]) -> Raw:
    """A JSON list with each value changed; any other value unchanged."""
    if bytes(memoryview(values)[:1]) != b"[":
        return values
    old = _parse_list(values)
    new = [change(value) for value in old]
    if all(before is other for before, other in zip(new, old, strict=True)):
        return values
    return Raw(jsonrpc.encode(new))


_NO_LETTER = re.compile(r"\W|^(?=\d)")
LISTS: Final = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""The methods, and what the lists are called in their results."""
GROUPING: Final = "io.modelcontextprotocol/grouping"
"""The extension for groups of tools, resources and prompts."""
GROUPS: Final = "io.modelcontextprotocol/groups"
"""The key in `_meta` of the groups that something belongs to."""
_MARK = jsonrpc.ARGUMENT_HEADER_KEY.encode()


class ListPage(NamedTuple):
    """A part of a list, encoded without braces."""

    body: bytes
    last: str = ""
    """The name or address of its last entry."""


class ListPages:
    """One list, encoded page by page."""

    def __init__(
        self, key: str, entries: Callable[[], Sequence[Mapping[str, Any]]], size: int
    ) -> None:
        self._key = key
        self._entries = entries
        self._size = size
        every = entries()
        starts = range(0, len(every) or 1, size)
        self.pages = tuple(self._page(every[start : start + size]) for start in starts)
        """At least one."""

    def after(self, number: int, last: str) -> tuple[ListPage, int | None]:
        """The page after that many entries, and how many precede the next one; None at the end.

        `last` is the entry before it when the client got the page before: if the list has changed
        since, it goes on after that one.
        """
        place, rest = divmod(number, self._size)
        pages = self.pages
        if not number or (not rest and place < len(pages) and pages[place - 1].last == last):
            return pages[place], None if place + 1 == len(pages) else number + self._size
        entries = self._entries()
        starts = (start for start, entry in enumerate(entries, 1) if self._name(entry) == last)
        start = next(starts, min(number, len(entries)))
        end = start + self._size
        return self._page(entries[start:end]), None if end >= len(entries) else end

    def _page(self, entries: Sequence[Mapping[str, Any]]) -> ListPage:
        encoded = jsonrpc.encode({self._key: entries})
        return ListPage(encoded[1:-1], self._name(entries[-1]) if entries else "")

    def _name(self, entry: Mapping[str, Any]) -> str:
        names = {"resources": "uri", "resourceTemplates": "uriTemplate"}
        return str(entry[names.get(self._key, "name")])


class View:
    """One audience's part of one catalog; rebuilt when either changes.

    Args:
        defaults: Settings for calls that the server's configuration does not override.
        shows_pages: Whether its clients show the pages of MCP apps, whose tools models do not see.
        shows_groups: Whether its clients know groups; then each server is one.
    """

    def __init__(
        self,
        catalog: Catalog,
        limits: AudienceLimits,
        profiles: Mapping[str, Profile],
        defaults: CallDefaults = CallDefaults(),
        serve: Serve = Serve(),
        *,
        shows_pages: bool = False,
        shows_groups: bool = False,
    ) -> None:
        self._shows_pages = shows_pages
        self._shows_groups = shows_groups
        self.page_size = serve.page_size
        self.catalog = catalog
        self.basis: Catalog | None = None
        """The catalog as long as which the view is valid; None if it depends on more than that."""
        self.limits = limits
        self.profiles = profiles
        self.defaults = defaults
        self.routes: dict[str, Route] = {}
        """The routes of tools that have been called."""
        self.tools: Mapping[str, Tool] = catalog.tools
        # most clients see everything, which may be many thousand tools
        if (
            not limits.is_everything
            or any(map(_has_on_request, catalog.links.values()))
            or not all(tool.is_for_model for tool in catalog.tools.values())
        ):
            self.tools = {name: tool for name, tool in catalog.tools.items() if self.shows(tool)}
        self.prompts: Mapping[str, Prompt] = catalog.prompts
        resources, templates = catalog.resources, catalog.templates
        if not limits.has_all_servers:
            self.prompts = {
                name: prompt for name, prompt in catalog.prompts.items() if self.has(prompt.server)
            }
            resources = tuple(resource for resource in resources if self.has(resource.server))
            templates = tuple(template for template in templates if self.has(template.server))
        self.resources = {resource.address: resource for resource in resources}
        self.templates = {template.address: template for template in templates}
        directory = catalog.directory
        self.renaming = directory.renaming
        """Servers with renamed addresses, whose results have to be rewritten."""
        self._references = {name: References(name, directory) for name in directory.renaming}
        listings = [profile.tools for profile in limits.all_profiles if profile.tools is not None]
        budgets = [
            profile.token_budget
            for profile in limits.all_profiles
            if profile.token_budget is not None
        ]
        # a budget for a profile is meant to decide something
        usual = "auto" if budgets and serve.tools == "all" else serve.tools
        self._listing = listings[0] if listings else usual
        self._budget = min(budgets, default=serve.token_budget)
        self._has_budget = bool(budgets)
        self.result_room = round(self._budget * BYTES_PER_TOKEN)
        """Bytes that a shaped result may take."""
        self._encoded: dict[tuple[str, bool, bool], ListPages] = {}
        self._marked: frozenset[str] | None = None

    def shows(self, tool: Tool) -> bool:
        """Whether a tool may be listed and called, whether or not its server is up."""
        if _is_on_request(tool) and not self.limits.shows_environment:
            return False
        # clients that know nothing of apps would show all tools to their model
        if not tool.is_for_model and not (self._shows_pages and tool.is_for_apps):
            return False
        return self.limits.shows(tool.names)

    @cached_property
    def mode(self) -> Literal["all", "search", "code"]:
        """What clients see: all tools, or three that find the others and use them."""
        if self._listing in {"all", "auto", "auto-code"} and (
            self._listing == "all" or self.all_tokens <= self._budget
        ):
            return "all"
        return "code" if self.runs_code else "search"

    @property
    def searched(self) -> bool:
        """Whether clients see three tools instead of all tools."""
        return self.mode != "all"

    @property
    def runs_code(self) -> bool:
        """Whether clients may run scripts."""
        return self._listing in {"code", "auto-code"}

    @cached_property
    def functions(self) -> Mapping[str, str]:
        """The names of tools by those of functions, in which only letters, digits and `_` occur."""
        functions: dict[str, str] = {}
        # exact names first, so that no other tool can take them
        for name in sorted(self.tools, key=lambda name: (not name.isidentifier(), name)):
            if not self.tools[name].is_for_model:
                continue
            functions.setdefault(_NO_LETTER.sub("_", name), name)
        return functions

    @cached_property
    def all_tokens(self) -> int:
        """About how many tokens the definitions of all its tools take."""
        return _read_tokens([self._tool(tool) for tool in self.tools.values() if tool.is_for_model])

    @cached_property
    def listed_tokens(self) -> int:
        """About how many tokens clients read in the list that they get."""
        return _read_tokens(self._content("tools/list")["tools"])

    @property
    def answers_searches(self) -> bool:
        """Whether the three search tools can be called.

        With "auto" always, whatever is listed now: servers come and go, and a client may still
        have the other list.
        """
        return self._listing != "all"

    @cached_property
    def shapes_results(self) -> bool:
        """Whether results are shaped for a model, and not passed on as they are."""
        return self._has_budget or self.searched

    def route(self, tool: Tool) -> Route:
        """The route to a tool of the catalog.

        Raises:
            ScopeNeeded: The client's token lacks scopes for it.
        """
        route = self.routes.get(tool.name)
        if route is None:
            if scopes := self.limits.missing_scopes(tool.names):
                raise ScopeNeeded(tool.name, scopes)
            route = route_to(tool, self.defaults)
            # others are not for every client of the view, or their results are shaped
            is_shaped = self.shapes_results or tool.raw_name in tool.link.config.select
            if tool.name in self.tools and not is_shaped:
                self.routes[tool.name] = route
        return route

    def list_pages(self, method: str, *, stateless: bool, defers: bool = False) -> ListPages:
        """The pages of a list.

        Args:
            defers: Whether the client searches tools by itself, which two searches would slow down.
        """
        is_whole = defers and self.lists_by_size and method == "tools/list"
        key = (method, stateless, is_whole)
        if (pages := self._encoded.get(key)) is None:

            def entries() -> Sequence[Mapping[str, Any]]:
                ((_, listed),) = content().items()
                if method != "tools/list":
                    return listed
                return [_with_tasks(tool, stateless) for tool in listed]

            content = self._whole_list if is_whole else partial(self._content, method)
            # once for each view: some clients list before every call
            pages = self._encoded[key] = ListPages(LISTS[method], entries, self.page_size)
        return pages

    @property
    def lists_by_size(self) -> bool:
        """Whether what clients list depends on its size, and not on the operator alone."""
        return self._listing in {"auto", "auto-code"}

    def differences(self, earlier: "View") -> frozenset[str]:
        """The lists that differ from an earlier view: `tools`, `prompts`, `resources`."""
        kinds = {
            "tools": ("tools/list",),
            "prompts": ("prompts/list",),
            "resources": ("resources/list", "resources/templates/list"),
        }
        return frozenset(
            kind
            for kind, methods in kinds.items()
            if any(
                # by what a client may see at most: some list everything where others search
                self.list_pages(method, stateless=False, defers=True).pages
                != earlier.list_pages(method, stateless=False, defers=True).pages
                for method in methods
            )
        )

    def wants_headers(self, name: str) -> bool:
        """Whether arguments of a tool are also sent as headers."""
        if self._marked is None:
            # the whole list first: hardly any server uses it
            pages = self.list_pages("tools/list", stateless=True).pages
            is_marked = any(_MARK in page.body for page in pages)
            self._marked = frozenset(
                name
                for name, tool in self.tools.items()
                if is_marked and _MARK in jsonrpc.encode(tool.input_schema)
            )
        return name in self._marked

    def resource(self, uri: str) -> tuple[Link, str] | None:
        """The server of a URI, whether or not it is up, and the URI there.

        Raises:
            NotAllowed: It is withheld.
        """
        catalog = self.catalog
        resource_found = catalog.find_resource(uri, has=self.has) or catalog.guess_resource(
            uri, self.has
        )
        return (resource_found.link, resource_found.uri) if resource_found is not None else None

    def template(self, uri: str) -> tuple[Link, str] | None:
        """The server of a URI template, and the template there."""
        if (template := self.templates.get(uri)) is not None:
            return template.link, template.uri
        return self.resource(uri)

    def references(self, server: str) -> References | None:
        """Rewrites the addresses in a server's results; None if none of them is renamed."""
        return self._references.get(server)

    @property
    def is_limited(self) -> bool:
        """Whether anything may be hidden from its clients."""
        return self.limits != AudienceLimits()

    def has(self, server: str) -> bool:
        """Whether anything of a server is visible."""
        return self.limits.has(server)

    def _whole_list(self) -> dict[str, Sequence[Mapping[str, Any]]]:
        if not self.shapes_results:
            return {"tools": [self._tool(tool) for tool in self.tools.values()]}
        tools = [self._tool(tool, is_shaped=True) for tool in self.tools.values()]
        return {"tools": [*tools, reading_tool()]}

    def _tool(self, tool: Tool, *, is_shaped: bool = False) -> dict[str, Any]:
        definition = {**tool.definition, "name": tool.name}
        if tool.description != definition.get("description", ""):
            definition["description"] = tool.description
        if is_shaped or tool.raw_name in tool.link.config.select:
            # clients refuse results that do not match it
            definition.pop("outputSchema", None)
        if (references := self.references(tool.server)) and "_meta" in definition:
            definition["_meta"] = references.in_meta(definition["_meta"])
        return _grouped(definition, tool.server, is_always=self._shows_groups)

    def _content(self, method: str) -> dict[str, Sequence[Mapping[str, Any]]]:
        match method:
            case "tools/list":
                if self.searched:  # `call_tool` and scripts read on in cut results, too
                    own = code_tools() if self.mode == "code" else search_tools()
                    # pages call their tools directly, and their hosts know only what is listed
                    of_pages = (tool for tool in self.tools.values() if not tool.is_for_model)
                    return {"tools": [*own, *map(self._tool, of_pages)]}
                return self._whole_list()
            case "prompts/list":
                return {"prompts": self._definitions(self.prompts, "name")}
            case "resources/list":
                return {"resources": self._definitions(self.resources, "uri")}
            case "resources/templates/list":
                return {"resourceTemplates": self._definitions(self.templates, "uriTemplate")}
            case _:
                raise ValueError(method)

    def _definitions(
        self, entries: Mapping[str, Prompt] | Mapping[str, Resource], key: str
    ) -> list[Definition]:
        return [
            _grouped({**entry.definition, key: name}, entry.server, is_always=self._shows_groups)
            for name, entry in entries.items()
        ]


def _grouped(definition: Definition, server: str, *, is_always: bool) -> Definition:
    """A definition with the groups that it belongs to, by their names here."""
    meta = definition.get("_meta")
    if is_always or (is_table(meta) and GROUPS in meta):
        definition["_meta"] = in_groups(server, meta)
    return definition


def in_groups(server: str, meta: object) -> dict[str, Any]:
    """The `_meta` of something that a server has, with its groups by their names here."""
    table: Mapping[str, Any] = meta if is_table(meta) else {}
    own = table.get(GROUPS)
    names = [group_name(server, name) for name in own] if is_list(own) else []
    return {**table, GROUPS: names or [server]}


def group_name(server: str, group: object) -> str:
    """The name of a server's group here, where other servers may have one of the same name."""
    return f"{server}/{group}"


def _with_tasks(definition: Mapping[str, Any], stateless: bool) -> Mapping[str, Any]:  # noqa: FBT001 - one of two eras
    """A tool as clients of an era know tasks."""
    execution = definition.get("execution")
    if not is_table(execution):
        return definition
    rest = {key: value for key, value in definition.items() if key != "execution"}
    support = execution.get("taskSupport")
    if stateless or support not in {"required", "optional"}:
        return rest
    # even a tool that only runs as a task can be called without one: the gateway waits for it
    return {**rest, "execution": {**execution, "taskSupport": "optional"}}


def _read_tokens(definitions: Sequence[Mapping[str, Any]]) -> int:
    """About how many tokens a model reads: names, descriptions and arguments."""
    read = [
        {key: definition.get(key) for key in ("name", "description", "inputSchema")}
        for definition in definitions
    ]
    return round(len(jsonrpc.encode(read)) / BYTES_PER_TOKEN)


def _has_on_request(link: Link) -> bool:
    return isinstance(link.config, LocalServer) and bool(link.config.on_request)


def _is_on_request(tool: Tool) -> bool:
    config = tool.link.config
    return isinstance(config, LocalServer) and tool.raw_name in config.on_request
