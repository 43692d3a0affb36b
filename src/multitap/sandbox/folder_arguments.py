"""Folders among a program's arguments, which it is meant to work in."""

import os
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from multitap.sandbox.private_places import PrivatePaths, is_within, outermost
from multitap.user_folders import USER_FOLDERS

_SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run"),
    *("/sbin", "/sys", "/usr", "/var/spool", "/System", "/Library", "/private/etc"),
)
"""Places of the system, from which everybody's programs run."""
_WHOLE = (
    *("/", "/home", "/Users", "/opt", "/srv", "/var", "/private", "/private/var"),
    *("/tmp", "/private/tmp"),  # noqa: S108 - as a whole they are not opened
)
"""Folders that hold what belongs to many."""
_TAKES_TEXT = re.compile(r"-\w*[ce]|--eval|--command|--exec")
"""Options before a program's text: `sh -lc`, `node -e`."""


def folder_arguments(
    args: Sequence[str], cwd: Path, home: Path, private: Collection[str]
) -> tuple[str, ...]:
    """The real paths of existing folders that are whole arguments, and may be opened.

    Not the home folder or one around it, nothing hidden in it, no place of the system, nothing
    around or in a private place; and nothing that is only part of a text, or beside a script.

    Args:
        args: The arguments, with variables expanded.
        cwd: Where the program starts.
        home: The user's home folder.
        private: Real paths of private places.
    """
    real_home = os.path.realpath(home)
    folders = (
        os.path.realpath(cwd / word)
        for before, word in pairwise(("", *args))
        if word and not _TAKES_TEXT.fullmatch(before) and os.path.isdir(cwd / word)
    )
    return outermost(path for path in folders if _may_open(path, real_home, private))


def writable_folders(args: Sequence[str], cwd: Path, state: Path | None = None) -> tuple[str, ...]:
    """The folders among a server's arguments that it may write to once they were shown.

    Args:
        args: Its arguments, with variables expanded.
        cwd: The folder in which its program starts.
        state: The state folder of the hub; by default, the user's.
    """
    if not any(os.path.isdir(cwd / word) for word in args):  # the rest takes some milliseconds
        return ()
    home = Path.home().resolve()
    private = PrivatePaths.of_user(home, state or USER_FOLDERS.user_state_path)
    return folder_arguments(args, cwd, home, private.paths)


def _may_open(path: str, home: str, private: Collection[str]) -> bool:
    if path in _WHOLE or is_within(home, path):
        return False
    if any(is_within(path, place) for place in _SYSTEM):
        return False
    # `~/.local/bin`, `~/.config/autostart`: what is written there runs unconfined later.
    if is_within(path, home) and os.path.relpath(path, home).startswith("."):
        return False
    return not any(is_within(path, place) or is_within(place, path) for place in private)
