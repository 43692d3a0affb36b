"""One user's machine: clients on pipes, their gateway, and servers that leave marks."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.waiting import PATIENCE, wait_for

SERVER = """
import json, os, sys, threading, time
mark = sys.argv[1]
with open(mark, "a") as file:
    file.write(f"{os.getpid()}\\n")
lock = threading.Lock()
def say(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
        sys.stdout.flush()
def tool(name):
    return {"name": name, "inputSchema": {"type": "object"}}
TOOLS = [
    tool(name) for name in ("pid", "folder", "variable", "arguments", "slow", "echo", "roots")
]
roots, asked = [], threading.Event()
def call(name, given):
    match name:
        case "pid": return str(os.getpid())
        case "folder": return os.getcwd()
        case "variable": return os.environ.get(given["name"], "")
        case "roots":
            if not asked.is_set():
                say({"id": "roots", "method": "roots/list"})
                asked.wait()
            return roots[0]
        case "arguments": return " ".join(sys.argv[2:])
        case "slow":
            open(given["begun"], "w").close()
            while not os.path.exists(given["until"]):
                time.sleep(0.01)
            return "at last"
        case _: return given["text"]
def answer(message):
    params = message.get("params") or {}
    match message["method"]:
        case "initialize":
            if "elicitation" in params["capabilities"]:
                TOOLS.append(tool("ask"))
            return {"protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}, "resources": {"subscribe": True}},
                    "serverInfo": {"name": "marked", "version": "1"}}
        case "tools/list": return {"tools": TOOLS}
        case "resources/list": return {"resources": [{"uri": "x://a", "name": "a"}]}
        case "tools/call":
            text = call(params["name"], params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}]}
        case "ping" | "resources/subscribe": return {}
def work(message):
    result = answer(message)
    if result is None:
        say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    else:
        say({"id": message["id"], "result": result})
for line in sys.stdin:
    message = json.loads(line)
    if message.get("id") == "roots":
        roots.extend(root["uri"] for root in message["result"]["roots"])
        asked.set()
    elif "id" in message and "method" in message:
        threading.Thread(target=work, args=(message,), daemon=True).start()
"""


class PipedClient:
    """A client that talks to its own `multitap serve`."""

    def __init__(self, process):
        self.process = process
        self._received = b""
        self._answers = {}
        self.notifications = []
        self._next = 0

    def send(self, method, params=None, *, answered=True):
        """Send a request; returns its id."""
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if answered:
            self._next += 1
            message["id"] = self._next
        self._write(message)
        return self._next

    def _write(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, number, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while number not in self._answers:
            left = deadline - time.monotonic()
            assert left > 0, f"no answer to {number}"
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 1 << 20)
                assert data, f"the client's gateway ended: {self.process.wait()}"
                self._take(data)
        return self._answers.pop(number)

    def _take(self, data):
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message.get("method") == "roots/list":
                roots = {"roots": [{"uri": self._roots}]}
                self._write({"jsonrpc": "2.0", "id": message["id"], "result": roots})
            elif "method" in message:
                self.notifications.append(message["method"])
            else:
                assert message["id"] not in self._answers
                self._answers[message["id"]] = message

    def ask(self, method, params=None):
        answer = self.answer(self.send(method, params))
        assert "result" in answer, answer
        return answer["result"]

    def greet(self, roots=None):
        self._roots = roots
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"roots": {}} if roots else {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        hello = self.ask("initialize", params)
        self.send("notifications/initialized", answered=False)
        return hello

    def tools(self):
        return {tool["name"] for tool in self.ask("tools/list")["tools"]}

    def begin(self, tool, **arguments):
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    def call(self, tool, **arguments):
        answer = self.answer(self.begin(tool, **arguments))
        assert "result" in answer, answer
        return answer["result"]["content"][0]["text"]

    def leave(self):
        """Close the pipes; returns the exit code."""
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Machine:
    """A home with nothing in it, and folders to work in."""

    def __init__(self, root, stack):
        self.root = root
        self.home = root / "home"
        self.home.mkdir()
        (root / "server.py").write_text(SERVER)
        self.stack = stack
        self.python = sys.executable
        self.user = {}
        """How `subprocess` starts a program of the user, if that is another one."""
        self.env = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "MULTITAP_SANDBOX": "off",
        }

    @property
    def gateways(self):
        return self.home / ".local/state/multitap/gateways"

    def folder(self, name):
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        return folder

    def server(self, name, *words, cwd=None, **env):
        """The table of a server that leaves its mark in a file of this name."""
        program = str(self.root / "server.py")
        args = ["-S", program, str(self.mark(name)), *words]
        lines = [f"[servers.{name}]", f'command = "{self.python}"', f"args = {json.dumps(args)}"]
        lines += [f'cwd = "{cwd}"'] if cwd else []
        lines += [f"env.{key} = {json.dumps(value)}" for key, value in env.items()]
        return "\n".join((*lines, ""))

    def mark(self, name):
        return self.root / f"{name}.mark"

    def starts(self, name):
        """How often a server was started."""
        mark = self.mark(name)
        return len(mark.read_text().split()) if mark.exists() else 0

    def configure(self, text, folder=None):
        """Write the user's own configuration."""
        path = self.home / ".config/multitap/multitap.toml" if folder is None else folder
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def become(self, user, python, search):
        """Let everything belong to another user."""
        self.python, self.env = python, {**self.env, "PYTHONPATH": search, "PATH": os.defpath}
        self.user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)

    def start(self, *arguments, folder=None, env=None, **options):
        """A `multitap` process."""
        return subprocess.Popen(
            [self.python, "-P", "-m", "multitap", *arguments],
            cwd=folder or self.folder("work"),
            env={**self.env, **(env or {})},
            start_new_session=True,
            **self.user,
            **options,
        )

    def run(self, *arguments, **options):
        """Run a command; returns its exit code and what it wrote."""
        process = self.start(
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        with process:
            out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def client(self, *arguments, **options):
        """A client that has not said anything yet."""
        with (self.root / "client.log").open("ab") as log:
            process = self.start(
                "serve",
                *arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                **options,
            )
        self.stack.callback(_end, process)
        return PipedClient(process)

    def joined(self, *arguments, **options):
        """A client after its handshake."""
        client = self.client(*arguments, **options)
        client.greet()
        return client

    def running(self):
        """The processes in the background, by id."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                own = f"HOME={self.home}".encode() in (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if own and b"--background" in words:
                found.append(int(path.name))
        return sorted(found)

    @property
    def pid(self):
        (pid,) = self.running()
        return pid


def _end(process):
    for stream in (process.stdin, process.stdout):
        stream.close()
    if process.poll() is None:
        process.kill()
    process.wait()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def open_machine():
    """While entered, a machine; afterwards nothing of it runs."""
    # not below pytest's folder, whose path is too long for sockets
    with TemporaryDirectory(prefix="mt-") as folder, ExitStack() as stack:
        root = Path(folder)
        machine = Machine(root, stack)
        try:
            yield machine
        finally:
            stack.close()
            for pid in machine.running():
                os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not machine.running())
            started = [int(pid) for path in root.glob("*.mark") for pid in path.read_text().split()]
            wait_for(lambda: not any(map(is_running, started)))
