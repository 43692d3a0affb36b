"""Gateways of a cluster as real processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import anyio
from anyio import to_thread

from multitap.control import places
from tests.cluster.redis_server import free_port
from tests.waiting import wait_for


class GatewayProcess:
    """`multitap serve --http` with more options, in a home of its own.

    Args:
        folder: Has its log and its home.
        config: What it serves.
        options: More for the command line.
        port: Where; any if not given.
        console: Whether it has one.
        source: Another version of the package.
    """

    def __init__(self, folder, config, *options, port=None, console=False, source=None):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._multitap = [sys.executable, "-m", "multitap", "--config", str(config)]
        self._command = [
            *(*self._multitap, "serve", *(() if console else ("--no-console",))),
            *("--http", f"127.0.0.1:{self.port}", *options),
        ]
        self.log = Path(folder, f"gateway-{self.port}.log")
        home = Path(folder, f"home-{self.port}")
        home.mkdir(exist_ok=True)
        self.data, self.state = home / "data", home / "state"
        self._env = {
            **os.environ,
            "HOME": str(home),
            "XDG_STATE_HOME": str(self.state),
            "XDG_DATA_HOME": str(self.data),
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        }
        if source is not None:
            self._env["PYTHONPATH"] = str(source)
        self.process = None

    def start(self):
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env
            )

    def wait_up(self):
        def is_up():
            text = self.log.read_text()
            assert self.process.poll() is None, text
            return re.search("^serving", text, re.MULTILINE)

        wait_for(is_up)

    def ask(self, *words):
        """The output of a command of the same user."""
        command = [*self._multitap, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=self._env)
        return done.stdout

    @contextlib.contextmanager
    def following(self, *words):
        """Within the block, a command of the same user runs; the value is what it has printed."""
        path = self.log.with_name(f"followed-{'-'.join(words)}")
        with path.open("wb") as output:
            follower = subprocess.Popen(
                [*self._multitap, *words], stdin=subprocess.DEVNULL, stdout=output, env=self._env
            )
        try:
            yield path.read_text
        finally:
            follower.kill()
            follower.wait()

    @property
    def control_socket(self):
        """Where its screens ask."""
        (found,) = places.sockets(self.state / "multitap")
        return found

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


@contextlib.contextmanager
def running(*gateways):
    try:
        for one in gateways:
            if one.process is None:
                one.start()
        for one in gateways:
            one.wait_up()
        yield gateways
    finally:
        stopping = [threading.Thread(target=one.stop) for one in gateways]
        for one in stopping:
            one.start()
        for one in stopping:
            one.join()


@contextlib.asynccontextmanager
async def running_beside(*gateways):
    """The same for gateways that need what this loop runs, such as their way to Redis."""
    stack = contextlib.ExitStack()
    await to_thread.run_sync(stack.enter_context, running(*gateways))
    try:
        yield gateways
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(stack.close)
