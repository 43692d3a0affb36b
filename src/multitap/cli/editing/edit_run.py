"""Runs an edit for a command: shows it, writes it and reports it."""

from collections.abc import Sequence

from multitap.cli.editing.own_edits import trusting_own_edits
from multitap.cli.exits import Exit
from multitap.cli.terminal.differences import show_differences
from multitap.cli.terminal.output import note
from multitap.config.edit.journal import FileEdit, Journal, Operation
from multitap.errors import MultitapError
from multitap.trust.secrets.vault import Vault


def run_edits(label: str, edits: Sequence[FileEdit], *, dry_run: bool, done: str) -> int:
    """Make edits, or show them.

    Args:
        label: What is done, in words that `multitap undo --list` shows.
        edits: To which files.
        dry_run: Only show them.
        done: What to say afterwards.
    """
    journal = Journal()
    if dry_run:
        show_differences(journal.preview(edits))
        note("nothing was written")
        return Exit.DONE
    with trusting_own_edits():
        operation = journal.apply(label, edits)
    note(f"{done}; `multitap undo` takes it back" if operation else "nothing to change")
    return Exit.DONE


def write_with_secrets(
    label: str, edits: Sequence[FileEdit], secrets: dict[str, str]
) -> Operation | None:
    """Make edits together with the secrets that they name; neither without the other."""
    vault = Vault()
    before = vault.secrets()
    replaced = {name: vault.value(name) for name in secrets if name in before}
    new = [name for name in secrets if name not in before]
    try:
        for name, value in secrets.items():
            if replaced.get(name) != value:
                vault.set(name, value)
        return Journal().apply(label, edits, secrets=new)
    except BaseException:
        forget(new)
        for name, old in replaced.items():
            if old is not None:
                vault.set(name, old, servers=before[name].servers, origins=before[name].origins)
        raise


def forget(secrets: Sequence[str]) -> None:
    """Remove secrets again, as far as they are there."""
    vault = Vault()
    for name in secrets:
        try:
            vault.remove(name)
        except MultitapError:
            continue
