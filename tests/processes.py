"""Programs that run while a test looks at them."""

import os
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def process(program):
    with subprocess.Popen(
        [sys.executable, "-S", "-c", f"print(flush=True)\n{program}"], stdout=subprocess.PIPE
    ) as running:
        running.stdout.readline()
        try:
            yield running
        finally:
            running.kill()


def descendants(root):
    """The processes below `root` that still run."""
    below = set()
    for child in _children(root):
        if _runs(child):
            below |= {child}
        below |= descendants(child)
    return below


def time_in_queue(pid):
    """Seconds for which the main thread of a process has waited for a processor."""
    with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as schedstat:  # noqa: PTH123
        return int(schedstat.read().split()[1]) / 1e9


def _children(pid):
    found = []
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as children:  # noqa: PTH123
                found += map(int, children.read().split())
        except OSError:  # the thread has ended meanwhile
            continue
    return found


def _threads(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:  # so has the process
        return []


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
