"""The process behind a supervised call: its memory, its descriptors, and what its paths mean."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

from .kernel import ARCHITECTURES, syscall
from .seccomp import machine

# SECCOMP_IOCTL_NOTIF_ID_VALID
_IS_VALID = 0x40082102
_PAGE = 4096
_OPENAT2, _NO_MAGIC_LINKS = 437, 0b10
_LONGEST_PATH = 4096
_OF_CHILDREN = 1  # of Yama: whom a program may look into; more is for administrators
_OF_THREAD = os.O_EXCL  # a descriptor of one thread, since Linux 6.9
AT_FDCWD, SYMLINK_NOFOLLOW, EMPTY_PATH = -100, 0x100, 0x1000


class CallingProcess:
    """The thread that waits for the answer to its call.

    Its id may be another's as soon as it is killed. So whatever is opened by its id is used only
    if the call still waits afterwards.
    """

    __slots__ = ("call", "listener", "pid")

    def __init__(self, listener: int, call: int, pid: int) -> None:
        self.listener = listener
        self.call = call
        self.pid = pid

    @property
    def leader(self) -> int:
        """The process that the thread belongs to."""
        return int(self._status()["Tgid"])

    @property
    def program(self) -> str:
        """The file that it runs."""
        program = os.readlink(f"/proc/{self.pid}/exe")
        self.check()
        return program

    @property
    def has_signal(self) -> bool:
        """Whether a signal waits that would interrupt its call."""
        status = self._status()
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        return bool(pending & ~(int(status["SigBlk"], 16) | int(status["SigIgn"], 16)))

    @property
    def umask(self) -> int:
        """The permissions that files it creates do not get."""
        return int(self._status()["Umask"], 8)

    @property
    def parent_and_terminal(self) -> tuple[int, int]:
        """Its parent, and the number of the terminal that it runs at; 0: none."""
        with open(f"/proc/{self.pid}/stat", "rb") as file:
            # the name of a program comes before, and may have brackets and blanks in it
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[4])

    def check(self) -> None:
        """Check that the call still waits.

        Raises:
            OSError: It was killed, or interrupted.
        """
        fcntl.ioctl(self.listener, _IS_VALID, struct.pack("=Q", self.call))

    def memory(self, pointer: int, size: int, *, text: bool = False) -> bytes:
        """Its memory at a pointer; for a text, at least up to its end."""
        data = b""
        memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.check()
            while len(data) < size and not (text and b"\0" in data):
                start = pointer + len(data)
                length = min(_PAGE - start % _PAGE, size - len(data))  # the next may not be mapped
                data += _read(memory, start, length)
        finally:
            os.close(memory)
        return data

    def path(self, pointer: int) -> str:
        """The path at a pointer."""
        text, end, _ = self.memory(pointer, _LONGEST_PATH, text=True).partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG, "no end")
        return os.fsdecode(text)

    def descriptor(self, number: int) -> int:
        """A descriptor of our own for what one of its own is about.

        Raises:
            OSError: It has none of that number, or is gone.
        """
        process = self._handle()
        try:
            self.check()
            return syscall(ARCHITECTURES[machine()][1]["pidfd_getfd"], process, number, 0)
        finally:
            os.close(process)

    def socket(self, number: int) -> socket.socket:
        """The same for a socket.

        Raises:
            OSError: It has none of that number, or is gone.
        """
        fd = self.descriptor(number)
        try:
            return socket.socket(fileno=fd)
        except OSError:  # it is not a socket
            os.close(fd)
            raise

    def place(self, folder: int, path: str, flags: int = 0) -> int:
        """Open what a path means to it, so that it cannot be exchanged later.

        Args:
            flags: Those of calls such as `fchmodat2`.
        """
        if not path:
            if not flags & EMPTY_PATH:
                raise OSError(errno.ENOENT, "no path")
            if folder != AT_FDCWD:
                return self.descriptor(folder)
        last = os.O_NOFOLLOW if flags & SYMLINK_NOFOLLOW else 0
        base, rest = self._start(folder, path)
        start = os.open(base, os.O_PATH | os.O_CLOEXEC)
        try:
            self.check()
            if not rest:
                return os.dup(start)
            # Links in /proc would lead to what other processes have open, and `/proc/self` to us.
            how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | last, 0, _NO_MAGIC_LINKS)
            name = ctypes.c_char_p(os.fsencode(rest))
            return syscall(_OPENAT2, start, name, ctypes.c_char_p(how), len(how))
        finally:
            os.close(start)

    def whole_path(self, folder: int, path: str) -> str:
        """A path of it as one that means the same to us, by way of its folder in /proc."""
        base, rest = self._start(folder, path)
        return f"{base}/{rest}" if rest else base

    def _start(self, folder: int, path: str) -> tuple[str, str]:
        """Where a path starts, in its folder in /proc, and what is left of it."""
        for start in ("/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"):
            number, _, rest = path.removeprefix(start).partition("/")
            if path.startswith(start) and number.isdecimal():
                return f"/proc/{self.pid}/fd/{number}", rest
        if path.startswith("/"):
            return f"/proc/{self.pid}/root", path.lstrip("/") or "."
        base = "cwd" if folder == AT_FDCWD else f"fd/{folder}"
        return f"/proc/{self.pid}/{base}", path

    def _status(self) -> dict[str, str]:
        with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as file:
            return {
                name: value.strip() for name, _, value in (line.partition(":") for line in file)
            }

    def _handle(self) -> int:
        try:
            return os.pidfd_open(self.pid, _OF_THREAD)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
        return os.pidfd_open(self.leader)


def check_access() -> None:
    """Check that a process may look into those that it starts.

    Raises:
        OSError: The machine forbids it, so that no call of theirs could be supervised.
    """
    process = os.pidfd_open(os.getpid())
    try:
        # containers without further powers may refuse it
        os.close(syscall(ARCHITECTURES[machine()][1]["pidfd_getfd"], process, process, 0))
    except OSError as exc:
        raise OSError(exc.errno, "`pidfd_getfd` is forbidden here") from None
    finally:
        os.close(process)
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        return
    if scope > _OF_CHILDREN and os.geteuid() != 0:
        reason = f"`kernel.yama.ptrace_scope` is {scope}, which keeps programs from watching others"
        raise OSError(errno.EPERM, reason)


def _read(memory: int, start: int, length: int) -> bytes:
    try:
        data = os.pread(memory, length, start)
    except (OSError, OverflowError):
        data = b""
    if not data:
        raise OSError(errno.EFAULT, "bad address")
    return data


def real_path(place: int) -> str:
    """Where the file behind a descriptor is now."""
    return os.readlink(f"/proc/self/fd/{place}")


def is_inside(real: str, places: tuple[str, ...]) -> bool:
    """Whether a real path is one of these places, or in one of them."""
    return any(real == place or real.startswith(f"{place}/") for place in places)
