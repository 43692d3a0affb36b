"""A gateway in a process of its own, clients that call it, and everything that can happen to it."""

import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import partial

import aiohttp
import anyio

from multitap.wire.jsonrpc import TASKS
from tests.cli.conftest import toml, zoo
from tests.gateway import task_server
from tests.gateway.hostile.raw import Response, stateless
from tests.processes import descendants
from tests.soak.far_server import FarServer
from tests.zoo.ledger import Ledger

IN_TIME = 20.0
"""Seconds for any answer: a server has 5 to start and 3 to answer, and the machine is busy."""
TASK_ENDS = 60.0
"""Seconds for the end of a task: its server may be away for a while."""
LIMITS = {"timeout": 3, "connect_timeout": 5, "health_interval": 2}
CALCULATOR = {"command": sys.executable, "args": ["-m", "multitap.demo.servers.calculator"]}
VICTIMS = {"old": "good_legacy", "new": "good_modern", "both": "good"}
"""Healthy servers that are killed and stopped."""
FAR_VICTIMS = {
    "farnew": ("streamable-http", {"era": "stateless"}),
    "farold": ("streamable-http", {"era": "handshake"}),
    "farsse": ("sse", {}),
}
"""The same over HTTP."""
FAR_TASKS = {"tasksold": "old", "tasksnew": "new"}
"""Servers with tasks, which are killed and stopped too."""
ENDED = ("completed", "failed", "cancelled")
STEADY = ("steady", "farsteady")
"""Servers to which nothing is done: each call of theirs must be answered."""
NUISANCES = {
    "bombs": ("fork_bomb_small",),
    "crashes": ("crash_after_calls",),
    "daemons": ("daemon_child",),
    "dies": ("exit_mid_call",),
    "echoes": ("dup_answer",),
    "floods": ("flood_notifications", "--count", "50000"),
    "garbage": ("garbage_between",),
    "halves": ("half_answer",),
    "huge": ("huge_line", "--bytes", "20000000"),
    "logs": ("flood_logs", "--count", "20000"),
    "loops": ("relist_loop",),
    "lost": ("crash_loop",),
    "stderr": ("flood_stderr",),
    "silent": ("never_answer",),
    "stops": ("sigstop_idle",),
}
"""Servers that do harm by themselves, when their tool `fault` is called or all the time."""
TAKES_TASKS = {"extensions": {TASKS: {}}}
ENDLESS = {"yes": {"command": "yes"}, "zeros": {"command": "cat", "args": ["/dev/zero"]}}


class World:
    """The configuration of the gateway, and its process."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.random = random.Random(seed)
        self.forget()
        self.servers = {"steady": CALCULATOR}
        for name, mode in VICTIMS.items():
            self.servers[name] = zoo(mode, env=self.ledger(name).env, **LIMITS)
        for name, mode in NUISANCES.items():
            self.servers[name] = zoo(*mode, **LIMITS)
        self.far = {"farsteady": FarServer("streamable-http")}
        for name, (transport, more) in FAR_VICTIMS.items():
            self.far[name] = FarServer(transport, **more, **LIMITS)
        for name, era in FAR_TASKS.items():
            program = partial(self._task_program, era)
            self.far[name] = FarServer("streamable-http", program=program, **LIMITS)
        self.servers |= {name: server.entry for name, server in self.far.items()}
        self.configure()

    def forget(self):
        """Start to count."""
        self.outcomes = Counter()
        self.actions = Counter()
        self.steady_failures = []
        self.wrong = []
        self.unanswered = []
        self.unresolved = []
        self.calls = 0

    async def warm_up(self, calls):
        """Wait until it has answered so many."""
        with anyio.fail_after(120):
            while self.outcomes["answered"] < calls:
                await self.call_steady(self.calls)
                await anyio.sleep(0.01)
        self.forget()

    def ledger(self, name):
        folder = self.folder / "ledgers" / name
        folder.mkdir(parents=True, exist_ok=True)
        return Ledger(folder)

    def _task_program(self, era, port):
        return (task_server.__file__, era, port, str(self._runs))

    @property
    def _runs(self):
        return self.folder / "runs"

    def run_twice(self):
        """The numbers of tasks whose computation began more than once."""
        runs = Counter(self._runs.read_text().split())
        return [number for number, times in runs.items() if times > 1]

    def configure(self, **more):
        lines = [f"state_dir = {json.dumps(str(self.folder / 'state'))}"]
        for name, server in {**self.servers, **more}.items():
            lines += [f"[servers.{name}]", *(f"{key} = {toml(server[key])}" for key in server)]
        self.write("\n".join(lines))

    def write(self, text):
        path = self.folder / "multitap.toml"
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)

    @asynccontextmanager
    async def serving(self):
        command = [sys.executable, "-m", "multitap", "serve", "--http", "0"]
        log = (self.folder / "gateway.log").open("w+b")
        for server in self.far.values():
            await server.start()
        self.process = subprocess.Popen(
            [*command, *self._config], stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            with anyio.fail_after(60):
                while not (found := re.search(rb"at (http://\S+)", self.said())):
                    assert self.process.poll() is None, self.said()
                    await anyio.sleep(0.1)
            self.url = found[1].decode()
            async with aiohttp.ClientSession() as self.session:
                yield
        finally:
            self.process.kill()
            self.process.wait()
            for server in self.far.values():
                server.kill()
            log.close()

    def said(self):
        return (self.folder / "gateway.log").read_bytes()

    def memory(self):
        pages = (self._proc / "statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def descriptors(self):
        return len([*(self._proc / "fd").iterdir()])

    @property
    def _config(self):
        return ["-c", str(self.folder / "multitap.toml")]

    @property
    def _proc(self):
        return type(self.folder)(f"/proc/{self.process.pid}")

    async def call(self, server, tool, expected, **arguments):
        """One call, and what became of it."""
        self.calls += 1
        number = self.calls
        try:
            with anyio.fail_after(IN_TIME):
                outcome = await self._ask(number, f"{server}_{tool}", expected, arguments)
        except TimeoutError:
            outcome = "unanswered"
            self.unanswered.append((server, tool, number))
        except aiohttp.ClientError as exc:
            outcome = type(exc).__name__
        self.outcomes[outcome] += 1
        if outcome == "wrong":
            self.wrong.append((server, tool, number))
        if server in STEADY and outcome != "answered":
            self.steady_failures.append((server, number, outcome))

    async def call_task(self, server, n):
        """A call of which a task is made, and what became of it in the end."""
        self.calls += 1
        number = self.calls
        arguments = {"label": n, "seconds": self.random.uniform(0, 2)}
        call = {"name": f"{server}_slow_compute", "arguments": arguments}
        outcome = "task: unresolved"
        with anyio.move_on_after(TASK_ENDS):
            try:
                outcome = await self._follow(number, call, f"computed {n}")
            except aiohttp.ClientError as exc:
                outcome = type(exc).__name__  # nobody has an id yet
        self.outcomes[outcome] += 1
        if outcome == "task: unresolved":
            self.unresolved.append((server, number))
        if outcome == "wrong":
            self.wrong.append((server, "slow_compute", number))

    async def _follow(self, number, call, expected):
        message = (await self._post(number, "tools/call", able=TAKES_TASKS, **call)).message
        if error := message.get("error"):
            return f"error: {(error.get('data') or {}).get('reason', error['code'])}"
        state = message["result"]
        if state["resultType"] != "task":
            return _judge(state, expected)
        follow = {"taskId": state["taskId"], "headers": {"mcp_name": state["taskId"]}}
        while state["status"] not in ENDED:
            await anyio.sleep(0.2)
            with suppress(aiohttp.ClientError):
                answer = await self._post(number, "tasks/get", able=TAKES_TASKS, **follow)
                state = answer.message.get("result", state)  # its server may be away
        if state["status"] != "completed":
            return f"task: {state['status']}"
        outcome = _judge(state["result"], expected)
        return "task: completed" if outcome == "answered" else outcome

    async def _post(self, number, method, **params):
        request = stateless(number, method, **params)
        head, _, body = request.partition(b"\r\n\r\n")
        pairs = (line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        headers = {key: value for key, value in pairs if key not in {"host", "content-length"}}
        async with self.session.post(self.url, data=body, headers=headers) as reply:
            kinds = {"content-type": reply.content_type}
            return Response(reply.status, kinds, await reply.read())

    async def _ask(self, number, name, expected, arguments):
        response = await self._post(number, "tools/call", name=name, arguments=arguments)
        if response.status >= 500:
            return f"http {response.status}"
        message = response.message
        if message["id"] != number:
            return "wrong"
        if error := message.get("error"):
            return f"error: {(error.get('data') or {}).get('reason', error['code'])}"
        if message["result"].get("isError"):
            return "error: tool"
        right = expected is None or response.text == expected
        return "answered" if right else "wrong"

    async def traffic(self, tasks, rate):
        """Calls at a rate, to good and bad servers alike."""
        while True:
            n = self.random.randrange(10**9)
            tasks.start_soon(self.call_other, self.random.choice(STEADY), n)
            tasks.start_soon(self.call_other, self.random.choice([*self.servers]), n)
            tasks.start_soon(self.call_task, self.random.choice([*FAR_TASKS]), n)
            await anyio.sleep(3 / rate)

    async def call_steady(self, n):
        await self.call("steady", "add", str(float(n + 1)), a=n, b=1)

    async def call_other(self, server, n):
        if server == "steady":
            await self.call_steady(n)
        elif server in FAR_TASKS:
            await self.call(server, "greet", f"Hello, {n}!", name=n)
        else:
            await self.call(server, "nonce", str(n), n=n)

    async def chaos(self, tasks, pause):
        """One bad thing after the other."""
        actions = [
            *(self.kill, self.stop, self.kill_far, self.stop_far, self.fault),
            *(self.edit, self.spoil, self.reload, self.strange, self.hang),
        ]
        while True:
            action = self.random.choice(actions)
            self.actions[action.__name__] += 1
            await action(tasks)
            await anyio.sleep(self.random.uniform(0, 2 * pause))

    async def kill(self, _tasks):
        self._signal(signal.SIGKILL)

    async def stop(self, _tasks):
        self._signal(signal.SIGSTOP)

    def _signal(self, number):
        pids = self.ledger(self.random.choice([*VICTIMS])).pids
        if pids and pids[-1] in descendants(self.process.pid):
            with suppress(ProcessLookupError):  # it may end by itself in between
                os.kill(pids[-1], number)

    async def kill_far(self, _tasks):
        server = self.far[self.random.choice([*FAR_VICTIMS, *FAR_TASKS])]
        server.kill()
        await server.start()

    async def stop_far(self, _tasks):
        server = self.far[self.random.choice([*FAR_VICTIMS, *FAR_TASKS])]
        server.stop()
        await anyio.sleep(self.random.uniform(0, 5))
        server.resume()

    async def fault(self, tasks):
        tasks.start_soon(self.call, self.random.choice([*NUISANCES]), "fault", None)

    async def edit(self, _tasks):
        """Add, change or remove servers; the others must not notice."""
        extra = zoo("good", timeout=self.random.randrange(1, 60))
        more = {"extra": extra} if self.random.random() < 0.5 else {}
        if self.random.random() < 0.3:
            name = self.random.choice([*ENDLESS])
            more[name] = ENDLESS[name]
        changed = self.random.choice([*VICTIMS, *FAR_VICTIMS, *FAR_TASKS, *NUISANCES])
        patience = self.random.randrange(20, 40) / 10
        self.configure(**more, **{changed: {**self.servers[changed], "timeout": patience}})

    async def spoil(self, _tasks):
        """Write what cannot be read, as an editor may in between."""
        self.write(self.random.choice(["[servers", "= 1", '[servers.steady]\ncommand = "']))

    async def reload(self, tasks):
        """Ask for it with the command, whatever the file holds at this moment."""
        command = [sys.executable, "-m", "multitap", "reload", *self._config]
        tasks.start_soon(partial(anyio.run_process, command, check=False))

    async def strange(self, tasks):
        """Connect and send what is no request, or only half of one."""
        said = self.random.choice([
            self.random.randbytes(5000),
            b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{",
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500,
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200,
        ])  # fmt: skip
        tasks.start_soon(self._send, said)

    async def _send(self, said):
        port = int(self.url.split(":")[2].partition("/")[0])
        try:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                with anyio.move_on_after(self.random.uniform(0, 3)):
                    await stream.send(said)
                    while True:
                        await stream.receive()
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return  # it was shown the door

    async def hang(self, _tasks):
        """Ask, and leave before the answer comes."""
        asked = stateless(0, "tools/call", name="both_sleep", arguments={"seconds": 1})
        port = int(self.url.split(":")[2].partition("/")[0])
        with socket.socket() as client:
            client.connect(("127.0.0.1", port))
            client.sendall(asked)


def _judge(result, expected):
    if result.get("isError"):
        return "error: tool"
    return "answered" if result["content"][0]["text"] == expected else "wrong"
