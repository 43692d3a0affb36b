"""Files that may be a stranger's, files that must not be half written, and the user's folders.

A folder can contain a pipe, a socket or a link to a device under the name of a file. Opening a pipe
waits until somebody writes to it, which may be never, and a file may grow while it is read.
"""

import fcntl
import os
import stat
from errno import EFBIG, EINVAL
from pathlib import Path
from typing import BinaryIO

from platformdirs import PlatformDirs

Stamp = tuple[int, int, int] | None
"""Modification time, size and inode; None if missing."""

_STEP = 64 * 1024
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


def open_regular(path: Path) -> BinaryIO:
    """A file, open for reading.

    Raises:
        OSError: It does not exist, cannot be read, or is not a regular file.
    """
    handle = os.open(path, _FLAGS)
    # Of the open file, not of the name, which may refer to another file by the next call.
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(EINVAL, "it is not a file")
    return os.fdopen(handle, "rb")


def read_regular(path: Path, largest: int) -> bytes:
    """The content of a file.

    Args:
        path: The file.
        largest: Bytes that it may have.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        content = read_up_to(file, largest)
    if len(content) > largest:
        raise OSError(EFBIG, "it is too large")
    return content


def read_up_to(file: BinaryIO, largest: int) -> bytes:
    """The content of an open file; one byte more than `largest` if it is larger.

    A reader reserves all the memory that it is asked for, so the limit itself is not asked for.
    """
    size = os.fstat(file.fileno()).st_size
    content = file.read(min(size, largest) + 1)
    # it has grown since
    while size < len(content) <= largest and (more := file.read(_STEP)):
        content += more
    return content[: largest + 1]


def file_stamp(path: Path) -> Stamp:
    """A value that differs after every change of a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return stamp_of(status)


def stamp_of(status: os.stat_result) -> Stamp:
    """The same from the status of a file that is open."""
    return status.st_mtime_ns, status.st_size, status.st_ino


_PRIVATE = 0o600
_UNNAMED = getattr(os, "O_TMPFILE", 0)  # of Linux
_HANDLES = Path("/proc/self/fd")


def open_unnamed(path: Path) -> int:
    """A descriptor of a new private file, for writing.

    It has no name where the system can do without; otherwise the path, at which one that a killed
    writer left behind is removed. The caller must be the only writer.

    Args:
        path: The name that `give_name` gives it.

    Raises:
        OSError: It cannot be created.
    """
    path.unlink(missing_ok=True)
    if _UNNAMED and _HANDLES.is_dir():
        try:
            return os.open(path.parent, os.O_WRONLY | _UNNAMED | os.O_CLOEXEC, _PRIVATE)
        except OSError:  # not on this file system
            pass
    # O_EXCL follows no link, which could redirect the content
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)


def give_name(handle: int, path: Path) -> None:
    """Give a complete file its name, unless it has one.

    Raises:
        OSError: It cannot have this name.
    """
    if os.fstat(handle).st_nlink:
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # with the descriptor of a folder: without one, `os.link` would link the entry in `/proc`
        # itself, and not the file that it leads to
        os.link(_HANDLES / str(handle), path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)


USER_FOLDERS = PlatformDirs("multitap", appauthor=False)
"""Each is looked up when it is asked for: the environment may change it."""


def is_private(place: Path) -> bool:
    """Whether only the user can access a folder; one in `/tmp` may belong to anyone."""
    try:
        status = place.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not stat.S_IMODE(status.st_mode) & 0o077


def try_lock(handle: int) -> bool:
    """Lock an open file for this process; False if another one has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def bundles_folder() -> Path:
    """Where bundles are unpacked, each in a folder named after its digest."""
    return USER_FOLDERS.user_data_path / "bundles"
