"""`multitap self`: how to update this installation, and how to remove it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from multitap.cli.options import CommandGroup
from multitap.cli.set_up.install import installed_in
from multitap.cli.terminal import Exit, TypedLines, advise, complain, is_somebody_there, note, say
from multitap.config.sources import state_directory
from multitap.control.places import sockets
from multitap.errors import counted
from multitap.files import USER_FOLDERS
from multitap.installation import Installation
from multitap.trust.vault import Vault, VaultError
from multitap.version import VERSION


class InstalledFolder(msgspec.Struct, frozen=True):
    """A folder that Multitap has on this machine."""

    path: Path
    about: str
    size: int
    """Bytes of everything in it."""


@click.group("self", cls=CommandGroup)
def self_() -> None:
    """Manage this installation of Multitap"""


@self_.command("update")
def update_self() -> int:
    """Say how Multitap was installed, and how to update it"""
    here = Installation.here()
    note(f"Multitap {VERSION} was installed with {here.tool} {here.origin}")
    if command := here.updating():
        advise(f"`{command}` updates it")
    else:
        advise(f"install a newer one as you did this one; it runs with {here.python}")
    return Exit.DONE


@self_.command("uninstall")
@click.option("--purge", is_flag=True, help="Also remove configuration, state, secrets and bundles")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking")
def uninstall_self(*, purge: bool, yes: bool) -> int:
    """Say how to remove Multitap; with --purge, also remove its data

    Shows everything that would be removed, and asks first.
    """
    if clients := [*installed_in()]:
        note(f"still configured as a server of {', '.join(clients)}")
        advise(f"run `multitap uninstall {' '.join(clients)}` first")
    if not purge:
        advise(f"`{Installation.here().removing()}` removes the program")
        note("its data stays; `multitap self uninstall --purge` removes that too")
        return Exit.DONE
    traces = tuple(find_traces())
    for trace in traces:
        say(f"{trace.path}  ({trace.about}, {_amount(trace.size)})")
    if secrets := _secrets():
        say(f"{secrets} of the vault, in files and in the keyring")
    if not traces:
        note("there is nothing to remove")
    # its servers write to these folders, and would create them again
    elif running := sockets(state_directory()):
        pids = ", ".join(map(str, sorted({*running.values()})))
        complain(
            f"a gateway is running (pid {pids}), and uses these",
            "stop it first",
        )
        return Exit.FAILED
    elif not yes and not _agreed():
        note("nothing was removed; `--yes` removes without asking")
        return Exit.FAILED
    else:
        # first: the file with the names of keyring entries is removed next
        _forget_secrets()
        for trace in traces:
            _remove(trace.path)
        note("removed")
    advise(f"`{Installation.here().removing()}` removes the program")
    return Exit.DONE


def find_traces() -> Iterator[InstalledFolder]:
    """Everything that Multitap keeps for this user."""
    places = {
        USER_FOLDERS.user_config_path: "your configuration",
        state_directory(): "logs, call history, catalogs",
        USER_FOLDERS.user_data_path: "secrets and unpacked bundles",
        USER_FOLDERS.user_cache_path: "caches",
    }
    for path, about in places.items():
        if path.is_symlink() or path.is_dir():
            yield InstalledFolder(path, about, _size(path))


def _secrets() -> str:
    try:
        count = len(Vault().secrets())
    except VaultError:
        # `_forget_secrets` reports it
        return ""
    return counted(count, "secret") if count else ""


def _forget_secrets() -> None:
    """Delete all secrets, including those in the keyring."""
    try:
        vault = Vault()
        for name in tuple(vault.secrets()):
            vault.remove(name)
    except VaultError as exc:
        note(f"the keyring may still have secrets: {exc}")


def _remove(path: Path) -> None:
    """Remove a folder; of a link, only the link itself."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        complain(f"{path} could not be removed entirely")


def _agreed() -> bool:
    if not is_somebody_there():
        return False
    try:
        return TypedLines().ask("remove all of this? [y/N]: ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False


def _size(path: Path) -> int:
    if path.is_symlink():
        return 0
    files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files)


def _amount(size: int) -> str:
    units = ("bytes", "KiB", "MiB")
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(units) - 1:  # noqa: PLR2004 - a KiB
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {units[unit]}"
