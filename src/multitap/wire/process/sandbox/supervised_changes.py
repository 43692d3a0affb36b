"""Changes modes, owners, times and sizes of files for a confined server, within its folders.

Landlock restricts none of these (sizes only since Linux 6.2), not even for files that are open to
be read only. The warden opens what a call means, looks where that is, and makes the change itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Self

from .calling_process import AT_FDCWD, EMPTY_PATH, SYMLINK_NOFOLLOW, is_inside, real_path
from .kernel import syscall
from .syscall_filter import machine
from .syscall_numbers import ARCHITECTURES
from .used_paths import to_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .calling_process import CallingProcess

_NUMBERS = ARCHITECTURES[machine()][1]
_PERMISSIONS = 0o1777
_MILLION = 1_000_000
_EMPTY = ctypes.c_char_p(b"")
_SAME = -1  # instead of an owner
_SECONDS, _TWO_TIMES = struct.Struct("=2q"), struct.Struct("=4q")


class SupervisedChanges:
    """The changes of one server.

    Args:
        write: The files and folders that it may change.
        on_denied: Called with the real paths of others.
    """

    def __init__(self, write: Sequence[str], on_denied: Callable[[str], None]) -> None:
        self._write = tuple(write)
        self._on_denied = on_denied
        self._changes = {
            **dict.fromkeys(("chmod", "fchmod", "fchmodat", "fchmodat2"), self._chmod),
            **dict.fromkeys(("chown", "lchown", "fchown", "fchownat"), self._chown),
            **dict.fromkeys(("utime", "utimes", "futimesat", "utimensat"), self._set_times),
            "truncate": self._truncate,
        }

    def make(self, name: str, caller: CallingProcess, arguments: list[int]) -> int:
        """Make a change.

        Raises:
            OSError: It is refused, or fails.
        """
        return self._changes[name](caller, name, arguments)

    def _chmod(self, caller: CallingProcess, name: str, arguments: list[int]) -> int:
        *where, mode = arguments[: 3 if name.startswith("fchmodat") else 2]
        flags = arguments[3] if name == "fchmodat2" else 0
        with self._own(caller, where, flags, is_open=name == "fchmod") as place:
            os.chmod(place.path, mode & _PERMISSIONS)
        return 0

    def _chown(self, caller: CallingProcess, name: str, arguments: list[int]) -> int:
        *where, user, group = arguments[: 4 if name == "fchownat" else 3]
        flags = {"fchownat": arguments[4], "lchown": SYMLINK_NOFOLLOW}.get(name, 0)
        owners = to_signed(user), to_signed(group)
        if owners == (_SAME, _SAME):
            return 0
        # the warden may have powers that the server has lost
        if owners[0] not in {_SAME, os.geteuid()}:
            return -errno.EPERM
        if owners[1] not in {_SAME, os.getegid(), *os.getgroups()}:
            return -errno.EPERM
        with self._own(caller, where, flags, is_open=name == "fchown") as place:
            if os.fstat(place.fd).st_uid != os.geteuid():
                return -errno.EPERM
            return syscall(_NUMBERS["fchownat"], place.fd, _EMPTY, *owners, EMPTY_PATH)

    def _set_times(self, caller: CallingProcess, name: str, arguments: list[int]) -> int:
        *where, pointer = arguments[: 3 if name in {"futimesat", "utimensat"} else 2]
        flags = arguments[3] if name == "utimensat" else 0
        times = self._times(caller, name, pointer) if pointer else None
        is_open = name in {"futimesat", "utimensat"} and not where[1]
        with self._own(caller, where[:1] if is_open else where, flags, is_open=is_open) as place:
            return syscall(_NUMBERS["utimensat"], place.fd, _EMPTY, times, EMPTY_PATH)

    def _times(self, caller: CallingProcess, name: str, pointer: int) -> ctypes.c_char_p:
        """Both times as `utimensat` takes them: seconds and nanoseconds."""
        if name == "utime":
            accessed, changed = _SECONDS.unpack(caller.memory(pointer, _SECONDS.size))
            return ctypes.c_char_p(_TWO_TIMES.pack(accessed, 0, changed, 0))
        data = caller.memory(pointer, _TWO_TIMES.size)
        if name == "utimensat":
            return ctypes.c_char_p(data)
        accessed, first, changed, second = _TWO_TIMES.unpack(data)
        if not (0 <= first < _MILLION and 0 <= second < _MILLION):
            raise OSError(errno.EINVAL, "no time")
        return ctypes.c_char_p(_TWO_TIMES.pack(accessed, first * 1000, changed, second * 1000))

    def _truncate(self, caller: CallingProcess, _name: str, arguments: list[int]) -> int:
        (length,) = struct.unpack("=q", struct.pack("=Q", arguments[1]))
        with self._own(caller, arguments[:1], 0) as place:
            os.truncate(place.path, length)
        return 0

    def _own(
        self, caller: CallingProcess, where: list[int], flags: int, *, is_open: bool = False
    ) -> OwnPlace:
        """Open a file of its own.

        Args:
            caller: Who calls.
            where: A descriptor, a path, or a descriptor and a path relative to it.
            flags: How the path is followed.
            is_open: Whether it is named by a descriptor alone.

        Raises:
            OSError: There is no such file, or it is outside.
        """
        if is_open:
            place = OwnPlace(caller.descriptor(to_signed(where[0])))
        else:
            *folder, path = where
            base = to_signed(folder[0]) if folder else AT_FDCWD
            place = OwnPlace(caller.place(base, caller.path(path), flags))
        if place.is_nameless or is_inside(place.real, self._write):
            return place
        place.close()
        self._on_denied(place.real)
        raise OSError(errno.EACCES, "outside")


class OwnPlace:
    """A file that is about to be changed, by our own descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.path = f"/proc/self/fd/{fd}"
        self.real = real_path(fd)

    @property
    def is_nameless(self) -> bool:
        """Whether it is in no folder: a pipe, memory, or a file that was deleted."""
        is_deleted = self.real.endswith(" (deleted)") and os.fstat(self.fd).st_nlink == 0
        return is_deleted or not self.real.startswith("/")

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
