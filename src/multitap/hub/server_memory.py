"""What is remembered about each server between runs."""

import time

from multitap.config import ServerConfig
from multitap.events import LinkState
from multitap.store import CatalogKey, Store, StoredCatalog, fingerprint
from multitap.upstream.link import Link, RememberedServer
from multitap.upstream.offer_lists import Offers
from multitap.upstream.server_habits import ServerHabits
from multitap.upstream.session import Era


class ServerMemory:
    """Owns the knowledge about servers from earlier runs, and stores that of this one.

    Args:
        store: Keeps it.
        recall: Whether a server's last known offers are listed while it starts.
    """

    def __init__(self, store: Store, *, recall: bool) -> None:
        self._store = store
        self._recall = recall
        self._catalogs = store.servers.load_catalogs()
        self._outcomes = store.servers.load_outcomes()
        self._asking = store.servers.load_asking()
        self._habits: dict[CatalogKey, ServerHabits] = {}

    def recall(self, name: str, config: ServerConfig) -> RememberedServer:
        """The stored knowledge for a new link to a server."""
        key = (name, fingerprint(config))
        stored, habits = self._catalogs.get(key), self._habits_of(key)
        if stored is None:
            return RememberedServer(was_up=self._outcomes.get(key), habits=habits)
        listed = self._recall or config.start == "lazy"
        return RememberedServer(
            Era(stored.era),
            _offers(stored) if listed else None,
            was_up=self._outcomes.get(key, True),  # or it would not be stored
            habits=habits,
        )

    def last_offers(self, name: str, config: ServerConfig) -> Offers | None:
        """The last offers of a server, even with another configuration."""
        stored = self._catalogs.get((name, fingerprint(config)))
        if stored is None:
            older = [one for (server, _), one in self._catalogs.items() if server == name]
            stored = max(older, key=lambda one: one.saved_at, default=None)
        return _offers(stored) if stored is not None else None

    def note(self, link: Link) -> None:
        """Store what the next run can use of a link's current state."""
        if link.config.transport == "local":
            return
        if link.state is LinkState.CONNECTED and link.offers is not None:
            self._note_offers(link, link.offers)
        self._note_outcome(link)

    def _habits_of(self, key: CatalogKey) -> ServerHabits:
        if (habits := self._habits.get(key)) is None:
            habits = self._habits[key] = ServerHabits(
                asks=key in self._asking, on_learned=lambda: self._store.servers.save_asking(*key)
            )
        return habits

    def _note_offers(self, link: Link, offers: Offers) -> None:
        session = link.session
        if session is None:
            return
        key = (link.name, fingerprint(link.config))
        before = self._catalogs.get(key)
        # a configured era does not show which one the server prefers
        era = before.era if before and link.config.era != "auto" else session.era.value
        self._store.servers.save_catalog(
            *key,
            StoredCatalog(
                era=era,
                protocol_version=session.protocol_version,
                tools=list(offers.tools),
                resources=list(offers.resources),
                templates=list(offers.templates),
                prompts=list(offers.prompts),
                instructions=session.instructions,
                saved_at=time.time(),
            ),
        )

    def _note_outcome(self, link: Link) -> None:
        if link.was_up is None:
            return
        key = (link.name, fingerprint(link.config))
        if self._outcomes.get(key) is not link.was_up:
            self._outcomes[key] = link.was_up
            self._store.servers.save_outcome(*key, is_up=link.was_up)


def _offers(stored: StoredCatalog) -> Offers:
    return Offers(
        tools=tuple(stored.tools),
        resources=tuple(stored.resources),
        templates=tuple(stored.templates),
        prompts=tuple(stored.prompts),
    )
