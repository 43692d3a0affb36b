"""Reads files that may be a stranger's, and notices changes of them, without blocking.

A folder can contain a pipe, a socket or a link to a device under the name of a file. Opening a pipe
waits until somebody writes to it, which may be never, and a file may grow while it is read.
"""

import os
import stat
from errno import EFBIG, EINVAL
from pathlib import Path
from typing import BinaryIO

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
    return status.st_mtime_ns, status.st_size, status.st_ino
