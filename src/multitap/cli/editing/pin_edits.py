"""Changes of pins that belong to an edit, so that `undo` restores them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from multitap.cli.terminal.output import note
from multitap.config import Loaded
from multitap.config.edit.journal import PinRecord
from multitap.records import dataclass
from multitap.trust.pins.lock_file import LockError, LockFile, ServerPins
from multitap.trust.pins.lock_places import LockPlaces, places_of


@dataclass(frozen=True, slots=True)
class PinEdit:
    """The new entry of one server in a lock file; None to remove it."""

    lock: LockFile
    server: str
    after: ServerPins | None
    is_private: bool = True


def pins_of_new(
    places: LockPlaces, server: str, pins: ServerPins, *, project: bool
) -> tuple[PinEdit, ...]:
    """The pins of a server that was just tried; older ones are replaced."""
    if not project:
        return (PinEdit(places.own, server, pins),)
    private = PinEdit(places.private, server, pins)
    if places.project is None:
        return (private,)
    # without pending reviews, which are this user's: the file is committed
    committed = ServerPins(package=pins.package, tools=pins.tools, others=pins.others)
    return private, PinEdit(places.project, server, committed, is_private=False)


def pins_to_come(places: LockPlaces, servers: Iterable[str]) -> tuple[PinEdit, ...]:
    """Removes old pins under the names of servers that were not tried.

    They are pinned on first use; `undo` finds these pins, too.
    """
    return tuple(PinEdit(places.own, server, None) for server in servers)


def pins_without(loaded: Loaded, servers: Iterable[str]) -> tuple[PinEdit, ...]:
    """Edits that remove these servers from all lock files."""
    return tuple(
        PinEdit(lock, server, None, is_private=private)
        for server in servers
        for lock, private, _ in _entries(loaded, server)
    )


def pins_renamed(loaded: Loaded, old: str, new: str) -> tuple[PinEdit, ...]:
    """Edits that move the pins of a server to its new name."""
    return tuple(
        edit
        for lock, private, pins in _entries(loaded, old)
        for edit in (
            PinEdit(lock, new, pins, is_private=private),
            PinEdit(lock, old, None, is_private=private),
        )
    )


def record_pins(edits: Sequence[PinEdit]) -> list[PinRecord]:
    """The current entries of the lock files, for `undo`."""
    return [
        PinRecord(
            str(edit.lock.path),
            edit.server,
            before=_plain(_read(edit.lock).get(edit.server)),
            private=edit.is_private,
            existed=edit.lock.stamp() is not None,
        )
        for edit in edits
    ]


def write_pins(edits: Sequence[PinEdit]) -> None:
    """Change the lock files; on failure, servers are pinned again when they start."""
    for edit in edits:
        _write(edit.lock, edit.server, edit.after)


def restore_pins(records: Sequence[PinRecord]) -> None:
    """Restore the entries of lock files that an operation changed."""
    # backwards: one operation may have changed the same entry twice
    for one in reversed(records):
        lock = LockFile(Path(one.path), is_private=one.private)
        before = None if one.before is None else msgspec.convert(one.before, ServerPins)
        _write(lock, one.server, before)
        if not one.existed and not _read(lock):
            lock.path.unlink(missing_ok=True)


def _entries(loaded: Loaded, server: str) -> list[tuple[LockFile, bool, ServerPins]]:
    places = places_of(loaded)
    found = ((lock, _read(lock).get(server)) for lock in places.files)
    return [(lock, lock is not places.project, pins) for lock, pins in found if pins is not None]


def _read(lock: LockFile) -> dict[str, ServerPins]:
    try:
        return lock.read().servers
    except LockError:
        return {}  # reported wherever the lock file is used


def _write(lock: LockFile, server: str, pins: ServerPins | None) -> None:
    if pins is None and server not in _read(lock):
        return
    try:
        with lock.changing() as content:
            if pins is not None:
                content.servers[server] = pins
            else:
                content.servers.pop(server, None)
    except LockError as exc:
        # the entry is already written, and must not be lost because of its pins
        note(f"warning: {exc}")


def _plain(pins: ServerPins | None) -> dict[str, object] | None:
    plain: dict[str, object] | None = None if pins is None else msgspec.to_builtins(pins)
    return plain
