"""What the store remembers about servers between runs."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec

from multitap.errors import quoted
from multitap.store import stored_catalogs
from multitap.store.archive import Archive
from multitap.store.asking_servers import Asking
from multitap.store.chosen_names import Choices, Pair
from multitap.store.start_outcomes import Outcomes
from multitap.store.stored_catalogs import CatalogKey, StoredCatalog
from multitap.store.troubles import Troubles


class Writer(Protocol):
    """Writes in the store's thread; False if it has to be tried again."""

    def __call__(
        self, kind: str, write: Callable[[Any], None], what: Any, /
    ) -> Awaitable[bool]: ...


class ServerNotes:
    """Catalogs, outcomes of starts, habits and chosen names.

    Saving never waits: everything is written within a second.

    Args:
        archive: Stores them.
        troubles: Receives what cannot be read.
        pending: Set when there is something to write.
    """

    def __init__(self, archive: Archive, troubles: Troubles, pending: asyncio.Event) -> None:
        self._archive = archive
        self._troubles = troubles
        self._pending = pending
        self._offers: dict[CatalogKey, StoredCatalog] = {}
        self._outcomes: Outcomes = {}
        self._asking: Asking = set()
        self._choices: Choices = {}
        self._chosen_for: Collection[str] = ()
        self.on_disagreement: Callable[[], None] | None = None
        """Called when another process chose a name first; `load_choices` returns it."""

    def save_catalog(self, server: str, fingerprint: str, catalog: StoredCatalog) -> None:
        """Remember what a server offers; it is written within a second."""
        self._offers[server, fingerprint] = catalog
        self._pending.set()

    def load_catalogs(self) -> dict[CatalogKey, StoredCatalog]:
        """What each server last offered, as of when the store was opened."""
        found: dict[CatalogKey, StoredCatalog] = {}
        for key, (saved_at, body) in self._archive.saved.items():
            try:
                catalog = stored_catalogs.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                self._troubles.note(f"the stored catalog of {quoted(key[0])} cannot be read: {exc}")
            else:
                found[key] = msgspec.structs.replace(catalog, saved_at=saved_at)
        return found

    def save_outcome(self, server: str, fingerprint: str, *, is_up: bool) -> None:
        """Remember how a server's last start ended; it is written within a second."""
        self._outcomes[server, fingerprint] = is_up
        self._pending.set()

    def load_outcomes(self) -> Outcomes:
        """How each server's last start ended, as of when the store was opened."""
        return dict(self._archive.outcomes)

    def save_asking(self, server: str, fingerprint: str) -> None:
        """Remember that a server asks without naming the call; written within a second."""
        self._asking.add((server, fingerprint))
        self._pending.set()

    def load_asking(self) -> Asking:
        """The servers that ask without naming the call, as of when the store was opened."""
        return set(self._archive.asking)

    def save_choices(
        self, choices: Mapping[str, Mapping[Pair, str]], servers: Collection[str]
    ) -> None:
        """Remember chosen names; they are written within a second.

        Args:
            choices: The name by server and the server's own name, for each kind of thing.
            servers: The configured servers; names of others may be reused.
        """
        for kind, chosen in choices.items():
            self._choices.setdefault(kind, {}).update(chosen)
        self._chosen_for = servers
        self._pending.set()

    def load_choices(self) -> Choices:
        """The chosen names, as of when the store was opened or last wrote some."""
        return {kind: dict(chosen) for kind, chosen in self._archive.choices.items()}

    async def flush(self, written: Writer) -> None:
        """Write all waiting notes; those that cannot be written wait for the next time."""
        # taken before the first wait: later notes are written next time
        offers, self._offers = self._offers, {}
        outcomes, self._outcomes = self._outcomes, {}
        asking, self._asking = self._asking, set()
        if offers and not await written("catalogs", self._archive.write_catalogs, offers):
            # notes that were added meanwhile are newer, and win
            self._offers = offers | self._offers
            self._pending.set()
        if outcomes and not await written("outcomes", self._archive.write_outcomes, outcomes):
            self._outcomes = outcomes | self._outcomes
            self._pending.set()
        if asking and not await written("asking", self._archive.write_asking, asking):
            self._asking |= asking
            self._pending.set()
        await self._flush_choices(written)

    async def _flush_choices(self, written: Writer) -> None:
        choices, self._choices = self._choices, {}
        if not choices:
            return
        agreed = True

        def write(chosen: Choices) -> None:
            nonlocal agreed
            agreed = self._archive.write_choices(chosen, self._chosen_for)

        if not await written("choices", write, choices):
            self._choices = {
                kind: choices.get(kind, {}) | self._choices.get(kind, {})
                for kind in choices.keys() | self._choices.keys()
            }
            self._pending.set()
        # Two gateways share the store: both use the name that was written first, or clients
        # of one would call tools that the other names differently.
        elif not agreed and self.on_disagreement is not None:
            self.on_disagreement()
