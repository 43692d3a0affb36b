"""What the clients of one audience see of the catalog, encoded once."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from multitap.catalog.audience import AudienceLimits
from multitap.catalog.catalog import Catalog, Prompt, Resource, Tool
from multitap.config import LocalServer, Profile
from multitap.config.models import Serve
from multitap.gateway.references import References
from multitap.hub.router import CallDefaults, Route, route_to
from multitap.later import Later
from multitap.upstream.link import Link
from multitap.upstream.offer_lists import Definition
from multitap.wire.jsonrpc import envelope, vocabulary

if TYPE_CHECKING:
    from multitap.tools.providers import token_cost
    from multitap.tools.search import tool_finder
else:
    # only search mode needs it
    token_cost = Later("multitap.tools.providers.token_cost")
    tool_finder = Later("multitap.tools.search.tool_finder")

_FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_MARK = vocabulary.ARGUMENT_HEADER_KEY.encode()


class View:
    """One audience's part of one catalog; rebuilt when either changes.

    Args:
        catalog: The current catalog.
        limits: What the audience may see.
        profiles: The profiles that the limits come from.
        defaults: Settings for calls that the server's configuration does not override.
        serve: How tools are listed, unless the profile says otherwise.
    """

    def __init__(
        self,
        catalog: Catalog,
        limits: AudienceLimits,
        profiles: Mapping[str, Profile],
        defaults: CallDefaults = CallDefaults(),
        serve: Serve = Serve(),
    ) -> None:
        self.catalog = catalog
        self.limits = limits
        self.profiles = profiles
        self.defaults = defaults
        self.routes: dict[str, Route] = {}
        """The routes of tools that have been called."""
        self.tools: Mapping[str, Tool] = {
            name: tool for name, tool in catalog.tools.items() if self.shows(tool)
        }
        self.prompts: Mapping[str, Prompt] = catalog.prompts
        resources, templates = catalog.resources, catalog.templates
        if limits.profiles:
            self.prompts = {
                name: prompt for name, prompt in catalog.prompts.items() if self.has(prompt.server)
            }
            resources = tuple(one for one in resources if self.has(one.server))
            templates = tuple(one for one in templates if self.has(one.server))
        self.resources = {one.address: one for one in resources}
        self.templates = {one.address: one for one in templates}
        directory = catalog.directory
        self.renaming = directory.renaming
        """Servers with renamed addresses, whose results have to be rewritten."""
        self._references = {name: References(name, directory) for name in directory.renaming}
        told = [one.tools for one in limits.profiles if one.tools is not None]
        budgets = [one.token_budget for one in limits.profiles if one.token_budget is not None]
        self._listing = told[0] if told else serve.tools
        self._budget = min(budgets, default=serve.token_budget)
        self._encoded: dict[tuple[str, bool], bytes] = {}
        self._marked: frozenset[str] | None = None

    def shows(self, tool: Tool) -> bool:
        """Whether a tool may be listed and called, whether or not its server is up."""
        if _is_on_request(tool) and not self.limits.shows_environment:
            return False
        return self.limits.shows(tool.names)

    @cached_property
    def searched(self) -> bool:
        """Whether clients see the three search tools instead of all tools."""
        if self._listing == "auto":
            return token_cost.estimate(self._all_tools()) > self._budget
        return self._listing == "search"

    @property
    def answers_searches(self) -> bool:
        """Whether the three search tools can be called.

        With "auto" always, whatever is listed now: servers come and go, and a client may still
        have the other list.
        """
        return self._listing != "all"

    def route(self, tool: Tool) -> Route:
        """The route to a tool of the catalog."""
        route = self.routes.get(tool.name)
        if route is None:
            route = route_to(tool, self.defaults)
            if tool.name in self.tools:  # the others are not for every client of the view
                self.routes[tool.name] = route
        return route

    def list_result(self, method: str, *, modern: bool) -> bytes | None:
        """The result of a list request; None if it is not one of ours."""
        key = (method, modern)
        if (encoded := self._encoded.get(key)) is None:
            if (content := self._content(method)) is None:
                return None
            extra = _FRESH if modern else {}
            # once for each view: some clients list before every call
            encoded = self._encoded[key] = envelope.encode({**extra, **content})
        return encoded

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
                self.list_result(method, modern=False) != earlier.list_result(method, modern=False)
                for method in methods
            )
        )

    def wants_headers(self, name: str) -> bool:
        """Whether arguments of a tool are also sent as headers."""
        if self._marked is None:
            # the whole list first: hardly any server uses it
            whole = self.list_result("tools/list", modern=True) or b""
            self._marked = frozenset(
                name
                for name, tool in self.tools.items()
                if _MARK in whole and _MARK in envelope.encode(tool.input_schema)
            )
        return name in self._marked

    def resource(self, uri: str) -> tuple[Link, str] | None:
        """The server of a URI, whether or not it is up, and the URI there.

        Raises:
            NotAllowed: It is withheld.
        """
        catalog = self.catalog
        found = catalog.find_resource(uri, has=self.has) or catalog.guess_resource(uri, self.has)
        return (found.link, found.uri) if found is not None else None

    def template(self, uri: str) -> tuple[Link, str] | None:
        """The server of a URI template, and the template there."""
        if (template := self.templates.get(uri)) is not None:
            return template.link, template.uri
        return self.resource(uri)

    def references(self, server: str) -> References | None:
        """Rewrites the addresses in a server's results; None if none of them is renamed."""
        return self._references.get(server)

    def has(self, server: str) -> bool:
        """Whether anything of a server is visible."""
        return self.limits.has(server)

    def _all_tools(self) -> list[Definition]:
        return [self._tool(tool) for tool in self.tools.values()]

    def _tool(self, tool: Tool) -> dict[str, Any]:
        shown = {**tool.definition, "name": tool.name}
        if tool.description != shown.get("description", ""):
            shown["description"] = tool.description
        if (references := self.references(tool.server)) and "_meta" in shown:
            shown["_meta"] = references.in_meta(shown["_meta"])
        return shown

    def _content(self, method: str) -> dict[str, list[Definition]] | None:
        match method:
            case "tools/list":
                return {"tools": _search_tools() if self.searched else self._all_tools()}
            case "prompts/list":
                named = self.prompts.items()
                return {"prompts": [{**prompt.definition, "name": name} for name, prompt in named]}
            case "resources/list":
                return {"resources": _definitions(self.resources, "uri")}
            case "resources/templates/list":
                return {"resourceTemplates": _definitions(self.templates, "uriTemplate")}
            case _:
                return None


def _definitions(resources: Mapping[str, Resource], key: str) -> list[Definition]:
    return [{**one.definition, key: uri} for uri, one in resources.items()]


def _search_tools() -> list[Definition]:
    """The definitions of the three search tools."""
    return [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
        for tool in tool_finder.DEFINITIONS.values()
    ]


def _is_on_request(tool: Tool) -> bool:
    config = tool.link.config
    return isinstance(config, LocalServer) and tool.raw_name in config.on_request
