"""What servers offer to clients that declare other extensions than we do."""

from collections.abc import Mapping

import anyio

from multitap.catalog.catalog import PAGE_SCHEME, Catalog, pages_of
from multitap.config.documents import is_table
from multitap.errors import MultitapError
from multitap.events import CatalogChanged, LinkState
from multitap.gateway.client import UI
from multitap.gateway.private_links import PrivateLinks, agree_on_logs
from multitap.hub.hub import Hub
from multitap.upstream.link import Link
from multitap.upstream.lists import Offers
from multitap.wire import jsonrpc

PATIENCE = 20.0
"""Seconds that a request waits for such a session; then it uses the shared one."""
_MOST = 64  # sets of extensions whose catalog is cached


class Variants:
    """The catalogs of clients by the extensions that they declare.

    A server learns in its handshake what its client can do, and may offer other tools for it. So
    clients that declare something else have another session with it. As far as that matters: we
    declare the extension for pages ourselves, and a server that has none for a client that shows
    them has no others for one that does not.

    Args:
        hub: Has the servers.
        private: Opens the sessions.
        declared: What the shared sessions declare.
    """

    def __init__(self, hub: Hub, private: PrivateLinks, declared: str) -> None:
        self._hub = hub
        self._private = private
        self._declared = declared
        self._pageless: Catalog | None = None
        """The last catalog in which no server had pages."""
        self._cached: dict[str, tuple[Catalog, tuple[tuple[Link, Offers], ...], Catalog]] = {}

    def catalog(self, declared: str) -> Catalog:
        """The catalog for clients that declare this; that of the hub for most."""
        base = self._hub.catalog
        if self.is_usual(declared):
            return base
        if not (links := self._links(declared)):
            if not declared:
                self._pageless = base
            return base
        # one that is not up (yet) does not take the place of one that is
        usable = {
            name: link for name, link in links.items() if link.offers is not None and link.live
        }
        state = tuple((link, link.offers) for link in usable.values() if link.offers is not None)
        cached = self._cached.get(declared)
        if cached is not None and cached[0] is base and _same(cached[1], state):
            return cached[2]
        if len(self._cached) >= _MOST:
            self._cached.clear()
        varied = self._hub.vary(usable) if usable else base
        self._cached[declared] = (base, state, varied)
        return varied

    def is_usual(self, declared: str) -> bool:
        """Whether clients that declare this see the hub's catalog as long as it is the same."""
        return declared == self._declared or (not declared and self._hub.catalog is self._pageless)

    async def wait_ready(self, declared: str) -> None:
        """Wait until the sessions for clients that declare this are up, or cannot be."""
        if declared == self._declared:
            return
        with anyio.move_on_after(PATIENCE):
            for link in self._links(declared).values():
                await link.availability.first_settled.wait()
        await self.agree_on_logs(declared)

    async def agree_on_logs(self, declared: str) -> None:
        """Set the log levels of the shared sessions in those of such clients, too."""
        if declared == self._declared:
            return
        for name, link in self._links(declared).items():
            await agree_on_logs(self._hub.links[name], link)

    def _links(self, declared: str) -> Mapping[str, Link]:
        """The sessions that such clients have in place of shared ones."""
        others = has_others(declared)
        links: dict[str, Link] = {}
        for name, shared in self._hub.links.items():
            if shared.config.transport == "local" or shared.state is LinkState.DISABLED:
                continue
            offers = shared.offers
            if offers is None or not (others or has_pages(offers)):
                continue
            try:
                links[name] = self._private.declaring(shared, declared, self._on_change)
            except MultitapError:
                continue  # there are too many: the shared one has to do
        return links

    def _on_change(self, link: Link) -> None:
        if link.state is LinkState.CONNECTED:
            # clients compare what they were shown with what there is now
            self._hub.events.publish(CatalogChanged(self._hub.catalog.revision))


def has_others(declared: str) -> bool:
    """Whether a client declares anything but the extension for pages."""
    if not declared:
        return False
    table: dict[str, dict[str, object]] = jsonrpc.decode(declared.encode())
    return table.keys() != {"extensions"} or table["extensions"].keys() != {UI}


def has_pages(offers: Offers) -> bool:
    """Whether a server offers pages to clients that show them."""
    extensions = offers.capabilities.get("extensions")
    if is_table(extensions) and UI in extensions:
        return True
    if any(str(resource.get("uri")).startswith(PAGE_SCHEME) for resource in offers.resources):
        return True
    return bool(pages_of(offers.tools))


def _same(before: tuple[tuple[Link, Offers], ...], now: tuple[tuple[Link, Offers], ...]) -> bool:
    return len(before) == len(now) and all(
        link is other_link and offers is other_offers
        for (link, offers), (other_link, other_offers) in zip(before, now, strict=True)
    )
