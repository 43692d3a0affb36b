"""Builds the catalog from what the servers offer, with stable names."""

import logging
import time
from collections.abc import Mapping

from msgspec.structs import replace

from multitap.catalog import catalog
from multitap.catalog.catalog import Catalog, CatalogSection
from multitap.catalog.naming import Choices, NameRegistries, Pair
from multitap.catalog.vetting import Vetting
from multitap.config.models import ServerConfig, Settings
from multitap.events import LinkState, ToolsChanged
from multitap.names import is_name_of
from multitap.store import CatalogKey, Store, StoredCatalog, fingerprint
from multitap.trust.pins import pin_mode
from multitap.trust.policy import Policy
from multitap.upstream.handshake import Era
from multitap.upstream.link import Link, RememberedServer
from multitap.upstream.lists import Offers
from multitap.upstream.requests import ServerHabits

logger = logging.getLogger(__name__)


class CatalogBuilder:
    """Owns the assigned names, and each server's part of the catalog."""

    def __init__(
        self, settings: Settings, store: Store, memory: "ServerMemory", vetting: Vetting
    ) -> None:
        self.registries = NameRegistries((), settings.naming, {}, lasting=False)
        self.sections: dict[Link, CatalogSection] = {}
        """What each server offers; replaced, never changed."""
        self._settings = settings
        self.policy = Policy(settings)
        """The policy of the current settings."""
        self._store = store
        self._memory = memory
        self.vetting = vetting
        """Says which tools may be shown."""
        self._warned: dict[str, tuple[str, ...]] = {}
        """The last warnings about each server's pins."""

    def apply(self, settings: Settings, links: Mapping[str, Link]) -> None:
        """Assign names for the configured servers; assigned ones stay."""
        self._settings = settings
        self.vetting.pins.naming = settings.naming
        policy, self.policy = self.policy, Policy(settings)
        # a section contains the policy's decisions about its tools
        if not self.policy.is_same(policy):
            self.sections = {}
        registries, naming = self.registries, settings.naming
        if registries.servers == frozenset(settings.servers) and registries.naming is naming:
            return
        # names in use win over stored ones: they must not change while we run
        in_use = {kind: registry.choices for kind, registry in registries.by_kind.items()}
        if registries.naming is not naming:
            self.sections = {}
        self._assign_names(in_use, links)

    def reread_choices(self, links: Mapping[str, Link]) -> None:
        """Adopt the names that another process assigned first."""
        self.sections = {}
        self._assign_names({}, links)

    def vet_again(self, server: str | None = None) -> None:
        """Vet the tools of one server, or of all, again: pins or findings have changed."""
        self.sections = {
            link: section
            for link, section in self.sections.items()
            if server not in {None, link.name}
        }

    def build(self, links: Mapping[str, Link], last: Catalog) -> Catalog:
        """The catalog that follows `last`; its revision is higher if callers see a difference.

        Only changed servers are processed.
        """
        stale, sections = self.sections, dict[Link, CatalogSection]()
        for link in links.values():
            if (offers := link.offers) is None:
                continue
            section = stale.get(link)
            # offers are frozen, so identity says whether anything changed
            if section is None or section.offers is not offers:
                section = catalog.build_section(
                    link, offers, self.registries, self.vetting, self.policy, last=section
                )
                self._warn(link, section)
            sections[link] = section
        self.sections = sections
        # Only names that resolved a conflict are stored: the rest follow from the settings.
        if choices := self.registries.take_unsaved():
            self._store.servers.save_choices(choices, self.registries.servers)
        fresh = catalog.build(sections.items(), last.revision + 1, self.registries, links)
        if not _same(fresh, last):
            return fresh
        # the lists are the same, but a link was replaced: routes must lead to the new one, and
        # clients need not list again
        if (fresh.directory, fresh.links) != (last.directory, last.links):
            return replace(fresh, revision=last.revision)
        return last

    def vary(self, links: Mapping[str, Link], last: Catalog) -> Catalog:
        """The catalog of other sessions with the same servers, which may offer other things."""
        sections = {
            link: catalog.build_section(link, offers, self.registries, self.vetting, self.policy)
            if (section := self.sections.get(link)) is None
            else section
            for link in links.values()
            if (offers := link.offers) is not None
        }
        return catalog.build(sections.items(), last.revision, self.registries, links)

    def _assign_names(self, in_use: Mapping[str, Choices], links: Mapping[str, Link]) -> None:
        """Assign names for all known offers: current ones first, then remembered, then stored."""
        stored = self._store.servers.load_choices()
        stored = {
            **stored,
            (kind := f"tools {self._settings.naming}"): self._locked_names(stored, kind),
        }
        choices = {
            kind: {**(mine := in_use.get(kind, {})), **_without(stored.get(kind, {}), mine)}
            for kind in in_use.keys() | stored.keys()
        }
        servers, naming = self._settings.servers, self._settings.naming
        self.registries = NameRegistries(
            servers, naming, choices, lasting=self._store.path is not None
        )
        # also for servers that are down: a newcomer must not take their names meanwhile
        for name, config in servers.items():
            if (offers := self._last_offers(name, config, links)) is not None:
                catalog.reserve(name, config, offers, self.registries)

    def _locked_names(self, stored: Mapping[str, Choices], kind: str) -> dict[Pair, str]:
        """The names in the locks, which outlive the store, and then those in the store.

        A lock may still have the name that a tool had before its user chose another.
        """
        servers, naming = self._settings.servers, self._settings.naming
        locked: dict[Pair, str] = {}
        for (server, raw), name in self.vetting.pins.exposed_names(servers).items():
            word = servers[server].tool_names.get(raw, raw)
            if is_name_of(name, naming, server, word):
                locked[server, word] = name
        return {**locked, **_without(stored.get(kind, {}), locked)}

    def _warn(self, link: Link, section: CatalogSection) -> None:
        """Warn once about problems with a server's tools."""
        warnings, drift = section.vetted.warnings, section.vetted.drift
        if warnings == self._warned.get(link.name, ()):
            return
        self._warned[link.name] = warnings
        for text in warnings:
            logger.warning("%s: %s", link.name, link.report.redact(text))
        if drift:
            is_withheld = pin_mode(link.config) == "enforce"
            link.report.tell(
                ToolsChanged(link.name, drift.changed, drift.new, is_withheld, warnings[0])
            )

    def _last_offers(
        self, name: str, config: ServerConfig, links: Mapping[str, Link]
    ) -> Offers | None:
        if (link := links.get(name)) is not None and link.offers is not None:
            return link.offers
        return self._memory.last_offers(name, config)


def _without(choices: Choices, others: Choices) -> Choices:
    return {pair: name for pair, name in choices.items() if pair not in others}


def _same(fresh: Catalog, last: Catalog) -> bool:
    return (
        fresh.tools.items() == last.tools.items()
        and fresh.prompts.items() == last.prompts.items()
        and fresh.resources == last.resources
        and fresh.templates == last.templates
        and fresh.absent.keys() == last.absent.keys()
        and fresh.hidden == last.hidden
        and fresh.withheld.keys() == last.withheld.keys()
        and fresh.mute == last.mute
    )


class ServerMemory:
    """Owns the knowledge about servers from earlier runs, and stores that of this one.

    With `recall`, a server's last known offers are listed while it starts.
    """

    def __init__(self, store: Store, *, recall: bool) -> None:
        self._store = store
        self._recall = recall
        self._catalogs: dict[CatalogKey, StoredCatalog | None] = {}
        self._outcomes = store.servers.load_outcomes()
        self._asking = store.servers.load_asking()
        self._habits: dict[CatalogKey, ServerHabits] = {}

    def recall(self, name: str, config: ServerConfig) -> RememberedServer:
        """The stored knowledge for a new link to a server."""
        key = (name, fingerprint(config))
        stored, habits = self._catalog(key), self._habits_of(key)
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
        stored = self._catalog((name, fingerprint(config)))
        stored = stored or self._store.servers.load_catalog(name)
        return _offers(stored) if stored is not None else None

    def note(self, link: Link) -> None:
        """Store what the next run can use of a link's current state."""
        if link.config.transport == "local":
            return
        if link.state is LinkState.CONNECTED and link.offers is not None:
            self._note_offers(link, link.offers)
        self._note_outcome(link)

    def _catalog(self, key: CatalogKey) -> StoredCatalog | None:
        # decoded when it is needed: the store also knows servers that are no longer configured
        if key not in self._catalogs:
            self._catalogs[key] = self._store.servers.load_catalog(*key)
        return self._catalogs[key]

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
        before = self._catalog(key)
        # a configured era does not show which one the server prefers
        era = before.era if before and link.config.era != "auto" else session.era.value
        # replaces the one of an earlier run, whose definitions would stay in memory
        self._catalogs[key] = stored = StoredCatalog(
            era=era,
            protocol_version=session.protocol_version,
            tools=list(offers.tools),
            resources=list(offers.resources),
            templates=list(offers.templates),
            prompts=list(offers.prompts),
            capabilities=dict(offers.capabilities),
            instructions=session.instructions,
            saved_at=time.time(),
        )
        self._store.servers.save_catalog(*key, stored)

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
        capabilities=stored.capabilities,
    )
