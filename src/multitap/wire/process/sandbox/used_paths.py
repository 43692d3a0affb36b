"""Which system call arguments are paths, and whether they are written to."""

from __future__ import annotations

import os

_AT_FDCWD = -100
CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

USED_PATHS = {
    "open": ((None, 0, 1),),
    "openat": ((0, 1, 2),),
    "creat": ((None, 0, True),),
    "mknod": ((None, 0, True),),
    "mknodat": ((0, 1, True),),
    "mkdir": ((None, 0, True),),
    "mkdirat": ((0, 1, True),),
    "unlink": ((None, 0, True),),
    "unlinkat": ((0, 1, True),),
    "rmdir": ((None, 0, True),),
    "truncate": ((None, 0, True),),
    "rename": ((None, 0, True), (None, 1, True)),
    "renameat": ((0, 1, True), (2, 3, True)),
    "renameat2": ((0, 1, True), (2, 3, True)),
    "link": ((None, 0, False), (None, 1, True)),
    "linkat": ((0, 1, False), (2, 3, True)),
    "symlink": ((None, 1, True),),
    "symlinkat": ((1, 2, True),),
    "execve": ((None, 0, False),),
    "execveat": ((0, 1, False),),
}
"""By call: for each path where its folder is, where the path is, and where the flags are that say
whether it is opened for writing, or whether it is; None: the folder that the process is in."""
CHANGES = tuple(
    name for name, paths in USED_PATHS.items() if any(kind is True for *_, kind in paths)
)
"""Calls that change a path whatever their flags are."""


class UsedPath:
    """One path of one call: the descriptor of its folder, the pointer to it, what for."""

    def __init__(self, folder: int, pointer: int, *, changes: bool) -> None:
        self.folder = folder
        self.pointer = pointer
        self.changes = changes


def used_paths(name: str, arguments: list[int]) -> list[UsedPath]:
    """The paths of a call with these arguments."""
    paths: list[UsedPath] = []
    for folder, path, kind in USED_PATHS.get(name, ()):
        changes = kind if isinstance(kind, bool) else bool(arguments[kind] & CHANGING)
        where = _AT_FDCWD if folder is None else to_signed(arguments[folder])
        paths.append(UsedPath(where, arguments[path], changes=changes))
    return paths


def to_signed(word: int) -> int:
    """A descriptor in a register, which may be negative, such as `AT_FDCWD`."""
    return (word & 0xFFFFFFFF) - (1 << 32 if word & 0x80000000 else 0)
