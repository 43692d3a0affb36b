"""Terminals for programs under test: a bare one to type into, and tmux to see what it shows."""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from contextlib import contextmanager

from tests.waiting import PATIENCE

SIZE = (24, 80)
REDRAW = 0.3
"""Seconds; a redraw is over by then, and so is the wait for the rest of a key."""


class Person:
    """Types into a terminal, and reads what is written to it."""

    def __init__(self, master, process):
        self._master = master
        self.process = process
        self.seen = ""

    def press(self, keys):
        os.write(self._master, keys.encode())

    def type(self, line):
        self.press(f"{line}\n")

    def reads(self, text):
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(text, self.seen)):
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found

    def ends(self):
        """Wait for the end of the program; its exit code and all that it wrote meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if not select.select([self._master], [], [], 0.1)[0]:
                continue
            try:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # nobody has the other end any more
                break
        return self.process.wait(PATIENCE), self.seen

    def hang_up(self):
        """Close the terminal, as its window is closed."""
        os.close(self._master)
        self._master = None

    def close(self):
        if self._master is not None:
            self.hang_up()


@contextmanager
def terminal(command, **environment):
    """A program in a terminal of its own, which is its controlling one."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))

    def become_leader():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", **environment},
        preexec_fn=become_leader,  # noqa: PLW1509 - there are no threads in a test
    ) as process:
        os.close(slave)
        person = Person(master, process)
        try:
            yield person
        finally:
            process.kill()
            person.close()


class Tmux:
    """A tmux server of its own, with one program in it."""

    def __init__(self, folder, command, size=SIZE, **environment):
        self._tmux = (shutil.which("tmux"), "-S", str(folder / "tmux"), "-f", os.devnull)
        rows, columns = size
        words = [f"{key}={value}" for key, value in environment.items()]
        self._run("new-session", "-d", "-x", str(columns), "-y", str(rows), "env", *words, *command)

    def press(self, *keys):
        self._run("send-keys", *keys)

    def type(self, text):
        self._run("send-keys", "-l", text)

    def screen(self, *, escapes=False):
        return self._run("capture-pane", "-p", *(["-e"] if escapes else []))

    def shows(self, text):
        """Wait until the screen has the text; what it shows then."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(text, screen := self.screen()):
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
        return screen

    def hides(self, text):
        """Wait until the screen is without the text, and not only for the moment of a redraw.

        A key right after Escape would count as one pressed with Alt, so this takes longer than a
        program waits for it.
        """
        deadline = time.monotonic() + PATIENCE
        last_seen = time.monotonic()
        while time.monotonic() - last_seen < REDRAW:
            if re.search(text, screen := self.screen()):
                last_seen = time.monotonic()
            assert time.monotonic() < deadline, screen
            time.sleep(0.02)

    def pid(self):
        return int(self._run("display-message", "-p", "#{pane_pid}"))

    def is_alive(self):
        """Whether the program, and tmux with it, still runs."""
        found = subprocess.run([*self._tmux, "has-session"], check=False, capture_output=True)
        return found.returncode == 0

    def kill(self):
        if self.is_alive():
            self._run("kill-server")

    def _run(self, *words):
        ended = subprocess.run(
            [*self._tmux, *words], check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        return ended.stdout
