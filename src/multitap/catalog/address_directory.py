"""Maps resource addresses to servers, and to the addresses that callers use."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from multitap.catalog.resource_addresses import rename, split
from multitap.later import Later
from multitap.records import dataclass

if TYPE_CHECKING:
    from mcp.shared import uri_template
else:
    uri_template = Later("mcp.shared.uri_template")

Pair = tuple[str, str]


@dataclass(frozen=True)
class AddressDirectory:
    """The known addresses of all configured servers at one moment, up or not.

    An address belongs to the server that listed it, otherwise to the one with a template for it.
    It does not matter which servers are up: none answers for another.
    """

    servers: Collection[str] = frozenset()
    """The configured servers."""
    resources: Mapping[str, Pair] = field(default_factory=dict[str, Pair])
    """The server and its own address, by the address that callers use."""
    templates: Mapping[str, Pair] = field(default_factory=dict[str, Pair])

    def find(self, address: str) -> Pair | None:
        """The server that has an address, and its own address for it."""
        if (listed := self.resources.get(address)) is not None:
            return listed
        renamed = split(address)
        if renamed is not None and renamed[0] in self.servers:
            return renamed
        for template, (server, raw) in self.templates.items():
            if template == raw and fits(template, address):
                return server, address
        return None

    def guess(self, address: str, has: Callable[[str], bool]) -> Pair | None:
        """The server that may have an unlisted address: the only one with similar addresses."""
        scheme = _scheme(address)
        pairs = [pair for pair in self._all() if has(pair[0])]
        near = {server for server, raw in pairs if _scheme(raw) == scheme}
        servers = near or {server for server, _ in pairs}
        return (servers.pop(), address) if len(servers) == 1 else None

    def expose(self, server: str, uri: str) -> str:
        """The address that callers use for a server's own address."""
        found = self.find(uri)
        if found == (server, uri):
            return uri
        if found is not None or (server, uri) in self._renamed:
            return rename(server, uri)
        is_made = any(fits(raw, uri) for owner, raw in self._renamed if owner == server)
        return rename(server, uri) if is_made else uri

    @cached_property
    def renaming(self) -> frozenset[str]:
        """The servers with an address that callers know under another one."""
        return frozenset(server for server, _ in self._renamed)

    @cached_property
    def _renamed(self) -> frozenset[Pair]:
        both = (*self.resources.items(), *self.templates.items())
        return frozenset(pair for address, pair in both if address != pair[1])

    def _all(self) -> Iterable[Pair]:
        yield from self.resources.values()
        yield from self.templates.values()


def fits(template: str, uri: str) -> bool:
    """Whether a template matches an address."""
    parsed = _parse(template)
    return parsed is not None and parsed.match(uri) is not None


@lru_cache(maxsize=1024)
def _parse(template: str) -> "uri_template.UriTemplate | None":
    try:
        return uri_template.UriTemplate.parse(template)
    except uri_template.InvalidUriTemplate:
        return None


def _scheme(uri: str) -> str:
    return uri.partition(":")[0]
