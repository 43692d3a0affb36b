"""Tells whether a confined server holds a socket.

Confined servers run as our own user. Each has a mark that it can never remove, and that everything
it starts inherits: a limit on file locks, which nobody can raise without privileges, and which has
no other effect, since Linux ignores it. Together with a seccomp filter and without any way to new
privileges, nothing else has it; browsers and containers have filters, too, but not this limit. See
`wire/process/sandbox/confinement.py`, which sets it.
"""

import math
import os
import re
import time
from typing import NamedTuple

_PROC = "/proc"
_FIRST = "1"
"""A process that everybody sees, unless /proc hides those of others."""
_FILTERED = re.compile(rb"^NoNewPrivs:\t1$.*^Seccomp:\t2$", re.MULTILINE | re.DOTALL)
_MARKED = re.compile(rb"^Max file locks +\d+ +\d+ ", re.MULTILINE)
_SETTLED = 60.0
"""Seconds after which an unconfined process stays so: a server is confined just after its start."""
_LONGEST = 16 * 1024  # bytes of a file about a process; a page, in fact
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class _Process(NamedTuple):
    """What is known of a process."""

    inode: int
    """Of its folder in /proc: another process with the same id has another."""
    is_confined: bool
    is_settled: bool
    """Whether that cannot change any more."""

    @classmethod
    def of(cls, pid: str, inode: int) -> "_Process":
        age = _age(pid)  # first: it may be confined after we look
        is_confined = _is_marked(pid)
        return cls(inode, is_confined, is_confined or age > _SETTLED)


class SocketHolders:
    """Looks at the processes of this machine; remembers those that it has looked at."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._looked = float("-inf")

    def is_confined(self, inode: int, since: float) -> bool | None:
        """Whether a confined server holds a socket; None if that is unknown.

        Args:
            inode: The socket.
            since: When it was last seen to exist (`time.monotonic()`): an older look at the
                processes may lack its holder.
        """
        # one look serves all connections that came before it: it takes about 6 µs for each process
        if self._looked < since:
            self._look()
        confined = [pid for pid, process in self._processes.items() if process.is_confined]
        can_hide = _FIRST not in self._processes
        if not confined and not can_hide:
            return False
        name = f"socket:[{inode}]"
        # each thread can have descriptors of its own, and the first one may have ended
        for thread in (thread for pid in confined for thread in _threads(pid)):
            holds = _holds(thread, name)
            if holds:
                return True
            can_hide |= holds is None
        return self._is_unseen(name, may_be_confined=can_hide)

    def _is_unseen(self, name: str, *, may_be_confined: bool) -> bool | None:
        """False if an unconfined process holds a socket, or only such can hide that they do.

        A confined process can put a connection where no process has it, such as into the queue of
        another socket, so that it is not enough that none has it.
        """
        others = [pid for pid, process in self._processes.items() if not process.is_confined]
        is_anyone_hidden = False
        # clients are usually younger than most, and we have the most descriptors
        for pid in sorted(
            others, key=lambda pid: (pid != str(os.getpid()), int(pid)), reverse=True
        ):
            holds = _holds(pid, name)
            if holds:
                return False
            is_anyone_hidden |= holds is None and _is_own(pid)
        return False if is_anyone_hidden and not may_be_confined else None

    def _look(self) -> None:
        now = time.monotonic()
        processes: dict[str, _Process] = {}
        with os.scandir(_PROC) as entries:
            for entry in entries:
                if not entry.name.isdecimal():
                    continue
                inode, process = entry.inode(), self._processes.get(entry.name)
                if process is None or process.inode != inode or not process.is_settled:
                    process = _Process.of(entry.name, inode)
                processes[entry.name] = process
        self._processes, self._looked = processes, now


def _is_marked(pid: str) -> bool:
    """Whether a process is confined; one that has ended is not."""
    return bool(_FILTERED.search(_read(pid, "status")) and _MARKED.search(_read(pid, "limits")))


def _age(pid: str) -> float:
    """The seconds since a process was started; 0 if unknown."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    started = int(fields[19]) / _TICKS if len(fields) > 19 else math.inf  # noqa: PLR2004 - see proc(5)
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _is_own(pid: str) -> bool:
    user = b"%d" % os.geteuid()
    return (
        re.search(rb"^Uid:\t\d+\t" + user + rb"\t", _read(pid, "status"), re.MULTILINE) is not None
    )


def _read(pid: str, name: str) -> bytes:
    """A file about a process, which everybody may read."""
    try:
        # plain calls here and below: `Path` takes several times as long
        handle = os.open(f"{_PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, _LONGEST)
    except OSError:
        return b""
    finally:
        os.close(handle)


def _holds(pid: str, name: str) -> bool | None:
    """Whether a process has a descriptor of that name; None if it does not show what it has."""
    folder = f"{_PROC}/{pid}/fd"
    is_hidden = False
    try:
        for descriptor in os.listdir(folder):  # noqa: PTH208 - as above
            try:
                if os.readlink(f"{folder}/{descriptor}") == name:  # noqa: PTH115 - the same
                    return True
            except PermissionError:
                is_hidden = True
            except OSError:  # it was closed
                continue
    except PermissionError:
        return None
    except OSError:  # it has ended
        return False
    return None if is_hidden else False


def _threads(pid: str) -> list[str]:
    """The threads of a process, as paths below /proc; it may have ended, too."""
    try:
        return [f"{pid}/task/{thread}" for thread in os.listdir(f"{_PROC}/{pid}/task")]  # noqa: PTH208 - as above
    except OSError:
        return []
