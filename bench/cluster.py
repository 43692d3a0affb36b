"""What a cluster costs: a call on its owner, a forwarded one, and what more workers bring."""

import asyncio
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bench.clients import pipe_command
from bench.gateway.load import Connection
from bench.gateway.processes import cpu
from bench.report import Promise, Report, micro

SERVERS = ("one", "two", "three", "four")
"""Spread over the workers, so that each owns some."""
PARALLEL = 16
OWNER_LIMIT = 30e-6
FORWARD_LIMIT = 3.0
WORKER_LIMIT = 1.6
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def run(*, quick: bool) -> Report:
    calls = 400 if quick else 4000
    blocks = 3 if quick else 8
    if shutil.which("redis-server") is None:
        return Report("Clusters", ("", "CPU per call"), [("no redis-server", "-")], [])
    with TemporaryDirectory() as folder, ExitStack() as stack:
        config = _config(Path(folder))
        redis = stack.enter_context(_redis(folder))
        alone = stack.enter_context(_gateway(folder, config))
        pair = [stack.enter_context(_gateway(folder, config, "--cluster", redis)) for _ in "ab"]
        for one in (alone, *pair):
            await one.warm()
        own, forwarded = await _ways(pair, redis)
        ways = {
            "one gateway": (alone, [alone], "one"),
            "a replica that owns the server": (own[0], [own[0]], own[1]),
            "a replica that forwards": (forwarded[0], pair, forwarded[1]),
        }
        cost = {}
        for parallel in (1, PARALLEL):
            best = dict.fromkeys(ways, math.inf)
            for _ in range(blocks):
                for name, (at, spending, server) in ways.items():
                    best[name] = min(best[name], await _cost(at, spending, server, calls, parallel))
            cost[parallel] = best
    rates = {
        "1 worker": await _rate(1, calls * 4, blocks),
        "2 workers, each server on one": await _rate(2, calls * 4, blocks),
        "2 workers, `replicas = 2`": await _rate(2, calls * 4, blocks, replicas=2),
    }
    rows = [(name, micro(cost[1][name]), micro(cost[PARALLEL][name]), "-") for name in cost[1]]
    rows = [(*row, "-", "-") for row in rows]
    rows += [
        (
            name,
            "-",
            micro(rate.cost),
            f"{rate.possible:,.0f}",
            f"{rate.calls:,.0f}",
            f"{rate.busy:.0%}",
        )
        for name, rate in rates.items()
    ]
    alone_rate, shared_rate, pool_rate = (rate.possible for rate in rates.values())
    base, owner, through = (cost[PARALLEL][name] for name in ways)
    return Report(
        "Clusters",
        (
            "",
            "CPU per call, one at a time",
            f"{PARALLEL} at a time",
            "calls per second, a core for each worker",
            "on this machine",
            "busy",
        ),
        rows,
        [
            Promise(
                "a call on its owner, more than alone",
                OWNER_LIMIT * 1e3,
                (owner - base) * 1e3,
                " ms",
            ),
            Promise("a forwarded call, times a local one", FORWARD_LIMIT, through / owner),
            Promise("1 worker, times the calls of 2", 1 / WORKER_LIMIT, alone_rate / pool_rate),
            Promise(
                "the same, each server on one of them", 1 / WORKER_LIMIT, alone_rate / shared_rate
            ),
        ],
    )


class Gateway:
    def __init__(self, folder, config, *options):
        self.port = _free_port()
        home = Path(folder, f"home-{self.port}")
        home.mkdir()
        command = [
            *(sys.executable, "-m", "multitap", "--config", str(config), "serve", "--no-console"),
            *("--http", f"127.0.0.1:{self.port}", *options),
        ]
        env = {**os.environ, "HOME": str(home), "MULTITAP_SANDBOX": "off"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
        )

    async def warm(self):
        with anyio.fail_after(120):
            while not await self._answers():
                await anyio.sleep(0.2)

    async def _answers(self):
        try:
            for server in SERVERS:
                await _call(Connection(self.port), server)
        except (OSError, KeyError):
            return False
        return True


@contextmanager
def _gateway(folder, config, *options):
    gateway = Gateway(folder, config, *options)
    try:
        yield gateway
    finally:
        gateway.process.terminate()
        gateway.process.wait()


@contextmanager
def _redis(folder):
    port = _free_port()
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", "", "--dir", folder],
        stdout=subprocess.DEVNULL,
    )
    try:
        time.sleep(1)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def _ways(pair, redis):
    """A replica and a server that it owns, and one with a server that it does not own."""
    done = subprocess.run(
        [sys.executable, "-m", "multitap", "cluster", "status", "--cluster", redis, "--json"],
        capture_output=True,
        check=True,
        text=True,
    )
    for replica in json.loads(done.stdout)["replicas"]:
        if replica["owns"]:
            own = next(one for one in pair if f":{one.port}/" in replica["url"])
            other = next(one for one in pair if one is not own)
            return (own, replica["owns"][0]), (other, replica["owns"][0])
    raise RuntimeError("nobody owns anything")


async def _cost(at, spending, server, calls, parallel):
    lines = [Connection(at.port) for _ in range(parallel)]
    for line in lines:
        await _call(line, server)
    before = sum(cpu(one.process.pid) for one in spending)

    async def work(line):
        for _ in range(calls // parallel):
            await _call(line, server)

    async with anyio.create_task_group() as tasks:
        for line in lines:
            tasks.start_soon(work, line)
    spent = sum(cpu(one.process.pid) for one in spending) - before
    for line in lines:
        line.close()
    return spent / (calls // parallel * parallel)


class Stream(asyncio.Protocol):
    """Sends one request after the other and looks at nothing but the length of the answers.

    The cores that the gateway is measured on also run this: it has to be light.
    """

    def __init__(self, request, calls):
        self._request = request
        self._left = calls
        self._size = None
        self._got = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data):
        self._got += data
        if self._size is None:
            head, found, _ = self._got.partition(b"\r\n\r\n")
            if not found or not head.startswith(b"HTTP/1.1 200"):
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            self._size = len(head) + 4 + length
        if len(self._got) < self._size:
            return
        self._got = self._got[self._size :]
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        elif not self.done.done():
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, _error):
        if not self.done.done():
            self.done.set_exception(ConnectionError("closed before the last answer"))


async def _rate(count, calls, blocks, *, replicas=1):
    """What `count` workers do with as many connections for each: see `Rate`."""
    with TemporaryDirectory() as folder:
        config = _config(Path(folder), replicas)
        with _gateway(folder, config, "--workers", str(count)) as gateway:
            await gateway.warm()
            return min(
                [await _flood(gateway, count, calls) for _ in range(blocks)],
                key=lambda one: one.cost,
            )


@dataclass(frozen=True)
class Rate:
    """What a gateway did under load."""

    workers: int
    cost: float
    """CPU seconds of all its processes per call."""
    calls: float
    """Per second of the clock, while the cores also ran the clients and the servers."""
    busy: float
    """The share of the time that each worker had a core."""

    @property
    def possible(self):
        """Calls per second with a core for each worker."""
        return self.workers / self.cost


async def _flood(gateway, count, calls):
    lines = PARALLEL * count
    each = calls // lines
    loop = asyncio.get_running_loop()
    before, since = cpu(gateway.process.pid), time.perf_counter()
    streams = []
    for n in range(lines):
        request = _posted(gateway.port, SERVERS[n % len(SERVERS)])
        _, stream = await loop.create_connection(
            lambda request=request: Stream(request, each), "127.0.0.1", gateway.port
        )
        streams.append(stream)
    with anyio.fail_after(120):
        for stream in streams:
            await stream.done
    seconds = time.perf_counter() - since
    spent = cpu(gateway.process.pid) - before
    made = each * lines
    return Rate(count, spent / made, made / seconds, spent / seconds / count)


def _posted(port, server):
    body, headers = _request(server)
    return (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\n"
        f"{headers}Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def _request(server):
    tool = f"{server}_echo"
    params = {"name": tool, "arguments": {"text": "x"}, "_meta": _META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = f"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
    return json.dumps(body), headers


async def _call(line, server):
    body, headers = _request(server)
    reply = await line.exchange("/mcp", body.encode(), headers.encode())
    return json.loads(reply.body)["result"]


def _config(folder, replicas=1):
    path = folder / "multitap.toml"
    command, *args = pipe_command()
    path.write_text(
        "\n".join(
            f"[servers.{name}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
            f"replicas = {replicas}"
            for name in SERVERS
        )
    )
    return path


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    report = asyncio.run(run(quick="--quick" in sys.argv))
    for row in report.rows:
        print(*row, sep="\t")
    for promise in report.promises:
        print(
            promise.words, promise.measured, promise.limit, "kept" if promise.kept else "NOT KEPT"
        )
