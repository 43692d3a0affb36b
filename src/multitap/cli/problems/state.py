"""`multitap state`: backs up configuration and state, restores and checks them."""

import os
import time
from pathlib import Path

import click

from multitap.cli.configuration import load_configuration
from multitap.cli.options import FILE, CommandGroup, CommonOptions, config_options
from multitap.cli.target import gateways
from multitap.cli.terminal import Exit, advise, complain, note, say
from multitap.config.sources import state_directory
from multitap.errors import counted
from multitap.files import USER_FOLDERS
from multitap.store import backup as backups

VARIABLE = "MULTITAP_BACKUP_PASSPHRASE"
_SHORTEST = 8
_secrets_option = click.option(
    "--secrets",
    "with_secrets",
    is_flag=True,
    help=f"Include secrets, logins and tokens, encrypted with a passphrase  [env: {VARIABLE}]",
)


@click.group(cls=CommandGroup)
def state() -> None:
    """Back up configuration and state, restore and check them"""


@state.command()
@click.argument("path", type=FILE, metavar="FILE")
@_secrets_option
@config_options
def backup(options: CommonOptions, path: Path, *, with_secrets: bool) -> int:
    """Write a consistent copy of configuration and state to FILE

    Gateways may run meanwhile. The key of the vault and values in a keyring are never in it.
    """
    passphrase = _passphrase(is_new=True) if with_secrets else None
    manifest = backups.make_backup(path, _folders(options), passphrase)
    note(f"{path} has {counted(len(manifest.files), 'file')}; only you can read it")
    if passphrase is None:
        advise("secrets, logins and tokens are not in it; `--secrets` adds them")
    return Exit.DONE


@state.command()
@click.argument("path", type=FILE, metavar="FILE")
@_secrets_option
@config_options
def restore(options: CommonOptions, path: Path, *, with_secrets: bool) -> int:
    """Put the configuration and state of FILE in place of the current ones

    The current ones are moved aside. No gateway may run.
    """
    folders = _folders(options)
    # only these folders have sockets of gateways
    if running := [
        live
        for kind, folder in folders.items()
        if kind in {"state", backups.OWN_STATE}
        for live in gateways(folder)
    ]:
        pids = ", ".join(str(live.about.pid) for live in running)
        complain(f"a gateway runs ({pids}), and would overwrite what is restored", "stop it first")
        return Exit.FAILED
    passphrase = _passphrase(is_new=False) if with_secrets else None
    for before in backups.restore_backup(
        # read again, after the files are in place: only they say where that state belongs
        path,
        folders,
        passphrase,
        find_own_state=lambda: _folders(options).own_state,
    ):
        note(f"what was there is now in {before}")
    note(f"restored {path}")
    return Exit.DONE


@state.command()
@click.argument("path", type=FILE, metavar="[FILE]", required=False)
@config_options
def check(options: CommonOptions, path: Path | None) -> int:
    """Check the databases in use, or the backup in FILE"""
    if path is not None:
        manifest, _ = backups.read_backup(path)
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.at))
        secrets = "with" if manifest.has_secrets else "without"
        files = counted(len(manifest.files), "file")
        say(f"{path}: {files} of {created}, {secrets} secrets, by Multitap {manifest.multitap}")
        return Exit.DONE
    is_fine = True
    for database, problem in backups.check_databases(_folders(options)):
        say(f"{database}: {problem or 'ok'}")
        is_fine = is_fine and not problem
    if not is_fine:
        advise("stop the gateway, and `multitap state restore` a backup")
    return Exit.DONE if is_fine else Exit.FAILED


def _folders(options: CommonOptions) -> backups.UserFolders:
    state, own = state_directory(), load_configuration(options).state_directory
    return backups.UserFolders(
        config=USER_FOLDERS.user_config_path,
        state=state,
        data=USER_FOLDERS.user_data_path,
        own_state=None if own == state else own,
    )


def _passphrase(*, is_new: bool) -> str:
    passphrase = os.environ.get(VARIABLE, "")
    if not passphrase:
        # a new one is typed twice: nobody could open the backup after a slip
        passphrase = click.prompt(
            "Passphrase", hide_input=True, err=True, confirmation_prompt=is_new
        )
    if is_new and len(passphrase) < _SHORTEST:
        raise backups.BackupError(f"a passphrase has at least {_SHORTEST} characters")
    return passphrase
