"""Checks who can change a file, and lists folders that a stranger may have filled.

A file counts only if nobody but the user and root can change it. It may be writable by a group if
that is the user's own: the primary group, of the same name, without other members. Folders on the
way to it must not be writable by others either, unless they are sticky, as `/tmp` is.
"""

import os
import stat
from collections.abc import Callable, Iterator
from errno import EFBIG
from functools import lru_cache
from itertools import islice
from pathlib import Path

from multitap.config.problems import Place, Problem, Severity


def refusal(path: Path, *, within: Path | None = None, named: bool = False) -> Problem | None:
    """Why a file or folder must not be used; None if it may be, or does not exist.

    Args:
        path: The file or folder.
        within: The folder that it must not lead out of, for a project's files.
        named: Whether the user chose it by name: then it may belong to somebody else.
    """
    real = Path(os.path.realpath(path))
    if within is not None and not is_within(real, within):
        return Problem(
            severity=Severity.ERROR,
            message="leads out of the project and is not read",
            place=Place(path),
            hint="put the file itself there",
        )
    # Both paths: changing the link has the same effect as changing the file.
    return next(
        (problem for place in (real, path) if (problem := _writers(place, path, named=named))), None
    )


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder, or is the folder, with links resolved."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # no file has such a name
        return False


def is_foreign(status: os.stat_result) -> bool:
    """Whether something belongs to neither the user nor root."""
    # there are no such owners on Windows
    return hasattr(os, "geteuid") and status.st_uid not in {os.geteuid(), 0}


def is_shared(status: os.stat_result) -> bool:
    """Whether others can change something, or own it; the folders around it are not looked at."""
    return is_foreign(status) or _others(status) is not None


def _writers(path: Path, written: Path, *, named: bool) -> Problem | None:
    status = _status(path)
    if status is None:
        return None
    if is_foreign(status) and not named:
        return _problem(written, path, f"belongs to {_user(status.st_uid)}", 'chown "$USER"')
    if who := _others(status):
        return _problem(written, path, f"can be changed by {who}", "chmod go-w")
    for folder in path.parents:
        above = _status(folder)
        # In a sticky folder, others cannot rename or replace what is not theirs.
        if above is None or above.st_mode & stat.S_ISVTX:
            continue
        if folder == path.parent and is_foreign(above) and not named:
            message = f"is in {folder}, which belongs to {_user(above.st_uid)}"
            return _problem(written, path, message, None)
        if who := _others(above):
            message = f"is in {folder}, which can be changed by {who}"
            return _problem(written, folder, message, "chmod go-w")
    return None


def _problem(written: Path, path: Path, message: str, command: str | None) -> Problem:
    from shlex import quote  # noqa: PLC0415 - only where something is wrong

    hint = f"run `{command} {quote(str(path))}`" if command else "use a folder of your own"
    return Problem(
        severity=Severity.ERROR,
        message=f"{message}, so it is not used",
        place=Place(written),
        hint=hint,
    )


def _others(status: os.stat_result) -> str | None:
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        return f"the group {_group(status.st_gid)}"
    return None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


# asked about each file, and about every folder above it
@lru_cache(maxsize=64)
def _is_private(gid: int) -> bool:
    """Whether a group has only this user as a member; root's group is fine, like root."""
    import grp  # noqa: PLC0415 - only a file that a group can write needs it
    import pwd  # noqa: PLC0415

    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    private = gid == user.pw_gid and group.gr_name == user.pw_name
    return private and not {*group.gr_mem} - {user.pw_name}


def _user(uid: int) -> str:
    import pwd  # noqa: PLC0415 - see above

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"


def _group(gid: int) -> str:
    import grp  # noqa: PLC0415 - see above

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


MOST_ENTRIES = 1000
"""Entries of a folder of servers, skills or environments, each of which is opened."""


def entries_of(folder: Path) -> list[Path]:
    """The entries of a folder, in the order of names.

    Raises:
        OSError: It is not a folder, cannot be read, or has more entries.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
    if len(names) > MOST_ENTRIES:
        raise OSError(EFBIG, f"it has more than {MOST_ENTRIES:,} entries")
    return [folder / name for name in sorted(names)]


def files_below(folder: Path, *, skips: Callable[[str], bool]) -> Iterator[Path]:
    """All files below a folder, in a fixed order; links to folders are not followed.

    Args:
        folder: The top folder.
        skips: Whether a folder of this name is left out.
    """
    # Not `os.walk`, which recurses for each level before Python 3.12 and fails with a thousand
    # nested folders.
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                members = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries
                )
        except OSError:
            continue
        yield from (place / name for name, is_folder in members if not is_folder)
        inside = (name for name, is_folder in members if is_folder and not skips(name))
        waiting += (place / name for name in sorted(inside, reverse=True))
