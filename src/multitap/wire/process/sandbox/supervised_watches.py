"""Watches folders for a confined server, if it may know the names in them.

Landlock does not restrict `inotify`, which tells the names of files that others use in a folder.
"""

from __future__ import annotations

import ctypes
import errno
import os

from .calling_process import AT_FDCWD, SYMLINK_NOFOLLOW, is_inside, real_path
from .kernel import syscall
from .syscall_filter import machine
from .syscall_numbers import ARCHITECTURES
from .used_paths import to_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .calling_process import CallingProcess

_ADD = ARCHITECTURES[machine()][1]["inotify_add_watch"]
_DONT_FOLLOW = 0x02000000


class SupervisedWatches:
    """The watches of one server.

    Args:
        read: The files and folders that it may read.
        listed: Folders that it may list as well, but not what is in them.
    """

    def __init__(self, read: Sequence[str], listed: Sequence[str]) -> None:
        self._read = tuple(read)
        self._listed = frozenset(listed)

    def add(self, caller: CallingProcess, arguments: list[int]) -> int:
        """Add a watch; returns its number.

        Raises:
            OSError: It is refused, or fails.
        """
        number, pointer, mask = to_signed(arguments[0]), arguments[1], arguments[2] & 0xFFFFFFFF
        follow = SYMLINK_NOFOLLOW if mask & _DONT_FOLLOW else 0
        place = caller.place(AT_FDCWD, caller.path(pointer), follow)
        try:
            real = real_path(place)
            if real not in self._listed and not is_inside(real, self._read):
                raise OSError(errno.EACCES, "outside")
            watches = caller.descriptor(number)
            try:
                path = ctypes.c_char_p(b"/proc/self/fd/%d" % place)
                return syscall(_ADD, watches, path, mask & ~_DONT_FOLLOW)
            finally:
                os.close(watches)
        finally:
            os.close(place)
