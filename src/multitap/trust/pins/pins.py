"""The pins in the files, and those of this run."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from multitap.config.models import ServerConfig
from multitap.config.provenance import STANDINGS
from multitap.records import dataclass
from multitap.regular_file import Stamp
from multitap.trust.pins.lock_file import (
    LockContent,
    LockedPackage,
    LockError,
    LockFile,
    LockNotWritten,
    ServerPins,
    ToolPin,
)
from multitap.trust.pins.lock_places import LockPlaces
from multitap.trust.pins.pin_drift import NO_DRIFT, PinDrift, drift_of
from multitap.trust.pins.pinned_definition import canonical, comes_and_goes

PinMode = Literal["enforce", "report", "off"]
Reading = LockContent | LockError
"""The content of a lock file, or the error."""

_LARGEST_DEFINITION, _LARGEST_SERVER = (
    64 * 1024,
    4 * 1024 * 1024,
)  # bytes of one definition in a lock


def pin_mode(config: ServerConfig) -> PinMode:
    """How to treat a changed tool.

    A project cannot choose for its own servers, and in-process servers are part of this program.
    """
    if config.transport == "local":
        return "off"
    standing = STANDINGS[config.provenance]
    return (config.pin if standing.may_loosen else None) or standing.pin


@dataclass(frozen=True, slots=True)
class PinChange:
    """The entry to write for one server, and the one that it replaces."""

    before: ServerPins | None
    after: ServerPins


Unsaved = dict[LockFile, dict[str, PinChange]]


class Pins:
    """Owns the pins. It accesses no file: `save` and `read` do, in a thread.

    Args:
        places: The lock files; None if nothing outlives the process.
        naming: The shape of exposed names.
    """

    def __init__(self, places: LockPlaces | None = None, naming: str = "") -> None:
        self.naming = naming
        self.on_unsaved: Callable[[], None] = lambda: None
        """Called when there is something to write."""
        self.places = places
        """The lock files."""
        self._readings: dict[LockFile | None, Reading] = {}
        self._noted: dict[tuple[LockFile | None, str], PinChange] = {}
        """Entries that are not written yet."""
        self._unwritten: dict[LockFile, str] = {}
        self._packages: dict[str, LockedPackage] = {}

    @property
    def files(self) -> tuple[LockFile, ...]:
        return () if self.places is None else self.places.files

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems of the files."""
        damage = (str(one) for one in self._readings.values() if isinstance(one, LockError))
        return (*damage, *self._unwritten.values())

    def judge(
        self,
        server: str,
        config: ServerConfig,
        identity: str,
        seen: Mapping[str, ToolPin],
        others: Mapping[str, ToolPin] = MappingProxyType({}),
        *,
        whole: bool = True,
    ) -> PinDrift:
        """How a server's offers differ from its pins; a new server is pinned.

        Args:
            server: Its name.
            config: Its configuration, with `pin` and `provenance`.
            identity: A digest of its command or URL.
            seen: Its tools, by its own names.
            others: Its other offers, by kind and name.
            whole: Whether all its lists could be fetched; items of a list that comes later are
                late, not new.
        """
        mode = pin_mode(config)
        if mode == "off":
            return NO_DRIFT
        own, project = self._files_of(config)
        for file in filter(None, (own, project)):
            if isinstance(reading := self._readings.get(file), LockError):
                return PinDrift(damage=str(reading))
        before = pins = self._entry(own, server)
        # Under `enforce`, a changed command is not an excuse: a project could change both at once.
        if pins is not None and pins.identity != identity and mode != "enforce":
            pins = None  # the user configured another server under that name
        locked = None if project is None else self._entry(project, server)
        package = self._packages.get(server)
        drift = drift_of(seen, pins, locked, package, others)
        if seen or others:
            after = _after(pins, identity, self.naming, seen, drift, package)
            if whole or (pins is not None and pins.others is not None):
                after = _with_others(after, others, drift)
            self._note(own, server, PinChange(before, after))
            if project is not None and locked is None and (after.tools or after.others):
                committed = ServerPins(package=package, tools=after.tools, others=after.others)
                self._note(project, server, PinChange(None, committed))
        return drift

    def note_package(self, server: str, config: ServerConfig, package: LockedPackage) -> bool:
        """Record the package that a launcher really started; returns whether the pins differ."""
        self._packages[server] = package
        pins = self._entry(self._files_of(config)[0], server)
        known = None if pins is None else pins.pending_package or pins.package
        return known is None or not known.same_as(package)

    def package(self, server: str, config: ServerConfig) -> LockedPackage | None:
        """The known package of a server."""
        if (found := self._packages.get(server)) is not None:
            return found
        pins = self._entry(self._files_of(config)[0], server)
        return None if pins is None else pins.package

    def exposed_names(self, servers: Mapping[str, ServerConfig]) -> dict[tuple[str, str], str]:
        """The names of tools for callers, by server and its own name.

        A project's own lock is ignored: it could take another tool's name.
        """
        found: dict[tuple[str, str], str] = {}
        for server, config in sorted(servers.items(), key=lambda one: one[1].provenance):
            pins = self._entry(self._files_of(config)[0], server)
            if pins is None or pins.naming != self.naming or pin_mode(config) == "off":
                continue
            for raw, pin in (*pins.pending.items(), *pins.tools.items()):
                if pin.exposed:
                    found[server, raw] = pin.exposed
        return found

    def unsaved_pins(self) -> Unsaved:
        """Entries that are not written yet."""
        found: Unsaved = {}
        for (file, server), change in self._noted.items():
            if file is not None and file not in self._unwritten:
                found.setdefault(file, {})[server] = change
        return found

    def settle(self, readings: Mapping[LockFile, Reading], saved: Unsaved | None = None) -> bool:
        """Use the content of the files; returns whether anything changed.

        Args:
            readings: Their content.
            saved: The entries that were to be written before they were read.
        """
        surprise = False
        for file, reading in readings.items():
            if isinstance(reading, LockNotWritten):
                self._unwritten[file] = str(reading)
                continue
            expected = self._expected_pins(file, (saved or {}).get(file, {}))
            before, self._readings[file] = self._readings.get(file), reading
            self._unwritten.pop(file, None)
            if isinstance(reading, LockError):
                surprise |= str(before) != str(reading)
            elif isinstance(before, LockError) or reading.servers != expected:
                surprise = True
            self._drop_outdated(file, (saved or {}).get(file, {}))
        return surprise

    def _expected_pins(
        self, file: LockFile, saved: Mapping[str, PinChange]
    ) -> dict[str, ServerPins]:
        reading = self._readings.get(file)
        known = reading.servers if isinstance(reading, LockContent) else {}
        return {**known, **{server: change.after for server, change in saved.items()}}

    def _drop_outdated(self, file: LockFile, saved: Mapping[str, PinChange]) -> None:
        """Forget entries that are written, and those that somebody else has decided."""
        reading = self._readings[file]
        known = reading.servers if isinstance(reading, LockContent) else {}
        for owner, server in [*self._noted]:
            if owner is not file:
                continue
            change = self._noted.pop((owner, server))
            written = saved.get(server)
            if change is written:
                continue
            if written is not None and known.get(server) == written.after:
                # seen while the file was being written
                change = PinChange(written.after, change.after)
            if change.before == known.get(server):
                self._noted[owner, server] = change

    def _files_of(self, config: ServerConfig) -> tuple[LockFile | None, LockFile | None]:
        return (None, None) if self.places is None else self.places.of(config)

    def _entry(self, file: LockFile | None, server: str) -> ServerPins | None:
        if (noted := self._noted.get((file, server))) is not None:
            return noted.after
        reading = self._readings.get(file)
        return reading.servers.get(server) if isinstance(reading, LockContent) else None

    def _note(self, file: LockFile | None, server: str, change: PinChange) -> None:
        if change.before == change.after:
            return
        if (earlier := self._noted.get((file, server))) is not None:
            # `before` stays what the file said: that is what a save compares with.
            change = PinChange(earlier.before, change.after)
        self._noted[file, server] = change
        self.on_unsaved()


def read(files: Iterable[LockFile]) -> dict[LockFile, Reading]:
    """Read some lock files."""
    return {file: _attempt(file.read) for file in files}


def save(unsaved: Unsaved) -> dict[LockFile, Reading]:
    """Write changed entries unless somebody else was first; returns the files' new content."""
    return {file: _attempt(partial(_save, file, changes)) for file, changes in unsaved.items()}


def stamps(files: Iterable[LockFile]) -> dict[LockFile, Stamp]:
    """The stamps of the files."""
    return {file: file.stamp() for file in files}


def pins_of(definitions: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, ToolPin]:
    """The current tools of one server; only the digest of definitions that are too long.

    Args:
        definitions: Each tool's name for callers, and the pinned part of its definition.
    """
    found: dict[str, ToolPin] = {}
    room = _LARGEST_SERVER
    for exposed, definition in definitions:
        text = canonical(definition)
        is_kept = len(text) <= min(_LARGEST_DEFINITION, room)
        room -= len(text) if is_kept else 0
        found[definition["name"]] = ToolPin(
            sha256(text).hexdigest(), exposed, definition if is_kept else None
        )
    return found


def _attempt(work: Callable[[], LockContent]) -> Reading:
    try:
        return work()
    except LockError as exc:
        return exc
    except MemoryError:  # read again when the file changes; the servers go on until then
        return LockError("there is not enough memory for the pins")


def _save(file: LockFile, changes: Mapping[str, PinChange]) -> LockContent:
    with file.changing() as content:
        for server, change in changes.items():
            # another process may have changed the entry meanwhile: its change stands
            if content.servers.get(server) == change.before:
                content.servers[server] = change.after
    return content


def pins_of_others(parts: Mapping[str, dict[str, Any]]) -> dict[str, ToolPin]:
    """The same for other offers, by kind and name."""
    found: dict[str, ToolPin] = {}
    room = _LARGEST_SERVER
    for key, part in parts.items():
        text = canonical(part)
        is_kept = len(text) <= min(_LARGEST_DEFINITION, room)
        room -= len(text) if is_kept else 0
        found[key] = ToolPin(sha256(text).hexdigest(), "", part if is_kept else None)
    return found


def _with_others(pins: ServerPins, seen: Mapping[str, ToolPin], drift: PinDrift) -> ServerPins:
    """The entry with the other offers; removed resources are forgotten."""
    same = {key: pin for key, pin in seen.items() if key not in drift.others}
    kept = {
        key: pin
        for key, pin in (pins.others or {}).items()
        if key in seen or not comes_and_goes(key)
    }
    pending = {key: seen[key] for key in drift.others}
    if not seen and pins.others is None:
        return pins  # not listed yet
    return msgspec.structs.replace(pins, others={**same, **kept}, pending_others=pending)


def _after(  # noqa: PLR0917 - its only caller gives them all
    pins: ServerPins | None,
    identity: str,
    naming: str,
    seen: Mapping[str, ToolPin],
    drift: PinDrift,
    package: LockedPackage | None,
) -> ServerPins:
    """The entry to write for a server with these offers."""
    apart = {*drift.tools}
    pending = {raw: seen[raw] for raw in drift.tools}
    same = {raw: pin for raw, pin in seen.items() if raw not in apart}
    if pins is None:
        return ServerPins(identity, naming, package, same, pending)
    renamed = {raw: pin for raw, pin in same.items() if raw in pins.tools}
    return msgspec.structs.replace(
        pins,
        identity=identity,
        naming=naming,
        tools={**pins.tools, **renamed},
        pending=pending,
        package=pins.package or package,
        pending_package=package if drift.package else None,
    )
