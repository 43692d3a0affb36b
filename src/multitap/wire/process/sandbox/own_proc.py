"""Opens for a confined process what /proc says about that process itself.

Landlock knows files, not names: the rule for /proc/self is one for the process that made it, and a
process that starts later has none. All of /proc would show it the arguments of other programs.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .kernel import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_OPENAT2 = 437
_STAY = 0b1111  # no other file system, no link of any kind, nothing above the folder
_KEPT = os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOFOLLOW


def own_place(path: str, leader: int, thread: int) -> tuple[str, str] | None:
    """The folder in which a process finds itself by a path, and the rest; None: it does not."""
    for start, folder in (
        ("/proc/self", f"/proc/{leader}"),
        (f"/proc/{leader}", f"/proc/{leader}"),
        ("/proc/thread-self", f"/proc/{leader}/task/{thread}"),
    ):
        if path == start or path.startswith(f"{start}/"):
            return folder, path[len(start) :].strip("/") or "."
    return None


def open_own(place: tuple[str, str], flags: int, check: Callable[[], None]) -> int:
    """Open a file or folder of a process's own to be read.

    Args:
        place: Of `own_place`.
        flags: What the process asked for.
        check: Raises if the process is gone, whose id may be another's by now.

    Raises:
        OSError: There is no such file, or the path leads away from the process.
    """
    folder, rest = place
    base = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        check()
        how = struct.pack("=QQQ", (flags & _KEPT) | os.O_CLOEXEC, 0, _STAY)
        name = ctypes.c_char_p(os.fsencode(rest))
        return syscall(_OPENAT2, base, name, ctypes.c_char_p(how), len(how))
    finally:
        os.close(base)
