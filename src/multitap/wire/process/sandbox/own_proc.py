"""Opens files below /proc/self for a confined process.

Landlock rules are about files, not names: a rule for /proc/self applies to the process that made
it, not to later ones. All of /proc would expose the arguments of other programs.
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
    """The /proc folder of the process that a path means, and the rest; None for other paths."""
    for start, folder in (
        ("/proc/self", f"/proc/{leader}"),
        (f"/proc/{leader}", f"/proc/{leader}"),
        ("/proc/thread-self", f"/proc/{leader}/task/{thread}"),
    ):
        if path == start or path.startswith(f"{start}/"):
            return folder, path[len(start) :].strip("/") or "."
    return None


def open_own(place: tuple[str, str], flags: int, check: Callable[[], None]) -> int:
    """Open a file or folder below a process's own /proc for reading.

    Args:
        place: Of `own_place`.
        flags: The requested flags.
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
