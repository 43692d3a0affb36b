"""`multitap state`: backs up configuration and state, restores and checks them."""

import os
import time
from pathlib import Path

import click

from multitap.cli.options import FILE, CommandGroup
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
    help=f"Also secrets, logins and tokens, encrypted with a passphrase  [env: {VARIABLE}]",
)


@click.group(cls=CommandGroup)
def state() -> None:
    """Back up configuration and state, restore and check them"""


@state.command()
@click.argument("path", type=FILE, metavar="FILE")
@_secrets_option
def backup(path: Path, *, with_secrets: bool) -> int:
    """Write a consistent copy of configuration and state to FILE

    Gateways may run meanwhile. The key of the vault and values in a keyring are never in it.
    """
    passphrase = _passphrase(is_new=True) if with_secrets else None
    manifest = backups.make_backup(path, _folders(), passphrase)
    note(f"{path} has {counted(len(manifest.files), 'file')}; only you can read it")
    if passphrase is None:
        advise("secrets, logins and tokens are not in it; `--secrets` adds them")
    return Exit.DONE


@state.command()
@click.argument("path", type=FILE, metavar="FILE")
@_secrets_option
def restore(path: Path, *, with_secrets: bool) -> int:
    """Put the configuration and state of FILE in place of the current ones

    The current ones are moved aside. No gateway may run.
    """
    folders = _folders()
    if running := gateways(folders.state):
        pids = ", ".join(str(live.about.pid) for live in running)
        complain(f"a gateway runs ({pids}), and would overwrite what is restored", "stop it first")
        return Exit.FAILED
    passphrase = _passphrase(is_new=False) if with_secrets else None
    for before in backups.restore_backup(path, folders, passphrase):
        note(f"what was there is now in {before}")
    note(f"restored {path}")
    return Exit.DONE


@state.command()
@click.argument("path", type=FILE, metavar="[FILE]", required=False)
def check(path: Path | None) -> int:
    """Check the databases of the state directory, or the backup in FILE"""
    if path is not None:
        manifest, _ = backups.read_backup(path)
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.at))
        secrets = "with" if manifest.has_secrets else "without"
        files = counted(len(manifest.files), "file")
        say(f"{path}: {files} of {made}, {secrets} secrets, by Multitap {manifest.multitap}")
        return Exit.DONE
    is_fine = True
    for name, problem in backups.check_databases(_folders().state):
        say(f"{name}: {problem or 'ok'}")
        is_fine = is_fine and not problem
    if not is_fine:
        advise("stop the gateway, and `multitap state restore` a backup")
    return Exit.DONE if is_fine else Exit.FAILED


def _folders() -> backups.UserFolders:
    return backups.UserFolders(
        config=USER_FOLDERS.user_config_path,
        state=state_directory(),
        data=USER_FOLDERS.user_data_path,
    )


def _passphrase(*, is_new: bool) -> str:
    if given := os.environ.get(VARIABLE):
        passphrase = given
    else:
        passphrase = click.prompt(
            "Passphrase", hide_input=True, err=True, confirmation_prompt=is_new
        )
    if is_new and len(passphrase) < _SHORTEST:
        raise backups.BackupError(f"a passphrase has at least {_SHORTEST} characters")
    return passphrase
