"""Runs an edit for a command: shows it, writes it and reports it."""

from collections.abc import Mapping, Sequence

from multitap.cli.editing.own_edits import trusting_own_edits
from multitap.cli.editing.pin_edits import PinEdit, record_pins, write_pins
from multitap.cli.exits import Exit
from multitap.cli.terminal.differences import show_differences
from multitap.cli.terminal.output import note
from multitap.config.edit.journal import FileEdit, Journal, Operation
from multitap.errors import MultitapError
from multitap.trust.secrets.vault import Vault


def run_edits(
    label: str,
    edits: Sequence[FileEdit],
    *,
    dry_run: bool,
    done: str,
    pins: Sequence[PinEdit] = (),
) -> int:
    """Apply edits, or only show them.

    Args:
        label: A description, which `multitap undo --list` shows.
        edits: The edits of files.
        dry_run: Whether to only show them.
        done: The message afterwards.
        pins: Changes of pins that belong to them.
    """
    if dry_run:
        show_differences(Journal().preview(edits))
        note("nothing was written")
        return Exit.DONE
    with trusting_own_edits():
        operation = write_edits(label, edits, pins=pins)
    note(f"{done}; `multitap undo` reverts it" if operation else "nothing to change")
    return Exit.DONE


def write_edits(
    label: str,
    edits: Sequence[FileEdit],
    *,
    secrets: Mapping[str, str] | None = None,
    pins: Sequence[PinEdit] = (),
) -> Operation | None:
    """Apply edits together with secrets and pins; nothing is left if that fails.

    Args:
        label: A description, which `multitap undo --list` shows.
        edits: The edits of files.
        secrets: New secrets by the names that the edits use.
        pins: Changes of pins that belong to them.
    """
    new = secrets or {}
    vault = Vault()

    # before the files: a running gateway could not use one that refers to a missing secret
    def add_secrets() -> None:
        for name, value in new.items():
            vault.set(name, value)

    journal = Journal(forget=forget)
    operation = journal.apply(
        label, edits, secrets=[*new], pins=record_pins(pins), prepare=add_secrets
    )
    if operation is not None:
        # the pins last: if killed before, `undo` finds them unchanged
        write_pins(pins)
    return operation


def forget(secrets: Sequence[str]) -> None:
    """Remove secrets again, if they exist."""
    vault = Vault()
    for name in secrets:
        try:
            vault.remove(name)
        except MultitapError:
            continue
