"""What a gateway's processes cost: CPU and memory, without the servers behind it."""

import os
import signal
import time
from pathlib import Path

from bench.clients import SERVERS

PROC = Path("/proc")


def cpu(root):
    """Seconds of CPU that a gateway's processes have used, ended threads included."""
    return sum(_clock(pid) for pid in _own(root))


def resident(root):
    """Megabytes that a gateway's processes have in memory."""
    pages = sum(int((PROC / str(pid) / "statm").read_text().split()[1]) for pid in _own(root))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def family(root):
    """The process and all below it, each with the time of its start."""
    children, started = {}, {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        started[int(entry.name)] = fields[19]
    found, todo = {}, [root]
    while todo:
        pid = todo.pop()
        if pid in started:
            found[pid] = started[pid]
            todo += children.get(pid, [])
    return found


def end(members):
    """End those that are still the processes they were; a gateway may leave its servers behind."""
    for pid, started in members.items():
        if family(pid).get(pid) == started:
            os.kill(pid, signal.SIGKILL)


def _own(root):
    below = family(root).keys() - {root}  # the root's own arguments may name the server
    return [root, *(pid for pid in below if str(SERVERS) not in _command(pid))]


def _command(pid):
    try:
        return (PROC / str(pid) / "cmdline").read_text()
    except OSError:
        return ""


def _clock(pid):
    # What clock_getcpuclockid(3) gives: the clock of a whole process, to the nanosecond.
    return time.clock_gettime((~pid << 3) | 2)
