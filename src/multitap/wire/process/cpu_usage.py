"""The CPU time of a program and its descendants, from the kernel."""

import os
from contextlib import suppress

from multitap.records import dataclass

_STATE, _TIMES, _THREADS = (
    0,
    slice(11, 15),
    17,
)  # of /proc/PID/stat, counted after the program's name
_LONGEST = 64 * 1024  # bytes of a file
_MOST = 64  # processes that are counted; a launcher has a handful


@dataclass(frozen=True, slots=True)
class CpuUsage:
    seconds: float
    """CPU time used so far, that of ended and awaited children included."""
    runnable: bool
    """Whether one of its processes runs or waits for a CPU at this moment."""
    waiting: bool
    """Whether one of them waits for a disk."""


def cpu_usage(pid: int) -> CpuUsage | None:
    """The CPU usage of a process and its descendants; None if it has ended, or not on Linux."""
    ticks, found = 0, False
    states: set[bytes] = set()
    family = [pid]
    for member in family:  # grows while it is walked
        fields = _stat(member)
        if not fields:
            continue
        found = True
        ticks += sum(map(int, fields[_TIMES]))
        states.add(fields[_STATE])
        if len(family) < _MOST:
            family += _children(member, threads=int(fields[_THREADS]))
    if not found:
        return None
    return CpuUsage(ticks / os.sysconf("SC_CLK_TCK"), b"R" in states, b"D" in states)


def _stat(pid: int) -> list[bytes]:
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []
    return [] if fields[_STATE] == b"Z" else fields


def _children(pid: int, *, threads: int) -> list[int]:
    """The child processes of all its threads; empty if the kernel has no such list."""
    children: list[int] = []
    with suppress(OSError):
        tasks = f"/proc/{pid}/task"
        for task in os.listdir(tasks) if threads > 1 else (pid,):  # noqa: PTH208 - see `_read`
            children += map(int, _read(f"{tasks}/{task}/children").split())
    return children


def _read(path: str) -> bytes:
    """Read a short file; without pathlib, which is slow, since hundreds are read per second."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _LONGEST)
    finally:
        os.close(file)
