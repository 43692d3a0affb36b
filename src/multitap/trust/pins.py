"""The pins in the files and those of this run, and how a server's offers differ from them."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from multitap.config.models import ServerConfig
from multitap.config.provenance import STANDINGS
from multitap.config.sources import Search
from multitap.errors import counted, quoted
from multitap.files import USER_FOLDERS, Stamp
from multitap.trust.lock_file import (
    FILE,
    UNKNOWN,
    LockContent,
    LockedPackage,
    LockError,
    LockFile,
    LockNotWritten,
    ServerPins,
    ToolPin,
    canonical,
    comes_and_goes,
)


class LockPlaces(msgspec.Struct, frozen=True):
    """The files for the user's own servers and for those of a project."""

    own: LockFile
    """The user's pins for their own servers."""
    private: LockFile
    """The user's pins for the project's servers: a project's own lock proves nothing."""
    project: LockFile | None = None
    """The project's own lock, to be committed; it can withhold tools, never reveal one."""

    @property
    def files(self) -> tuple[LockFile, ...]:
        return tuple(dict.fromkeys(filter(None, (self.own, self.private, self.project))))

    def of(self, config: ServerConfig) -> tuple[LockFile, LockFile | None]:
        """The lock files of a server: this user's, and the project's."""
        if config.provenance == "project":
            return self.private, self.project
        return self.own, None


def places_in(folder: Path) -> LockPlaces:
    """For settings without files: one lock file for all servers."""
    lock = LockFile(folder / FILE)
    return LockPlaces(lock, lock)


def places_of(search: Search) -> LockPlaces:
    """For a configuration: beside the user's own file, and beside the project's.

    Explicitly named files may be anywhere, and several may be in one folder, so their pins are kept
    with the user's data.
    """
    project = next((source.project for source in search.sources if source.project), None)
    config = USER_FOLDERS.user_config_path
    named = [str(source.path) for source in search.sources if source.required]
    home = {source.path.parent for source in search.sources}
    # beside the user's file, where people look for it and may keep it under version control
    own = LockFile(config / FILE) if config in home else _lock_for(named or [str(config)])
    if project is None:
        return LockPlaces(own, own)
    # not in the project: whoever changes its tools could change their pins as well
    private = _lock_for([str(project)])
    return LockPlaces(own, private, LockFile(project / FILE, is_private=False))


def _lock_for(paths: list[str]) -> LockFile:
    data = USER_FOLDERS.user_data_path
    # one file may have several paths, but has one set of pins
    real = sorted(map(os.path.realpath, paths))
    mark = sha256("\n".join(real).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return LockFile(data / "pins" / f"{Path(real[0]).stem or 'root'}-{mark}.lock")


_MOST_NAMED = 5


class PinDrift(msgspec.Struct, frozen=True, kw_only=True):
    """The differences; may be empty."""

    changed: tuple[str, ...] = ()
    """Changed tools, by the server's own names."""
    new: tuple[str, ...] = ()
    """New tools, by the server's own names."""
    unlocked: tuple[str, ...] = ()
    """Tools that differ from the project's own lock."""
    others: tuple[str, ...] = ()
    """Changed prompts, resources, templates and instructions, by their keys."""
    package: str = ""
    """The change of its package, in words."""
    damage: str = ""
    """Why nothing can be compared."""

    def __bool__(self) -> bool:
        return bool(self.tools or self.others or self.package or self.damage)

    @property
    def tools(self) -> tuple[str, ...]:
        return (*self.changed, *self.new, *self.unlocked)

    def reason(self, tool: str) -> str:
        """Why a tool is withheld."""
        if self.damage:
            return f"it cannot be compared with its pin: {self.damage}"
        if tool in self.changed:
            return "its definition differs from the pinned one"
        if tool in self.new:
            return "its server did not have it when its tools were pinned"
        return "its definition differs from the project's lock"

    def words(self, server: str, *, withheld: bool) -> str:
        """All differences in one line."""
        if self.damage:
            return f"pins: the tools cannot be compared with their pins: {self.damage}"
        parts = [
            *_list_tools(self.changed, "changed", withheld=withheld),
            *_list_tools(self.new, "new", withheld=withheld),
            *_list_tools(self.unlocked, "not as in the project's lock", withheld=withheld),
            *_list_tools(self.others, "changed or new", withheld=withheld, noun="other offer"),
            self.package,
            f"run `multitap pins review {server}`",
        ]
        return f"pins: {'; '.join(filter(None, parts))}"


NO_DRIFT = PinDrift()


def drift_of(
    seen: Mapping[str, ToolPin],
    pins: ServerPins | None,
    project: ServerPins | None,
    package: LockedPackage | None,
    others: Mapping[str, ToolPin],
) -> PinDrift:
    """The differences; for a new server, only those from the project's lock.

    Args:
        seen: The current tools, by the server's own names.
        pins: This user's pins; None if the server is new.
        project: The entry in the project's own lock, if any.
        package: The package that runs now; None if unknown.
        others: The other current offers, by key.
    """
    # what is seen first is what is compared with from then on
    pinned = seen if pins is None else pins.tools
    changed = [
        raw for raw, pin in seen.items() if raw in pinned and pinned[raw].sha256 != pin.sha256
    ]
    new = [raw for raw in seen if raw not in pinned]
    # once: the user's own pins say more than the project's lock
    reported = {*changed, *new}
    locked = seen if project is None else project.tools
    unlocked = [
        raw
        for raw, pin in seen.items()
        if raw not in reported and (raw not in locked or locked[raw].sha256 != pin.sha256)
    ]
    before = pins.package if pins is not None else _portable(project)
    odd = dict.fromkeys(
        key for lock in (pins, project) if lock is not None for key in _odd_others(others, lock)
    )
    return PinDrift(
        changed=tuple(changed),
        new=tuple(new),
        unlocked=tuple(unlocked),
        others=(*odd,),
        package=_package_change(before, package),
    )


def _odd_others(seen: Mapping[str, ToolPin], pins: ServerPins) -> Iterator[str]:
    """Changed offers that are not tools."""
    # pins that were made before the other lists had come
    if (pinned := pins.others) is None:
        return
    for key, pin in seen.items():
        if key in pinned:
            if pinned[key].sha256 != pin.sha256:
                yield key
        # Resources come and go with their data: only a changed one is reported.
        elif not comes_and_goes(key):
            yield key


def _portable(project: ServerPins | None) -> LockedPackage | None:
    """A package in a project's lock, without the digest, which differs between machines."""
    package = None if project is None else project.package
    if package is None or package.kind == "npm":
        return package
    return msgspec.structs.replace(package, integrity=UNKNOWN)


def _package_change(before: LockedPackage | None, now: LockedPackage | None) -> str:
    """The change of a package; unknown values are not compared."""
    if before is None or now is None or before.same_as(now):
        return ""
    digests = f", {before.integrity} before and {now.integrity} now"
    return f"its package is {now}, and was {before}" + (digests if str(now) == str(before) else "")


def _list_tools(
    tools: tuple[str, ...], what: str, *, withheld: bool, noun: str = "tool"
) -> list[str]:
    if not tools:
        return []
    named = ", ".join(quoted(tool) for tool in tools[:_MOST_NAMED])
    rest = f" and {len(tools) - _MOST_NAMED} more" if len(tools) > _MOST_NAMED else ""
    state = f"{what} and withheld" if withheld else what
    return [f"{counted(len(tools), noun)} {state}: {named}{rest}"]


PinMode = Literal["enforce", "report", "off"]
Reading = LockContent | LockError
"""The content of a lock file, or the error."""

_LARGEST_DEFINITION, _LARGEST_SERVER = 64 * 1024, 4 * 1024 * 1024
"""Bytes of one definition in a lock, and of all definitions of a server."""


def pin_mode(config: ServerConfig) -> PinMode:
    """How to treat a changed tool.

    A project cannot choose for its own servers, and in-process servers are part of this program.
    """
    if config.transport == "local":
        return "off"
    standing = STANDINGS[config.provenance]
    return (config.pin if standing.may_loosen else None) or standing.pin


class PinChange(msgspec.Struct, frozen=True):
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
        damage = (
            str(reading) for reading in self._readings.values() if isinstance(reading, LockError)
        )
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
            # a file that cannot be read says nothing: all tools at once would look new
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
            # the first to use a project's server writes its lock, for the others to commit
            if project is not None and locked is None and (after.tools or after.others):
                committed = ServerPins(package=package, tools=after.tools, others=after.others)
                self._note(project, server, PinChange(None, committed))
        return drift

    def note_package(self, server: str, config: ServerConfig, package: LockedPackage) -> bool:
        """Record the package that a launcher really started; returns whether the pins differ."""
        self._packages[server] = package
        pins = self._entry(self._files_of(config)[0], server)
        pinned = None if pins is None else pins.pending_package or pins.package
        return pinned is None or not pinned.same_as(package)

    def package(self, server: str, config: ServerConfig) -> LockedPackage | None:
        """The known package of a server."""
        if (package := self._packages.get(server)) is not None:
            return package
        pins = self._entry(self._files_of(config)[0], server)
        return None if pins is None else pins.package

    def exposed_names(self, servers: Mapping[str, ServerConfig]) -> dict[tuple[str, str], str]:
        """The names of tools for callers, by server and its own name.

        A project's own lock is ignored: it could take another tool's name.
        """
        locks: dict[tuple[str, str], str] = {}
        # in a fixed order, so that the same names result each time
        for server, config in sorted(servers.items(), key=lambda item: item[1].provenance):
            pins = self._entry(self._files_of(config)[0], server)
            if pins is None or pins.naming != self.naming or pin_mode(config) == "off":
                continue
            # those that a person has accepted last: of two names, theirs counts
            for raw, pin in (*pins.pending.items(), *pins.tools.items()):
                if pin.exposed:
                    locks[server, raw] = pin.exposed
        return locks

    def unsaved_pins(self) -> Unsaved:
        """Entries that are not written yet."""
        unsaved: Unsaved = {}
        for (file, server), change in self._noted.items():
            if file is not None and file not in self._unwritten:
                unsaved.setdefault(file, {})[server] = change
        return unsaved

    def settle(self, readings: Mapping[LockFile, Reading], saved: Unsaved | None = None) -> bool:
        """Use the content of the files; returns whether anything changed.

        Args:
            readings: Their content.
            saved: The entries that were to be written before they were read.
        """
        surprise = False
        for file, reading in readings.items():
            if isinstance(reading, LockNotWritten):
                # not tried again until the file changes: a full disk would be written to for ever
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
        servers = reading.servers if isinstance(reading, LockContent) else {}
        return {**servers, **{server: change.after for server, change in saved.items()}}

    def _drop_outdated(self, file: LockFile, saved: Mapping[str, PinChange]) -> None:
        """Forget entries that are written, and those that somebody else has decided."""
        reading = self._readings[file]
        servers = reading.servers if isinstance(reading, LockContent) else {}
        for owner, server in [*self._noted]:
            if owner is not file:
                continue
            change = self._noted.pop((owner, server))
            written = saved.get(server)
            if change is written:
                continue
            if written is not None and servers.get(server) == written.after:
                # seen while the file was being written
                change = PinChange(written.after, change.after)
            if change.before == servers.get(server):
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
    return {file: _attempt(file.read_digests) for file in files}


def save(unsaved: Unsaved) -> dict[LockFile, Reading]:
    """Write changed entries unless somebody else was first; returns the files' new content."""
    return {file: _attempt(partial(_save, file, changes)) for file, changes in unsaved.items()}


def stamps(files: Iterable[LockFile]) -> dict[LockFile, Stamp]:
    """The stamps of the files."""
    return {file: file.stamp() for file in files}


def pins_of(definitions: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, ToolPin]:
    """The current tools of one server; only the digest of definitions that are too long."""
    pins: dict[str, ToolPin] = {}
    room = _LARGEST_SERVER
    for exposed, definition in definitions:
        text = canonical(definition)
        is_kept = len(text) <= min(_LARGEST_DEFINITION, room)
        room -= len(text) if is_kept else 0
        pins[definition["name"]] = ToolPin(
            sha256(text).hexdigest(), exposed, definition if is_kept else None
        )
    return pins


def _attempt(work: Callable[[], LockContent]) -> Reading:
    try:
        return work()
    except LockError as exc:
        return exc
    except MemoryError:  # read again when the file changes; the servers go on until then
        return LockError("there is not enough memory for the pins")


def _save(file: LockFile, changes: Mapping[str, PinChange]) -> LockContent:
    with file.changing() as draft:
        for server, change in changes.items():
            stored = draft.servers.get(server)
            # another process may have changed the entry meanwhile: its change stands
            if stored == change.before:
                draft.servers[server] = change.after.with_definitions(stored)
    return file.read_digests()


def pins_of_others(parts: Mapping[str, dict[str, Any]]) -> dict[str, ToolPin]:
    """The same for other offers, by kind and name."""
    pins: dict[str, ToolPin] = {}
    room = _LARGEST_SERVER
    for key, part in parts.items():
        text = canonical(part)
        is_kept = len(text) <= min(_LARGEST_DEFINITION, room)
        room -= len(text) if is_kept else 0
        pins[key] = ToolPin(sha256(text).hexdigest(), "", part if is_kept else None)
    return pins


def _with_others(pins: ServerPins, seen: Mapping[str, ToolPin], drift: PinDrift) -> ServerPins:
    """The entry with the other offers; removed resources are forgotten."""
    same = {key: pin for key, pin in seen.items() if key not in drift.others}
    remaining = {
        key: pin
        for key, pin in (pins.others or {}).items()
        if key in seen or not comes_and_goes(key)
    }
    pending = {key: seen[key] for key in drift.others}
    if not seen and pins.others is None:
        return pins  # not listed yet
    return msgspec.structs.replace(pins, others={**same, **remaining}, pending_others=pending)


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
