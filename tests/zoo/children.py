"""Child processes that nobody waits for and that do not go by themselves."""

import os
import signal
import sys
import time

from tests.zoo.pipes import STDERR, STDIN, STDOUT, silence

LINGER = 120
"""Seconds after which a forgotten child ends, so that a failed test leaks for a while only."""


def child(*, keep_pipes=True):
    """Fork a child of the same process group; it holds our pipes open unless told otherwise."""
    pid = os.fork()
    if pid == 0:
        _linger(keep_pipes=keep_pipes)
    return pid


def daemon(*, clean=False):
    """Fork twice, into a session of its own; `clean`: and with an empty environment."""
    ours, theirs = os.pipe()
    between = os.fork()
    if between == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            os.close(theirs)
            _linger(keep_pipes=False, clean=clean)
        os.write(theirs, b"%d" % pid)
        os._exit(0)
    os.close(theirs)
    os.waitpid(between, 0)
    pid = int(os.read(ours, 32))
    os.close(ours)
    return pid


def _linger(*, keep_pipes, clean=False):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not keep_pipes:
        for fd in (STDIN, STDOUT, STDERR):
            silence(fd)
    if clean:  # only a new program image gets a new /proc/PID/environ
        sleep = f"import time; time.sleep({LINGER})"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", sleep], {})
    time.sleep(LINGER)
    os._exit(0)
