"""The simplest client there is: it writes lines, reads lines, and never waits for ever."""

import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.waiting import PATIENCE
from tests.zoo.ledger import Ledger
from tests.zoo.modes import MODES, command

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Driver:
    """One running server; leaving the block ends it and all that it left behind."""

    def __init__(self, mode, folder, *options, stateless=False, **environment):
        self.mode = mode
        self.ledger = Ledger(folder)
        self.stateless = stateless or MODES[mode].era == "stateless"
        self.heard = []
        self._rest = b""
        self._next_id = 100_000  # out of reach of servers that guess
        self._stderr = folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                command(mode, *options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={"PATH": os.defpath, **self.ledger.env, **environment},
                start_new_session=True,
                bufsize=0,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for child in self.ledger.children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(PATIENCE)

    @property
    def stderr(self):
        return self._stderr.read_bytes()

    @property
    def text(self):
        """The text of the last answer."""
        return self.message["result"]["content"][0]["text"]

    @property
    def message(self):
        return json.loads(self.heard[-1])

    def line(self, patience=PATIENCE):
        """The next line without its end; nothing when stdout ended or time is up."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            data = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self.heard.append(line)
        return line

    def unfinished(self):
        """What stdout holds after its last newline, once it has ended."""
        while self.line() is not None:
            continue
        return self._rest

    def send(self, method, params=None, **envelope):
        params = {**(params or {}), "_meta": META} if self.stateless else params or {}
        message = {"jsonrpc": "2.0", "method": method, "params": params, **envelope}
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def reply(self, request_id, **outcome):
        line = json.dumps({"jsonrpc": "2.0", "id": request_id, **outcome})
        self.process.stdin.write(line.encode() + b"\n")

    def post(self, method, params=None):
        """Send a request and do not wait; its id."""
        self._next_id += 1
        self.send(method, params, id=self._next_id)
        return self._next_id

    def post_call(self, tool, **arguments):
        return self.post("tools/call", {"name": tool, "arguments": arguments})

    def request(self, method, params=None):
        return self.answer(self.post(method, params))

    def call(self, tool, **arguments):
        return self.answer(self.post_call(tool, **arguments))

    def answer(self, request_id, patience=PATIENCE):
        """The answer to a request; nothing when stdout ended or time is up."""
        return self.find(lambda message: message.get("id") == request_id, patience)

    def notification(self, method):
        return self.find(lambda message: message.get("method") == method)

    def find(self, fits, patience=PATIENCE):
        while (line := self.line(patience)) is not None:
            message = _parse(line)
            if isinstance(message, dict) and fits(message):
                return message
        return None

    def connect(self):
        """The handshake, or what the newer era has instead; its result or error."""
        if self.stateless:
            return self.request("server/discover")
        version = {"protocolVersion": "2025-11-25", "capabilities": {}}
        answer = self.request("initialize", version)
        self.send("notifications/initialized")
        return answer

    def probe(self):
        """Ask an older server for what only the newer era has; the request's id."""
        self._next_id += 1
        self.send("server/discover", {"_meta": META}, id=self._next_id)
        return self._next_id

    def tools(self, **params):
        answer = self.request("tools/list", params)
        return answer and answer["result"]["tools"]

    def close_stdin(self):
        self.process.stdin.close()

    def exit_code(self, patience=PATIENCE):
        return self.process.wait(patience)

    @property
    def ended(self):
        """Whether `exit_code` was asked for and given."""
        return self.process.returncode is not None

    def lives(self):
        return self.process.poll() is None


def _parse(line):
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def state(pid):
    """The kernel's letter for a process: R, S, T, Z; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
