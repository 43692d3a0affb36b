"""Vets offers in the background: scans their texts, keeps pins, finds package versions."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio
import anyio.lowlevel
from anyio import to_thread

from multitap.catalog.catalog import CatalogSection
from multitap.catalog.vetting import Search
from multitap.config.models import StdioServer
from multitap.errors import quoted
from multitap.events import LinkState, ToolSuspected
from multitap.files import Stamp
from multitap.hub.catalog_builder import CatalogBuilder
from multitap.printable import LookAlikes
from multitap.tasks import Latch, Tasks
from multitap.trust.lock_file import LockFile
from multitap.trust.packages import LaunchedPackage, launch_of, resolve
from multitap.trust.pins import LockPlaces, Pins, pin_mode, read, save, stamps
from multitap.trust.scanner import Finding, scan, scan_mode, scan_other
from multitap.trust.scanner_rules import LOOK_ALIKE
from multitap.upstream.link import Link
from multitap.upstream.lists import Definition

logger = logging.getLogger(__name__)

LARGE = 64 * 1024
"""Characters of a definition above which it is scanned in a thread."""


GATHERING = 0.1
"""Seconds from a first list until it is scanned and written: of servers that start together, all
are listed first, and written at once."""


class _NamedFinding(NamedTuple):
    """A finding, the offer that it is in, and a sentence about both."""

    name: str
    words: str
    finding: Finding


class ToolScans:
    """Scans what the servers of a catalog offer, and reports each finding once.

    `on_done` is called when everything is scanned.
    """

    def __init__(self, builder: CatalogBuilder, on_done: Callable[[], None]) -> None:
        self._builder = builder
        self._vetting = builder.vetting
        self._on_done = on_done
        self._wake = Latch()
        self._noticed: Mapping[Link, CatalogSection] = {}
        self._scanned: Mapping[Link, CatalogSection] = {}
        self._findings: dict[Link, tuple[_NamedFinding, ...]] = {}
        """What was found in each server's offers; most have nothing, and all have many."""
        self._reported: set[tuple[str, str, Finding]] = set()
        self._tools = LookAlikes()
        self._servers = LookAlikes()
        self._is_new = self._is_busy = False

    @property
    def is_done(self) -> bool:
        """Whether everything is scanned."""
        return not self._is_new and not self._is_busy

    def look_again(self) -> None:
        """Scan new definitions soon, if there are any."""
        sections = self._builder.sections
        if any(self._noticed.get(link) is not section for link, section in sections.items()):
            self._is_new = True
            self._wake.set()
        self._noticed = sections

    async def run(self) -> None:
        """Scan new definitions until cancelled."""
        while True:
            await self._wake.wait()
            await anyio.sleep(GATHERING)
            self._is_new, self._is_busy = False, True  # more may be added meanwhile
            sections = self._builder.sections
            fresh = {
                link: section
                for link, section in sections.items()
                if self._scanned.get(link) is not section
            }
            for link, section in fresh.items():
                if scan_mode(link.config) != "off":
                    await self._search(section)
            # compared together and last: a new server may imitate one that was scanned long ago
            self._servers.compare(link.name for link in sections)
            if self._tools.compare(
                raw for section in sections.values() for raw in section.vetted.seen
            ):
                fresh = sections
            self._findings = {link: self._findings.get(link, ()) for link in sections}
            for link, section in fresh.items():
                self._findings[link] = tuple(self._find(link, section))
                self._report(link)
            self._scanned = sections
            self._forget()
            self._is_busy = False
            self._on_done()

    def warnings(self, link: Link, section: CatalogSection) -> tuple[str, ...]:
        """All findings about a server, as warnings."""
        is_scanned = self._scanned.get(link) is section
        # where attacks are blocked, something is known before the scan
        findings = self._findings[link] if is_scanned else self._find(link, section)
        warnings = [finding.words for finding in findings]
        if (other := self._servers.twins.get(link.name)) is not None:
            warnings.insert(0, f"scan: its name is easily confused with {quoted(other)}")
        return tuple(warnings)

    def _find(self, link: Link, section: CatalogSection) -> "Iterator[_NamedFinding]":
        """The most severe finding of each offer."""
        if scan_mode(link.config) == "off":
            return
        findings_of, twins = self._vetting.findings, self._tools.twins
        for raw, (digest, _) in section.vetted.seen.items():
            finding = None
            if findings := findings_of.get(digest):
                finding = findings[0]
            elif (other := twins.get(raw)) is not None:
                what = "the name is easily confused with another"
                finding = Finding(LOOK_ALIKE, what, f"{raw} and {other}")
            if finding is not None:
                text = f"scan: tool {quoted(raw)}: {finding.words}"
                yield _NamedFinding(raw, text, finding)
        for key, (digest, _) in section.vetted.others.items():
            if findings := findings_of.get(digest):
                text = f"scan: {quoted(key)}: {findings[0].words}"
                yield _NamedFinding(key, text, findings[0])

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

    def _report(self, link: Link) -> None:
        is_blocked = scan_mode(link.config) == "block"
        for name, words, finding in self._findings[link]:
            if (key := (link.name, name, finding)) in self._reported:
                continue
            self._reported.add(key)
            link.report.tell(ToolSuspected(link.name, name, finding.kind, is_blocked, words))
            logger.warning("%s: %s", link.name, link.report.redact(words))

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
        self._stamps: dict[LockFile, Stamp] | None = None
        """Of the files as they were last read."""

    async def run(self) -> None:
        """Write new pins, and check the files for changes, until cancelled."""
        pins = self._pins
        pins.on_unsaved = self._seen.set
        # In a thread: state directories may be network folders, and a slow one must not delay
        # calls.
        if self._stamps is None:
            self._stamps = await to_thread.run_sync(stamps, pins.files, abandon_on_cancel=True)
        while True:
            # after a write the files look changed and are looked at once more: another process may
            # have written them meanwhile
            unsaved = pins.unsaved_pins()
            if unsaved and pins.settle(await to_thread.run_sync(save, unsaved), unsaved):
                self._on_change()
            with anyio.move_on_after(LOOK):
                await self._seen.wait()
                await anyio.sleep(GATHERING)
            now = await to_thread.run_sync(stamps, pins.files, abandon_on_cancel=True)
            if stale := [file for file in pins.files if now[file] != self._stamps[file]]:
                readings = await to_thread.run_sync(read, stale, abandon_on_cancel=True)
                self._stamps = now  # only now: what could not be read is read again
                if pins.settle(readings):
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
            self._tasks.start_apart(partial(self._look, link, config), launch, pid)

    async def _look(
        self, link: Link, config: StdioServer, launch: LaunchedPackage, pid: int
    ) -> None:
        package = await to_thread.run_sync(resolve, launch, pid, abandon_on_cancel=True)
        if self._pins.note_package(link.name, config, package):
            self._on_change(link.name)
