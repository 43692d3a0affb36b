"""New content of a file, without a name until it is complete: a killed writer leaves nothing."""

import os
from pathlib import Path

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
