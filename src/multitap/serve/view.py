"""What the clients of one profile see of the catalog, encoded once."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from multitap.catalog import Catalog, Prompt, Resource, Tool, allowed
from multitap.config import LocalServer, Profile
from multitap.later import Later
from multitap.upstream.link import Link
from multitap.upstream.listing import Definition
from multitap.wire import envelope, vocabulary

if TYPE_CHECKING:
    from mcp.shared import uri_template
else:
    uri_template = Later("mcp.shared.uri_template")

SCHEME = "multitap"
"""Of the addresses that resources get where two servers use the same."""

_FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_MARK = vocabulary.ARGUMENT_HEADER_KEY.encode()


class View:
    """One profile's part of one catalog; made anew when either changes.

    Args:
        catalog: What there is.
        profile: What of it is shown; None: everything.
    """

    def __init__(self, catalog: Catalog, profile: Profile | None = None) -> None:
        self.catalog = catalog
        self.profile = profile
        self.tools: Mapping[str, Tool] = {
            name: tool for name, tool in catalog.tools.items() if self.shows(tool)
        }
        self.prompts: Mapping[str, Prompt] = catalog.prompts
        resources, templates = catalog.resources, catalog.templates
        if profile is not None:
            self.prompts = {
                name: prompt for name, prompt in catalog.prompts.items() if self.has(prompt.server)
            }
            resources = tuple(one for one in resources if self.has(one.server))
            templates = tuple(one for one in templates if self.has(one.server))
        self.resources = _addressed(resources)
        self.templates = _addressed(templates)
        self._encoded: dict[tuple[str, bool], bytes] = {}
        self._marked: frozenset[str] | None = None

    def shows(self, tool: Tool) -> bool:
        """Whether a tool, up or down, may be seen and called."""
        profile = self.profile
        if _is_on_request(tool) and not (profile and profile.environment):
            return False
        return profile is None or (self.has(tool.server) and allowed(tool.name, profile))

    def listed(self, method: str, *, modern: bool) -> bytes | None:
        """The result of a list request; None where it is none of ours."""
        key = (method, modern)
        if (encoded := self._encoded.get(key)) is None:
            if (content := self._content(method)) is None:
                return None
            extra = _FRESH if modern else {}
            encoded = self._encoded[key] = envelope.encode({**extra, **content})
        return encoded

    def differences(self, earlier: "View") -> frozenset[str]:
        """Which kinds of things are not what they were: `tools`, `prompts`, `resources`."""
        kinds = {
            "tools": ("tools/list",),
            "prompts": ("prompts/list",),
            "resources": ("resources/list", "resources/templates/list"),
        }
        return frozenset(
            kind
            for kind, methods in kinds.items()
            if any(
                self.listed(method, modern=False) != earlier.listed(method, modern=False)
                for method in methods
            )
        )

    def wants_headers(self, name: str) -> bool:
        """Whether arguments of a tool travel as headers too."""
        if self._marked is None:
            whole = self.listed("tools/list", modern=True) or b""
            self._marked = frozenset(
                name
                for name, tool in self.tools.items()
                if _MARK in whole and _MARK in envelope.encode(tool.input_schema)
            )
        return name in self._marked

    def resource(self, uri: str) -> tuple[Link, str] | None:
        """Which server has `uri`, and what it calls it itself."""
        if (listed := self.resources.get(uri)) is not None:
            return listed.link, listed.uri
        server, raw = _split(uri)
        if server is not None:
            owners = {one.server: one.link for one in self._everything()}
            return (owners[server], raw) if server in owners else None
        for template in self.templates.values():
            if _fits(template.uri, uri):
                return template.link, uri
        return self._likely(uri)

    def template(self, uri: str) -> tuple[Link, str] | None:
        """Which server has the template `uri`, and what it calls it itself."""
        if (template := self.templates.get(uri)) is not None:
            return template.link, template.uri
        return self.resource(uri)

    def address(self, server: str, uri: str) -> str:
        """What clients call a resource of a server."""
        if (listed := self.resources.get(uri)) is not None and listed.server != server:
            return address(server, uri)
        return uri

    def _likely(self, uri: str) -> tuple[Link, str] | None:
        """Who may have a resource that is on no list: tools hand out such addresses."""
        scheme = uri.partition(":")[0]
        near = {one.link for one in self._everything() if one.uri.partition(":")[0] == scheme}
        links = near or {one.link for one in self._everything()}
        return (links.pop(), uri) if len(links) == 1 else None

    def _everything(self) -> Iterable[Resource]:
        yield from self.resources.values()
        yield from self.templates.values()

    def has(self, server: str) -> bool:
        """Whether a server belongs to the profile."""
        globs = self.profile.servers if self.profile else ("*",)
        return any(fnmatchcase(server, glob) for glob in globs)

    def _content(self, method: str) -> dict[str, list[Definition]] | None:
        match method:
            case "tools/list":
                return {"tools": [_tool(tool) for tool in self.tools.values()]}
            case "prompts/list":
                named = self.prompts.items()
                return {"prompts": [{**prompt.definition, "name": name} for name, prompt in named]}
            case "resources/list":
                return {"resources": _shown(self.resources, "uri")}
            case "resources/templates/list":
                return {"resourceTemplates": _shown(self.templates, "uriTemplate")}
            case _:
                return None


def address(server: str, uri: str) -> str:
    """What a resource is called where another server uses its address too."""
    return f"{SCHEME}://{server}/{uri}"


def _split(uri: str) -> tuple[str | None, str]:
    if not uri.startswith(f"{SCHEME}://"):
        return None, uri
    server, _, raw = uri.removeprefix(f"{SCHEME}://").partition("/")
    return server, raw


def _addressed(resources: Iterable[Resource]) -> dict[str, Resource]:
    """Resources by what clients call them: the first keeps an address that several use."""
    named: dict[str, Resource] = {}
    for one in resources:
        known = named.setdefault(one.uri, one)
        if known is not one and known.server != one.server:
            named[address(one.server, one.uri)] = one
    return named


def _shown(resources: Mapping[str, Resource], key: str) -> list[Definition]:
    return [{**one.definition, key: uri} for uri, one in resources.items()]


def _tool(tool: Tool) -> dict[str, Any]:
    shown = {**tool.definition, "name": tool.name}
    if tool.description != shown.get("description", ""):
        shown["description"] = tool.description
    return shown


def _is_on_request(tool: Tool) -> bool:
    config = tool.link.config
    return isinstance(config, LocalServer) and tool.raw_name in config.on_request


def _fits(template: str, uri: str) -> bool:
    try:
        return uri_template.UriTemplate.parse(template).match(uri) is not None
    except uri_template.InvalidUriTemplate:
        return False
