"""What the supervisor does with files for a confined server: within its folders, and only that."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import Self

from .calling_process import AT_FDCWD, EMPTY_PATH, SYMLINK_NOFOLLOW, is_inside, real_path
from .kernel import ARCHITECTURES, syscall, to_signed, used_paths
from .seccomp import machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .calling_process import CallingProcess

_NUMBERS = ARCHITECTURES[machine()][1]
# without the bits that let others run a file as its owner
_PERMISSIONS = 0o1777
_MILLION = 1_000_000
_EMPTY = ctypes.c_char_p(b"")
_SAME = -1  # instead of an owner
_SECONDS, _TWO_TIMES = struct.Struct("=2q"), struct.Struct("=4q")


class SupervisedChanges:
    """The changes of one server."""

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
            where: A descriptor, a path, or a descriptor and a path relative to it.
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


_ADD = ARCHITECTURES[machine()][1]["inotify_add_watch"]
_DONT_FOLLOW = 0x02000000


class SupervisedWatches:
    """The watches of one server.

    Args:
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
                # our path is itself a link, to what was opened without following
                return syscall(_ADD, watches, path, mask & ~_DONT_FOLLOW)
            finally:
                os.close(watches)
        finally:
            os.close(place)


_MOST_REPORTED = 64
_MOST_SEEN = 20_000
_DISPENSABLE = ("/__pycache__", "/proc/", "/dev/tty")
"""What programs try to write, and do without."""
_NEW = ("mkdir", "mknod", "link", "symlink")  # if there is something already, that is the failure
_EXISTING = ("unlink", "rmdir", "truncate")
_LINKS = os.O_CREAT | os.O_EXCL


class DeniedChanges:
    """Reports each path once that a server would change, but for its rules."""

    def __init__(self, allowed: Sequence[str], on_denied: Callable[[str], None]) -> None:
        self._allowed = tuple(allowed)
        self._on_denied = on_denied
        self._seen: set[str] = set()
        self._reported: set[str] = set()

    def look(self, caller: CallingProcess, name: str, arguments: list[int]) -> None:
        """Look at a call."""
        flags = {"open": arguments[1], "openat": arguments[2], "creat": os.O_CREAT}.get(name, 0)
        for used in used_paths(name, arguments):
            if not used.changes or len(self._seen) >= _MOST_SEEN:
                continue
            path = caller.whole_path(used.folder, caller.path(used.pointer))
            real = _real(path, follow=name in {"open", "openat", "creat", "truncate"})
            if real in self._seen:
                continue
            self._seen.add(real)
            if not is_inside(real, self._allowed) and _would_work(real, name, flags):
                self.report(real)

    def report(self, real: str) -> None:
        if (
            real not in self._reported
            and len(self._reported) < _MOST_REPORTED
            and not any(part in real for part in _DISPENSABLE)
        ):
            self._reported.add(real)
            self._on_denied(real)


def _real(path: str, *, follow: bool) -> str:
    """The real path of a file, which may not exist yet.

    Raises:
        OSError: Its folder does not exist, either.
    """
    if follow:
        try:
            return _real_existing(path)
        except FileNotFoundError:
            pass
    folder, _, name = path.rstrip("/").rpartition("/")
    return os.path.join(_real_existing(folder or "/"), name)


def _real_existing(path: str) -> str:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return real_path(place)
    finally:
        os.close(place)


def _would_work(real: str, name: str, flags: int) -> bool:
    """Whether a change would succeed without a sandbox: we are the same user, without one."""
    exists = os.path.lexists(real)
    if name.startswith(_NEW) or flags & _LINKS == _LINKS:
        return not exists and os.access(os.path.dirname(real), os.W_OK)
    if name.startswith(_EXISTING) and not exists:
        return False
    if name in {"open", "openat"} and not exists and not flags & os.O_CREAT:
        return False
    is_content = name in {"open", "openat", "creat", "truncate"} and exists
    return os.access(real if is_content else os.path.dirname(real), os.W_OK)


_TERMINALS, _MEMORY = "/dev/pts/", "/dev/shm/"  # noqa: S108 - no file of ours
_FOR_TERMINALS = os.O_ACCMODE | os.O_NONBLOCK
_FOR_MEMORY = os.O_ACCMODE | os.O_TRUNC
_MOST_MEMORY = 4096
_OF_MEMORY = 0o777


class OwnDevices:
    """The terminals and the shared memory of one server."""

    def __init__(self) -> None:
        self._made: set[int] = set()
        """The inodes of its shared memory."""

    def open(self, caller: CallingProcess, path: str, flags: int, mode: int) -> int | None:
        """Open a file of its own; None if the path is of another kind.

        Raises:
            OSError: It is another program's, or there is none.
        """
        terminal = path.removeprefix(_TERMINALS)
        if terminal != path and terminal.isdecimal():  # not what makes them, /dev/pts/ptmx
            return self._open_terminal(caller, terminal, flags)
        if path.startswith(_MEMORY):
            return self._open_memory(caller, path.removeprefix(_MEMORY), flags, mode)
        return None

    def link(self, path: str, other: str) -> bool:
        """Give shared memory of its own a further name; False if the paths are of another kind."""
        if not (path.startswith(_MEMORY) and other.startswith(_MEMORY)):
            return False
        place = self._own_memory(path.removeprefix(_MEMORY))
        try:
            name = other.removeprefix(_MEMORY)
            folder = _open_folder(name)
            try:
                os.link(f"/proc/self/fd/{place}", name, dst_dir_fd=folder, follow_symlinks=True)
            finally:
                os.close(folder)
        finally:
            os.close(place)
        return True

    def unlink(self, path: str) -> bool:
        """Remove a name of shared memory of its own; False if the path is of another kind."""
        if not path.startswith(_MEMORY):
            return False
        place = self._own_memory(path.removeprefix(_MEMORY))
        try:
            os.unlink(path)
            if os.fstat(place).st_nlink == 0:
                self._made.discard(os.fstat(place).st_ino)
        finally:
            os.close(place)
        return True

    def _open_terminal(self, caller: CallingProcess, name: str, flags: int) -> int:
        path = f"{_TERMINALS}{name}"
        # before it is opened: closing it again could end the program at its other end
        if not _is_its_terminal(caller, int(name), os.stat(path).st_rdev):
            raise OSError(errno.EACCES, "the terminal of another program")
        caller.check()
        # the warden leads a session, and must not get a terminal
        return os.open(path, flags & _FOR_TERMINALS | os.O_NOCTTY | os.O_CLOEXEC)

    def _open_memory(self, caller: CallingProcess, name: str, flags: int, mode: int) -> int:
        opening = flags & _FOR_MEMORY | os.O_CLOEXEC | os.O_NOFOLLOW
        if not flags & os.O_EXCL:
            try:
                place = self._own_memory(name)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
            else:
                try:
                    # our path is itself a link, to what was opened without following
                    return os.open(f"/proc/self/fd/{place}", opening & ~os.O_NOFOLLOW)
                finally:
                    os.close(place)
        if len(self._made) >= _MOST_MEMORY:
            raise OSError(errno.EMFILE, "too much shared memory")
        permissions = mode & _OF_MEMORY & ~caller.umask
        folder = _open_folder(name)
        try:
            ours = os.open(name, opening | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        # afterwards: our own umask must not count
        os.fchmod(ours, permissions)
        self._made.add(os.fstat(ours).st_ino)
        return ours

    def _own_memory(self, name: str) -> int:
        """Open shared memory of its own, without a right to use it."""
        folder = _open_folder(name)
        try:
            place = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode) or status.st_ino not in self._made:
            os.close(place)
            raise OSError(errno.EACCES, "the memory of another program")
        return place


def _open_folder(name: str) -> int:
    """Open the folder of shared memory, for a name in it."""
    if "/" in name or name in {"", ".", ".."}:
        raise OSError(errno.EACCES, "no name of shared memory")
    return os.open(_MEMORY, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_its_terminal(caller: CallingProcess, index: int, device: int) -> bool:
    """Whether a process, or its parent, has made a terminal, or it is the one it runs at."""
    parent, terminal = caller.parent_and_terminal
    minor = os.minor(device)
    # as the kernel writes the number of a device into `stat`
    number = minor & 0xFF | os.major(device) << 8 | (minor & ~0xFF) << 12
    return terminal == number or any(_has_made(pid, index) for pid in (caller.pid, parent))


def _has_made(pid: int, index: int) -> bool:
    """Whether a process has the other end of a terminal."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}").endswith("ptmx"):
                with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                    if any(line.split() == ["tty-index:", f"{index}"] for line in file):
                        return True
        except OSError:
            continue
    return False


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
