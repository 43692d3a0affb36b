"""A process's standard pipes and a clock, served by one thread."""

import heapq
import itertools
import os
import select
import time

STDIN, STDOUT, STDERR = 0, 1, 2


class Pipes:
    """Reads lines, writes bytes and runs what is due; what a line means is for subclasses."""

    chunk = 1 << 20
    """Bytes taken from stdin at once."""

    def __init__(self):
        self.reading = True
        self._parts = []
        self._timers = []
        self._order = itertools.count()

    def line(self, line):
        raise NotImplementedError

    def closing(self):
        """Stdin has ended."""
        self.exit(0)

    def exit(self, code):
        os._exit(code)  # nothing is buffered, so there is nothing to flush

    def after(self, seconds, action, *arguments):
        due = time.monotonic() + seconds
        heapq.heappush(self._timers, (due, next(self._order), action, arguments))

    def write(self, data, to=STDOUT):
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(to, rest) :]

    def run(self):
        while True:
            self._fire()
            wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            ready, _, _ = select.select([STDIN] if self.reading else [], [], [], wait)
            if ready:
                self.read()

    def read(self):
        data = os.read(STDIN, self.chunk)
        if not data:
            self.reading = False
            self.closing()
            return
        head, newline, rest = data.partition(b"\n")
        self._parts.append(head)
        while newline and self.reading:
            line = b"".join(self._parts)
            head, newline, rest = rest.partition(b"\n")
            self._parts = [head]
            self.line(line)

    def _fire(self):
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, _, action, arguments = heapq.heappop(self._timers)
            action(*arguments)


def silence(fd):
    """Close our end of a pipe without freeing its number for the next file opened."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)
