"""Reads files that a stranger may have put there: without waiting, and never more than a limit.

A folder can hold a pipe, a socket or a link to a device under the name of a file. To open a pipe
waits until somebody writes to it, which may be never, and a file may grow while it is read.
"""

import os
import stat
from errno import EFBIG, EINVAL
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


def open_regular(path: Path) -> BinaryIO:
    """A file, open for reading.

    Raises:
        OSError: It is not there, cannot be read, or is not a regular file.
    """
    handle = os.open(path, _FLAGS)
    # Of what is open now, not of the name: that may mean something else by the next call.
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(EINVAL, "it is not a file")
    return os.fdopen(handle, "rb")


def read_regular(path: Path, largest: int) -> bytes:
    """All that a file holds.

    Args:
        path: Which.
        largest: Bytes that it may have.

    Raises:
        OSError: It cannot be read, is not a regular file, or holds more.
    """
    with open_regular(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(EFBIG, "it is too large")
    return content
