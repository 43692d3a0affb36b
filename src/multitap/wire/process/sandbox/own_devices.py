"""Opens the terminals and the shared memory that a confined server has made, and no others.

Landlock rules are about folders: one for /dev/pts would open the terminals at which the user types,
and one for /dev/shm the memory of the user's other programs.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .calling_process import CallingProcess

_TERMINALS, _MEMORY = "/dev/pts/", "/dev/shm/"  # noqa: S108 - no file of ours
_FOR_TERMINALS = os.O_ACCMODE | os.O_NONBLOCK
_FOR_MEMORY = os.O_ACCMODE | os.O_TRUNC
_MOST = 4096
_PERMISSIONS = 0o777


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
                    return os.open(f"/proc/self/fd/{place}", opening & ~os.O_NOFOLLOW)
                finally:
                    os.close(place)
        if len(self._made) >= _MOST:
            raise OSError(errno.EMFILE, "too much shared memory")
        permissions = mode & _PERMISSIONS & ~caller.umask
        folder = _open_folder(name)
        try:
            ours = os.open(name, opening | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
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
