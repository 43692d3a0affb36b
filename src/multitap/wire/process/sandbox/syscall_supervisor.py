"""Answers the system calls that a confined process hands to the warden.

A filter sees numbers, not the memory behind pointers, which may change after a check. So a
supervised call is never simply allowed: the warden reads its arguments once, and makes the call
itself with what it read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import time

from .kernel import syscall
from .own_proc import open_own, own_place
from .syscall_filter import NEW_PROCESS, READING, machine
from .syscall_numbers import ARCHITECTURES
from .used_paths import CHANGING, USED_PATHS, to_signed, used_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RECEIVE, _SEND, _IS_VALID, _ADD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_CALL = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_DESCRIPTOR = struct.Struct("=QIIII")
_AS_ANSWER = 2  # the caller gets a descriptor and its number in one step
_LONGEST_PATH = 4096
_SOCKADDR = struct.Struct("=H2s4s8x")
_PAGE = 4096
_AT_FDCWD, _SYMLINK_NOFOLLOW, _EMPTY_PATH = -100, 0x100, 0x1000
_PERMISSIONS = 0o1777
_PATIENCE = 50  # milliseconds that our own proxy may take to accept
_MOST_REPORTED = 64
_MOST_USED = 20_000
_CONTINUE = 1
_COUNT_AGAIN = 0.1  # seconds: a process that tries endlessly must not keep the warden counting


class SyscallSupervisor:
    """The calls of one server.

    Args:
        listener: The descriptor that they arrive on; closed by `close`.
        write: The folders in which it may change modes.
        proxy: The port on loopback that it may connect to; 0: none.
        processes: How many processes it may have at a time.
        proc: Whether each of them may read its own /proc/self.
        count: Counts its processes, by a look at all processes of the machine.
        on_refused: Called with refused addresses.
        on_used: Called with used paths, and whether they are changed; None: not reported.
        on_crowded: Called once when it wants too many processes.
    """

    def __init__(
        self,
        listener: int,
        *,
        write: Sequence[str],
        proxy: int,
        processes: int,
        proc: bool,
        count: Callable[[], int],
        on_refused: Callable[[str], None],
        on_used: Callable[[str, bool], None] | None,
        on_crowded: Callable[[], None],
    ) -> None:
        self.listener = listener
        self._write = tuple(write)
        self._boring = ("/proc/", "/dev/null", "/usr/", "/lib", *(f"{one}/" for one in write[:1]))
        self._proxy = proxy
        self._on_refused = on_refused
        self._on_used = on_used
        self._on_crowded = on_crowded
        self._processes = processes
        self._proc = proc
        self._count = count
        self._free = 0
        """How many more processes it may start before they are counted again."""
        self._full_until = 0.0
        self._is_crowded = False
        self._refused: set[str] = set()
        self._used: set[tuple[str, bool]] = set()
        numbers = ARCHITECTURES[machine()][1]
        self._names = {numbers[name]: name for name in numbers}

    def close(self) -> None:
        os.close(self.listener)

    def answer(self) -> bool:
        """Answer one call; False if there will be no more."""
        buffer = bytearray(_CALL.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, buffer)
        except OSError as exc:
            return exc.errno == errno.ENOENT  # the caller was killed while we looked
        call, pid, _, number, _, _, *arguments = _CALL.unpack(buffer)
        name = self._names.get(number, "")
        result, flags = 0, 0
        try:
            if name in USED_PATHS:
                flags = _CONTINUE  # Landlock decides, whatever we have seen
                if self._on_used is not None:
                    self._note(call, pid, name, arguments, self._on_used)
                if self._proc and name in READING and self._open_own(call, pid, name, arguments):
                    return True
            elif name in NEW_PROCESS:
                result, flags = (0, _CONTINUE) if self._has_room() else (-errno.EAGAIN, 0)
            else:
                result = self._make_call(call, pid, name, arguments)
        except OSError as exc:
            result = 0 if flags else -(exc.errno or errno.EPERM)
        try:
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(call, 0, min(result, 0), flags))
        except OSError:
            pass  # it is gone
        return True

    def _open_own(self, call: int, pid: int, name: str, arguments: list[int]) -> bool:
        """Open a file below the caller's /proc/self for it; False if the path is another one."""
        flags = arguments[READING[name]]
        text = self._memory(call, pid, arguments[READING[name] - 1], _LONGEST_PATH, text=True)
        if not text.startswith(b"/proc/") or flags & (os.O_PATH | CHANGING):
            return False
        place = own_place(os.fsdecode(text.partition(b"\0")[0]), _leader(pid), pid)
        if place is None:
            return False
        ours = open_own(place, flags, lambda: self._check(call))
        try:
            kept = flags & os.O_CLOEXEC
            fcntl.ioctl(self.listener, _ADD, _DESCRIPTOR.pack(call, _AS_ANSWER, ours, 0, kept))
        finally:
            os.close(ours)
        return True

    def _note(
        self,
        call: int,
        pid: int,
        name: str,
        arguments: list[int],
        on_used: Callable[[str, bool], None],
    ) -> None:
        """Report the paths of a call, each once."""
        for used in used_paths(name, arguments):
            text = self._memory(call, pid, used.pointer, _LONGEST_PATH, text=True)
            path = os.fsdecode(text.partition(b"\0")[0])
            if not path.startswith("/"):
                at = "cwd" if used.folder == _AT_FDCWD else f"fd/{used.folder}"
                path = os.path.join(os.readlink(f"/proc/{pid}/{at}"), path)
            whole = os.path.normpath(path)
            if whole.startswith(self._boring) or len(self._used) >= _MOST_USED:
                continue
            if (whole, used.changes) not in self._used:
                self._used.add((whole, used.changes))
                on_used(whole, used.changes)

    def _has_room(self) -> bool:
        """Whether it may have one more process."""
        if self._free <= 0:
            now = time.monotonic()
            if now < self._full_until:
                return False
            self._free = self._processes - self._count()
            if self._free <= 0:
                self._full_until = now + _COUNT_AGAIN
                if not self._is_crowded:
                    self._is_crowded = True
                    self._on_crowded()
                return False
        self._free -= 1
        return True

    def _make_call(self, call: int, pid: int, name: str, arguments: list[int]) -> int:
        if name == "connect":
            return self._connect(call, pid, arguments)
        folder = _AT_FDCWD if name == "chmod" else to_signed(arguments[0])
        path, mode, *rest = arguments if name == "chmod" else arguments[1:]
        flags = rest[0] if name == "fchmodat2" else 0
        text = self._memory(call, pid, path, _LONGEST_PATH, text=True)
        named = os.fsdecode(text.partition(b"\0")[0])
        return self._chmod(_place(pid, folder, named, flags), mode)

    def _connect(self, call: int, pid: int, arguments: list[int]) -> int:
        number, pointer, _ = arguments[:3]
        family, port, address = _SOCKADDR.unpack(self._memory(call, pid, pointer, _SOCKADDR.size))
        here = (socket.inet_ntoa(address), int.from_bytes(port, "big"))
        if family != socket.AF_INET or not self._proxy or here != ("127.0.0.1", self._proxy):
            self._refuse(f"{here[0]}:{here[1]}" if family == socket.AF_INET else "an IPv6 address")
            return -errno.EACCES
        process = os.pidfd_open(_leader(pid))
        try:
            ours = syscall(
                ARCHITECTURES[machine()][1]["pidfd_getfd"], process, to_signed(number), 0
            )
        finally:
            os.close(process)
        with socket.socket(fileno=ours) as theirs:
            return _connect_socket(theirs, here)

    def _chmod(self, place: int, mode: int) -> int:
        try:
            real = os.readlink(f"/proc/self/fd/{place}")
            if not any(real == one or real.startswith(f"{one}/") for one in self._write):
                return -errno.EACCES
            os.chmod(f"/proc/self/fd/{place}", mode & _PERMISSIONS)
        finally:
            os.close(place)
        return 0

    def _memory(self, call: int, pid: int, pointer: int, size: int, *, text: bool = False) -> bytes:
        """The caller's memory at a pointer; for a text, at least up to its end."""
        data = b""
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            # it is the memory of the caller, even if another process gets its id later
            self._check(call)
            while len(data) < size and not (text and b"\0" in data):
                start = pointer + len(data)
                wanted = min(_PAGE - start % _PAGE, size - len(data))  # the next may not be mapped
                part = os.pread(memory.fileno(), wanted, start)
                if not part:
                    raise OSError(errno.EFAULT, "bad address")
                data += part
        return data

    def _check(self, call: int) -> None:
        """Check that the caller still exists."""
        fcntl.ioctl(self.listener, _IS_VALID, struct.pack("=Q", call))

    def _refuse(self, address: str) -> None:
        if address not in self._refused and len(self._refused) < _MOST_REPORTED:
            self._refused.add(address)
            self._on_refused(address)


def _place(pid: int, folder: int, path: str, flags: int) -> int:
    """Open the file that a path of a process means, so that it cannot be exchanged later."""
    base = f"/proc/{pid}/cwd" if folder == _AT_FDCWD else f"/proc/{pid}/fd/{folder}"
    if not path:
        if not flags & _EMPTY_PATH:
            raise OSError(errno.ENOENT, "no path")
        return os.open(base, os.O_PATH | os.O_CLOEXEC)
    last = os.O_NOFOLLOW if flags & _SYMLINK_NOFOLLOW else 0
    return os.open(os.path.join(base, path), os.O_PATH | os.O_CLOEXEC | last)


def _connect_socket(theirs: socket.socket, here: tuple[str, int]) -> int:
    """Connect the caller's socket, without blocking the warden."""
    blocking = not fcntl.fcntl(theirs, fcntl.F_GETFL) & os.O_NONBLOCK
    theirs.setblocking(False)
    try:
        result = -theirs.connect_ex(here)
        if blocking and result == -errno.EINPROGRESS:
            poll = select.poll()
            poll.register(theirs, select.POLLOUT)
            if not poll.poll(_PATIENCE):
                return -errno.ETIMEDOUT
            return -theirs.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return result
    finally:
        if blocking:
            theirs.setblocking(True)


def _leader(thread: int) -> int:
    """The process that a thread belongs to."""
    with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    raise ProcessLookupError(errno.ESRCH, "no such thread")
