"""Scans definitions and instructions in the background, each text once."""

import logging
from collections.abc import Callable, Iterator, Mapping

import anyio
import anyio.lowlevel
from anyio import to_thread

from multitap.catalog.catalog import CatalogSection
from multitap.catalog.vetting import Search, Vetting
from multitap.errors import quoted
from multitap.events import ToolSuspected
from multitap.look_alikes import twins
from multitap.trust.scanner.scanner import Finding, scan, scan_mode, scan_other
from multitap.trust.scanner.scanner_rules import LOOK_ALIKE
from multitap.upstream.link import Link
from multitap.upstream.offer_lists import Definition
from multitap.upstream.signals import Latch

logger = logging.getLogger(__name__)

LARGE = 64 * 1024
"""Characters of a definition above which it is scanned in a thread."""


class ToolScans:
    """Owns the findings, and reports each once.

    Args:
        vetting: Remembers the findings of each definition.
        shelves: Returns the definitions to scan.
        on_done: Called when everything is scanned.
    """

    def __init__(
        self,
        vetting: Vetting,
        shelves: Callable[[], Mapping[Link, CatalogSection]],
        on_done: Callable[[], None],
    ) -> None:
        self._vetting = vetting
        self._shelves = shelves
        self._on_done = on_done
        self._wake = Latch()
        self._told: set[tuple[str, str, Finding]] = set()
        self._twins: dict[tuple[str, str], str] = {}
        self._servers: dict[str, str] = {}
        """Servers whose names look like those of others, and whose."""
        self._is_new = self._is_busy = False

    @property
    def is_done(self) -> bool:
        """Whether everything on the shelves is scanned."""
        return not self._is_new and not self._is_busy

    def look_again(self) -> None:
        """Scan new definitions soon."""
        self._is_new = True
        self._wake.set()

    async def run(self) -> None:
        """Scan new definitions until cancelled."""
        while True:
            await self._wake.wait()
            self._is_new, self._is_busy = False, True  # more may be added meanwhile
            # a copy: shelves are replaced while this waits
            for link, shelf in [*self._shelves().items()]:
                if scan_mode(link.config) != "off":
                    await self._search(shelf)
            # compared together and last: a new server may imitate one that was scanned long ago
            self._twins = _twins(self._shelves())
            self._servers = twins(link.name for link in self._shelves())
            for link, shelf in self._shelves().items():
                self._tell(link, shelf)
            self._forget()
            self._is_busy = False
            self._on_done()

    def findings(self, link: Link, shelf: CatalogSection) -> dict[str, Finding]:
        """The most severe finding of each tool, by the server's own name."""
        first: dict[str, Finding] = {}
        if scan_mode(link.config) == "off":
            return first
        for raw, (digest, _) in shelf.vetted.seen.items():
            if found := self._vetting.findings.get(digest):
                first[raw] = found[0]
            elif (other := self._twins.get((link.name, raw))) is not None:
                first[raw] = Finding(LOOK_ALIKE, "the name is easily confused with another", other)
        return first

    def other_findings(self, link: Link, shelf: CatalogSection) -> dict[str, Finding]:
        """The most severe findings in other offers and instructions, by kind and name."""
        if scan_mode(link.config) == "off":
            return {}
        known = self._vetting.findings
        return {
            key: known[digest][0]
            for key, (digest, _) in shelf.vetted.others.items()
            if known.get(digest)
        }

    def warnings(self, link: Link, shelf: CatalogSection) -> tuple[str, ...]:
        """All findings about a server, as warnings."""
        told = [words for _, words, _ in self._all(link, shelf)]
        if (other := self._servers.get(link.name)) is not None:
            told.insert(0, f"scan: its name is easily confused with {quoted(other)}")
        return tuple(told)

    async def _search(self, shelf: CatalogSection) -> None:
        look, known = self._vetting.look, self._vetting.findings
        texts: list[tuple[str, Definition, Search]]
        texts = [(*one, scan) for one in shelf.vetted.seen.values()]
        texts += [(*one, scan_other) for one in shelf.vetted.others.values()]
        for digest, definition, search in texts:
            if digest in known:
                continue
            if len(str(definition)) > LARGE:
                await to_thread.run_sync(look, digest, definition, search, abandon_on_cancel=True)
            else:
                look(digest, definition, search)
                await anyio.lowlevel.checkpoint()  # calls go first

    def _all(self, link: Link, shelf: CatalogSection) -> Iterator[tuple[str, str, Finding]]:
        """All findings, each with its name and its words."""
        for raw, found in self.findings(link, shelf).items():
            yield raw, f"scan: tool {quoted(raw)}: {found.words}", found
        for key, found in self.other_findings(link, shelf).items():
            yield key, f"scan: {quoted(key)}: {found.words}", found

    def _tell(self, link: Link, shelf: CatalogSection) -> None:
        is_blocked = scan_mode(link.config) == "block"
        for raw, words, found in self._all(link, shelf):
            if (key := (link.name, raw, found)) in self._told:
                continue
            self._told.add(key)
            link.report.tell(ToolSuspected(link.name, raw, found.kind, is_blocked, words))
            logger.warning("%s: %s", link.name, link.report.redact(words))

    def _forget(self) -> None:
        """Drop findings about definitions that are no longer offered."""
        shelves = self._shelves().values()
        used = {
            digest
            for shelf in shelves
            for digest, _ in (*shelf.vetted.seen.values(), *shelf.vetted.others.values())
        }
        # a server that keeps changing its descriptions must not fill the memory
        for digest in self._vetting.findings.keys() - used:
            del self._vetting.findings[digest]
        names = {link.name for link in self._shelves()}
        self._told = {key for key in self._told if key[0] in names}


def _twins(shelves: Mapping[Link, CatalogSection]) -> dict[tuple[str, str], str]:
    """Tools whose names are easily confused with those of other servers."""
    names = [(link.name, raw) for link, shelf in shelves.items() for raw in shelf.vetted.seen]
    alike = twins(raw for _, raw in names)
    return {
        (server, raw): f"{raw} and {other}"
        for server, raw in names
        if (other := alike.get(raw)) is not None
    }
