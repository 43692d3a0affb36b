"""Builds the catalog from what the servers offer, with stable names."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from multitap.catalog import catalog
from multitap.catalog.catalog import Catalog, CatalogSection
from multitap.catalog.name_registries import Choices, NameRegistries, Pair
from multitap.catalog.vetting import Vetting
from multitap.config import ServerConfig, Settings
from multitap.events import ToolsChanged
from multitap.hub.server_memory import ServerMemory
from multitap.names import is_name_of
from multitap.store import Store
from multitap.trust.pins.pins import pin_mode
from multitap.trust.policy.policy import Policy
from multitap.upstream.link import Link
from multitap.upstream.offer_lists import Offers

logger = logging.getLogger(__name__)


class CatalogBuilder:
    """Owns the assigned names, and each server's part of the catalog.

    Args:
        settings: The servers, and how names are made.
        store: Keeps names from one run to the next.
        memory: Knows the last offers of servers that are not up.
        vetting: Says which tools may be shown.
        on_stocked: Called when a server offers something new.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        memory: ServerMemory,
        vetting: Vetting,
        on_stocked: Callable[[], None] = lambda: None,
    ) -> None:
        self.registries = NameRegistries((), settings.naming, {}, lasting=False)
        self.shelves: dict[Link, CatalogSection] = {}
        self._settings = settings
        self.policy = Policy(settings)
        """The policy of the current settings."""
        self._store = store
        self._memory = memory
        self._vetting = vetting
        self._on_stocked = on_stocked
        self._told: dict[str, tuple[str, ...]] = {}
        """The last message about each server's pins."""

    def apply(self, settings: Settings, links: Mapping[str, Link]) -> None:
        """Assign names for the configured servers; assigned ones stay."""
        self._settings = settings
        self._vetting.pins.naming = settings.naming
        policy, self.policy = self.policy, Policy(settings)
        # a shelf contains the policy's decisions about its tools
        if not self.policy.is_same(policy):
            self.shelves = {}
        registries, naming = self.registries, settings.naming
        if registries.servers == frozenset(settings.servers) and registries.naming is naming:
            return
        # names in use win over stored ones: they must not change while we run
        given = {kind: registry.choices for kind, registry in registries.by_kind.items()}
        if registries.naming is not naming:
            self.shelves = {}
        self._fill_books(given, links)

    def reread_choices(self, links: Mapping[str, Link]) -> None:
        """Adopt the names that another process assigned first."""
        self.shelves = {}
        self._fill_books({}, links)

    def vet_again(self, server: str | None = None) -> None:
        """Vet the tools of one server, or of all, again: pins or findings have changed."""
        self.shelves = {
            link: shelf for link, shelf in self.shelves.items() if server not in {None, link.name}
        }

    def build(self, links: Mapping[str, Link], last: Catalog) -> Catalog:
        """The catalog that follows `last`; its revision is higher if callers see a difference.

        Only changed servers are processed.
        """
        stale, shelves = self.shelves, dict[Link, CatalogSection]()
        is_stocked = False
        for link in links.values():
            if (offers := link.offers) is None:
                continue
            shelf = stale.get(link)
            # offers are frozen, so identity says whether anything changed
            if shelf is None or shelf.offers is not offers:
                shelf = catalog.stock(link, offers, self.registries, self._vetting, self.policy)
                self._tell(link, shelf)
                is_stocked = True
            shelves[link] = shelf
        self.shelves = shelves
        if is_stocked:
            self._on_stocked()
        # Only names that resolved a conflict are stored: the rest follow from the settings.
        if chosen := self.registries.take_unsaved():
            self._store.servers.save_choices(chosen, self.registries.servers)
        fresh = catalog.build(shelves.items(), last.revision + 1, self.registries, links)
        if not _same(fresh, last):
            return fresh
        # the lists are the same, but a link was replaced: routes must lead to the new one, and
        # clients need not list again
        if (fresh.directory, fresh.links) != (last.directory, last.links):
            return replace(fresh, revision=last.revision)
        return last

    def _fill_books(self, given: Mapping[str, Choices], links: Mapping[str, Link]) -> None:
        """Assign names for all known offers: current ones first, then remembered, then stored."""
        stored = self._store.servers.load_choices()
        stored = {
            **stored,
            (kind := f"tools {self._settings.naming}"): self._locked_names(stored, kind),
        }
        choices = {
            kind: {**(mine := given.get(kind, {})), **_without(stored.get(kind, {}), mine)}
            for kind in given.keys() | stored.keys()
        }
        servers, naming = self._settings.servers, self._settings.naming
        self.registries = NameRegistries(
            servers, naming, choices, lasting=self._store.path is not None
        )
        # also for servers that are down: a newcomer must not take their names meanwhile
        for name, config in servers.items():
            if (offers := self._last_known(name, config, links)) is not None:
                catalog.reserve(name, config, offers, self.registries)

    def _locked_names(self, stored: Mapping[str, Choices], kind: str) -> dict[Pair, str]:
        """The names in the locks, which outlive the store, and then those in the store.

        A lock may still have the name that a tool had before its user chose another.
        """
        servers, naming = self._settings.servers, self._settings.naming
        locked: dict[Pair, str] = {}
        for (server, raw), name in self._vetting.pins.exposed_names(servers).items():
            word = servers[server].tool_names.get(raw, raw)
            if is_name_of(name, naming, server, word):
                locked[server, word] = name
        return {**locked, **_without(stored.get(kind, {}), locked)}

    def _tell(self, link: Link, shelf: CatalogSection) -> None:
        """Warn once about problems with a server's tools."""
        words, drift = shelf.vetted.warnings, shelf.vetted.drift
        if words == self._told.get(link.name, ()):
            return
        self._told[link.name] = words
        for text in words:
            logger.warning("%s: %s", link.name, link.report.redact(text))
        if drift:
            is_withheld = pin_mode(link.config) == "enforce"
            link.report.tell(
                ToolsChanged(link.name, drift.changed, drift.new, is_withheld, words[0])
            )

    def _last_known(
        self, name: str, config: ServerConfig, links: Mapping[str, Link]
    ) -> Offers | None:
        if (link := links.get(name)) is not None and link.offers is not None:
            return link.offers
        return self._memory.last_offers(name, config)


def _without(choices: Choices, others: Choices) -> Choices:
    return {pair: name for pair, name in choices.items() if pair not in others}


def _same(one: Catalog, other: Catalog) -> bool:
    return (
        one.tools.items() == other.tools.items()
        and one.prompts.items() == other.prompts.items()
        and one.resources == other.resources
        and one.templates == other.templates
        and one.absent.keys() == other.absent.keys()
        and one.hidden == other.hidden
        and one.withheld.keys() == other.withheld.keys()
        and one.mute == other.mute
    )
