"""Vets offers in the background: scans their texts, keeps pins, finds package versions."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
from anyio import to_thread

from multitap.catalog.catalog import CatalogSection
from multitap.catalog.vetting import Search
from multitap.config import StdioServer
from multitap.errors import quoted
from multitap.events import LinkState, ToolSuspected
from multitap.hub.catalog_builder import CatalogBuilder
from multitap.printable import twins
from multitap.tasks import Latch, Tasks
from multitap.trust.packages import LaunchedPackage, launch_of, resolve
from multitap.trust.pins import LockPlaces, Pins, changed_files, pin_mode, read, save
from multitap.trust.scanner import Finding, scan, scan_mode, scan_other
from multitap.trust.scanner_rules import LOOK_ALIKE
from multitap.upstream.link import Link
from multitap.upstream.lists import Definition

logger = logging.getLogger(__name__)

LARGE = 64 * 1024
"""Characters of a definition above which it is scanned in a thread."""


class ToolScans:
    """Scans what the servers of a catalog offer, and reports each finding once.

    `on_done` is called when everything is scanned.
    """

    def __init__(self, builder: CatalogBuilder, on_done: Callable[[], None]) -> None:
        self._builder = builder
        self._vetting = builder.vetting
        self._on_done = on_done
        self._wake = Latch()
        self._scanned: Mapping[Link, CatalogSection] = {}
        self._reported: set[tuple[str, str, Finding]] = set()
        self._twins: dict[tuple[str, str], str] = {}
        self._servers: dict[str, str] = {}
        """Servers whose names look like those of others, and whose."""
        self._is_new = self._is_busy = False

    @property
    def is_done(self) -> bool:
        """Whether everything is scanned."""
        return not self._is_new and not self._is_busy

    def look_again(self) -> None:
        """Scan new definitions soon, if there are any."""
        sections = self._builder.sections
        if any(self._scanned.get(link) is not section for link, section in sections.items()):
            self._is_new = True
            self._wake.set()
        self._scanned = sections

    async def run(self) -> None:
        """Scan new definitions until cancelled."""
        while True:
            await self._wake.wait()
            self._is_new, self._is_busy = False, True  # more may be added meanwhile
            for link, section in self._builder.sections.items():
                if scan_mode(link.config) != "off":
                    await self._search(section)
            # compared together and last: a new server may imitate one that was scanned long ago
            self._twins = _twins(self._builder.sections)
            self._servers = twins(link.name for link in self._builder.sections)
            for link, section in self._builder.sections.items():
                self._report(link, section)
            self._forget()
            self._is_busy = False
            self._on_done()

    def findings(self, link: Link, section: CatalogSection) -> dict[str, Finding]:
        """The most severe finding of each tool, by the server's own name."""
        first: dict[str, Finding] = {}
        if scan_mode(link.config) == "off":
            return first
        for raw, (digest, _) in section.vetted.seen.items():
            if findings := self._vetting.findings.get(digest):
                first[raw] = findings[0]
            elif (other := self._twins.get((link.name, raw))) is not None:
                first[raw] = Finding(LOOK_ALIKE, "the name is easily confused with another", other)
        return first

    def other_findings(self, link: Link, section: CatalogSection) -> dict[str, Finding]:
        """The most severe findings in other offers and instructions, by kind and name."""
        if scan_mode(link.config) == "off":
            return {}
        findings = self._vetting.findings
        return {
            key: findings[digest][0]
            for key, (digest, _) in section.vetted.others.items()
            if findings.get(digest)
        }

    def warnings(self, link: Link, section: CatalogSection) -> tuple[str, ...]:
        """All findings about a server, as warnings."""
        warnings = [text for _, text, _ in self._all(link, section)]
        if (other := self._servers.get(link.name)) is not None:
            warnings.insert(0, f"scan: its name is easily confused with {quoted(other)}")
        return tuple(warnings)

    async def _search(self, section: CatalogSection) -> None:
        look = self._vetting.look
        texts: list[tuple[str, Definition, Search]]
        texts = [(*tool, scan) for tool in section.vetted.seen.values()]
        texts += [(*offer, scan_other) for offer in section.vetted.others.values()]
        for digest, definition, search in texts:
            if digest in self._vetting.findings:
                continue
            if len(str(definition)) > LARGE:
                await to_thread.run_sync(look, digest, definition, search, abandon_on_cancel=True)
            else:
                look(digest, definition, search)
                await anyio.lowlevel.checkpoint()  # calls go first

    def _all(self, link: Link, section: CatalogSection) -> Iterator[tuple[str, str, Finding]]:
        """All findings, each with its name and a sentence about it."""
        for raw, finding in self.findings(link, section).items():
            yield raw, f"scan: tool {quoted(raw)}: {finding.words}", finding
        for key, finding in self.other_findings(link, section).items():
            yield key, f"scan: {quoted(key)}: {finding.words}", finding

    def _report(self, link: Link, section: CatalogSection) -> None:
        is_blocked = scan_mode(link.config) == "block"
        for raw, text, finding in self._all(link, section):
            if (key := (link.name, raw, finding)) in self._reported:
                continue
            self._reported.add(key)
            link.report.tell(ToolSuspected(link.name, raw, finding.kind, is_blocked, text))
            logger.warning("%s: %s", link.name, link.report.redact(text))

    def _forget(self) -> None:
        """Drop findings about definitions that are no longer offered."""
        sections = self._builder.sections.values()
        used = {
            digest
            for section in sections
            for digest, _ in (*section.vetted.seen.values(), *section.vetted.others.values())
        }
        # a server that keeps changing its descriptions must not fill the memory
        for digest in self._vetting.findings.keys() - used:
            del self._vetting.findings[digest]
        names = {link.name for link in self._builder.sections}
        self._reported = {key for key in self._reported if key[0] in names}


def _twins(sections: Mapping[Link, CatalogSection]) -> dict[tuple[str, str], str]:
    """Tools whose names are easily confused with those of other servers."""
    names = [(link.name, raw) for link, section in sections.items() for raw in section.vetted.seen]
    alike = twins(raw for _, raw in names)
    return {
        (server, raw): f"{raw} and {other}"
        for server, raw in names
        if (other := alike.get(raw)) is not None
    }


LOOK = 0.5
"""Seconds between two checks of the files: accepted changes apply within a second."""
SAVING = 5.0
"""Seconds to write the last observations at the end."""


class PinKeeper:
    """Runs as long as the hub is open.

    Args:
        pins: The pins.
        on_change: Called when the files have changed.
    """

    def __init__(self, pins: Pins, on_change: Callable[[], None]) -> None:
        self._pins = pins
        self._on_change = on_change
        self._seen = Latch()

    async def run(self) -> None:
        """Write new pins, and check the files for changes, until cancelled."""
        pins = self._pins
        pins.on_unsaved = self._seen.set
        while True:
            unsaved = pins.unsaved_pins()
            if unsaved and pins.settle(await to_thread.run_sync(save, unsaved), unsaved):
                self._on_change()
            with anyio.move_on_after(LOOK):
                await self._seen.wait()
            # In a thread: state directories may be network folders, and a slow one must not delay
            # calls.
            stale = await to_thread.run_sync(changed_files, pins.files, abandon_on_cancel=True)
            if stale and pins.settle(
                await to_thread.run_sync(read, stale, abandon_on_cancel=True)
            ):
                self._on_change()


@asynccontextmanager
async def open_pins(places: LockPlaces) -> AsyncGenerator[Pins]:
    """The pins; new observations are written at the latest when the block is left."""
    pins = Pins(places)
    pins.settle(await to_thread.run_sync(read, pins.files, abandon_on_cancel=True))
    try:
        yield pins
    finally:
        if unsaved := pins.unsaved_pins():
            # Shielded, since this runs while the hub is cancelled: a tool that was seen and not
            # pinned would be new again next time, whatever it says then.
            with anyio.move_on_after(SAVING, shield=True):
                await to_thread.run_sync(save, unsaved, abandon_on_cancel=True)


class PackageLookup:
    """Inspects each process of a launcher once.

    Args:
        tasks: Runs the inspections.
        pins: Receives the versions that are found.
        on_change: Called with a server whose version is new.
    """

    def __init__(self, tasks: Tasks, pins: Pins, on_change: Callable[[str], None]) -> None:
        self._tasks = tasks
        self._pins = pins
        self._on_change = on_change
        self._seen: dict[str, int] = {}

    def note(self, link: Link) -> None:
        """Inspect the process of a link whose state has changed, if it is a new one."""
        config, pid = link.config, link.pid
        if link.state is not LinkState.CONNECTED or pid is None or pid == self._seen.get(link.name):
            return
        if not isinstance(config, StdioServer) or pin_mode(config) == "off":
            return
        if (launch := launch_of(config.command, config.args)) is not None:
            # Before the inspection, which takes a while: other states of the process must not start
            # a second one.
            self._seen[link.name] = pid
            self._tasks.start_soon(partial(self._look, link, config), launch, pid)

    async def _look(
        self, link: Link, config: StdioServer, launch: LaunchedPackage, pid: int
    ) -> None:
        package = await to_thread.run_sync(resolve, launch, pid, abandon_on_cancel=True)
        if self._pins.note_package(link.name, config, package):
            self._on_change(link.name)
