"""A real Redis for tests, on a free port, without anything on disk."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, wait_for

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
needs_redis = pytest.mark.skipif(PROGRAM is None, reason="there is no redis-server")


class RedisServer:
    """One that can be stopped and started again at the same address."""

    def __init__(self, *options):
        if PROGRAM is None:
            pytest.skip("there is no redis-server")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="multitap-redis-")
        self._process = None

    def start(self):
        command = [
            *(PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", self._folder.name),
            *self._options,
        ]
        with Path(self._folder.name, "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(self._listens)

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self):
        return self._process.pid

    def close(self):
        self.stop()
        self._folder.cleanup()

    def ask(self, *words):
        """The first line of Redis's answer to a command."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as line:
            line.sendall(" ".join(words).encode() + b"\r\n")
            return line.recv(4096).decode().strip()

    def _listens(self):
        assert self._process.poll() is None, Path(self._folder.name, "log").read_text()
        with contextlib.suppress(OSError):
            return self.ask("PING").endswith(("PONG", "required."))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_redis(*options):
    server = RedisServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()
