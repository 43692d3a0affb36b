"""What it costs a gateway to be watched: by nobody, by a page, by a page and the terminal.

`python -m bench.eyes` makes 1,000 calls a second and compares the CPU of the gateway per call.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import aiohttp
import anyio
from tests.screens.served import open_served

from bench.clients import pipe_command
from bench.report import Promise, Report, table
from multitap.control.client import ControlClient
from multitap.control.places import sockets
from multitap.screens.live_view import LiveView
from multitap.screens.terminal.app import BEAT

RATE = 1000
"""Calls a second."""
LINES = 8
"""Connections that make them."""
LIMIT = 5.0
"""Percent that both faces may add."""
HISTORY = 5.0
"""Seconds between two looks of the page at its plots; a window has one such look."""
SETTLE = 0.5
"""Seconds of calls before a window begins: opening a face costs once."""
WARM = 3.0
"""Seconds of calls before the first window."""
LAST_LOOK = 10.0
"""Seconds within which every face shows the last call."""


@dataclass(frozen=True)
class Window:
    """What was measured in a few seconds."""

    cpu: float
    """Seconds per call."""
    calls: float
    """A second."""
    rates: list[float]
    """Refreshes a second of each face."""


class Caller:
    """A client that says the same again and again, over its own connection."""

    def __init__(self, url):
        host, port = url.removeprefix("http://").split(":")
        self._address = host, int(port)
        self._session = ""

    async def open(self):
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        head, _ = await self._say({"id": 0, "method": "initialize", "params": hello})
        lines = (line.partition(": ") for line in head.split("\r\n"))
        self._session = next(value for name, _, value in lines if name.lower() == "mcp-session-id")
        await self._say({"method": "notifications/initialized"})
        called = {"name": "bench_echo", "arguments": {"text": "hello"}}
        self._call = self._message({"id": 1, "method": "tools/call", "params": called})

    def _message(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message})
        session = f"mcp-session-id: {self._session}\r\n" if self._session else ""
        version = "mcp-protocol-version: 2025-11-25\r\n" if self._session else ""
        return (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\n{session}{version}"
            f"content-length: {len(body)}\r\n\r\n{body}"
        ).encode()

    async def _say(self, message):
        return await self._exchange(self._message(message))

    async def _exchange(self, data):
        self._writer.write(data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        return head, await self._reader.readexactly(length)

    async def call(self):
        _, body = await self._exchange(self._call)
        assert b'"result"' in body, body

    def close(self):
        self._writer.close()


async def _paced(callers, seconds):
    """Make calls at the rate; how many were made."""
    loop = asyncio.get_running_loop()
    started, made = loop.time(), 0

    async def line(caller):
        nonlocal made
        while True:
            due = made / RATE
            if due >= seconds:
                return
            made += 1
            if (wait := started + due - loop.time()) > 0:
                await asyncio.sleep(wait)
            await caller.call()

    async with anyio.create_task_group() as tasks:
        for caller in callers:
            tasks.start_soon(line, caller)
    return made, loop.time() - started


def _cpu(pid):
    """Seconds that a process has used, all its threads together."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9


@asynccontextmanager
async def page(served):
    """A page that is open on its first place: the stream, and the plots every few seconds."""
    jar = aiohttp.CookieJar(unsafe=True)
    own = {"origin": served.url, "x-multitap-console": "1"}
    async with aiohttp.ClientSession(served.url, cookie_jar=jar, read_bufsize=2**20) as browser:
        (await browser.get(await served.new_link())).close()
        seen = {"frames": 0, "made": 0}

        async def follow():
            async with browser.get("/console/events", timeout=None) as stream:
                async for line in stream.content:
                    if line.startswith(b"data: "):
                        seen["frames"] += 1
                        counters = json.loads(line[6:]).get("counters", {})
                        seen["made"] = counters.get("made", seen["made"])

        async def plot():
            while True:
                async with browser.post("/console/api/history", json={}, headers=own) as response:
                    await response.read()
                await asyncio.sleep(HISTORY)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            tasks.start_soon(plot)
            yield seen
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def terminal(served):
    """What the screen in the terminal asks, as often as it asks."""
    view = LiveView(_client(served))
    seen = {"frames": 0, "made": 0}

    async def pulse():
        async for _ in view.follow():
            seen["frames"] += 1
            seen["made"] = view.recent.made

    async def look():
        while True:
            await view.look()
            await asyncio.sleep(BEAT)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pulse)
        tasks.start_soon(look)
        yield seen
        tasks.cancel_scope.cancel()


NOBODY = "nobody"
FACES = {NOBODY: (), "a page": (page,), "a page and the terminal": (page, terminal)}


def _client(served):
    # the secret of the gateway's user is there
    os.environ["XDG_STATE_HOME"] = str(served.home / ".local" / "state")
    path = sockets(served.home / ".local" / "state" / "multitap")[served.process.pid]
    return ControlClient(path)


async def measured(seconds, rounds):
    """What was measured window by window, each with the name of its `FACES`.

    The windows are short, and each with a face lies between two without: whatever else the
    machine does meanwhile meets them alike.
    """
    program, *args = pipe_command("handshake")
    config = f"[servers.bench]\ncommand = {json.dumps(program)}\nargs = {json.dumps(args)}\n"
    watched = [name for name in FACES if name != NOBODY]
    async with open_served(config) as served, AsyncExitStack() as stack:
        callers = [Caller(served.url) for _ in range(LINES)]
        for caller in callers:
            await caller.open()
            stack.callback(caller.close)
        await _paced(callers, WARM)
        order = [
            NOBODY,
            *(one for pair in zip(watched * rounds, repeat(NOBODY), strict=False) for one in pair),
        ]
        return [(name, await _window(served, callers, FACES[name], seconds)) for name in order]


async def _window(served, callers, faces, seconds):
    """CPU per call, calls a second, and refreshes a second of each face."""
    client, pid = _client(served), served.process.pid
    async with AsyncExitStack() as open_faces:
        seen = [await open_faces.enter_async_context(one(served)) for one in faces]
        await _paced(callers, SETTLE)
        before = (await client.pulse(most=0)).made
        spent, frames = _cpu(pid), [one["frames"] for one in seen]
        made, took = await _paced(callers, seconds)
        spent = _cpu(pid) - spent
        shown = [one["frames"] for one in seen]
        after = (await client.pulse(most=0)).made
        assert after - before == made, "a call was not counted"
        with anyio.fail_after(LAST_LOOK):
            while any(one["made"] != after for one in seen):
                await asyncio.sleep(0.05)
        rates = [(now - first) / took for now, first in zip(shown, frames, strict=True)]
        return Window(spent / made, made / took, rates)


def _more(found):
    """By how many percent each window costs more than its neighbours without a face, by name."""
    more = {name: [] for name in FACES}
    for at in range(1, len(found), 2):
        (_, before), (name, window), (_, after) = found[at - 1 : at + 2]
        more[name].append((window.cpu / ((before.cpu + after.cpu) / 2) - 1) * 100)
    return more


async def run(*, quick: bool) -> Report:
    found = await measured(HISTORY, 2 if quick else 9)
    more = _more(found)
    rows = []
    for name in FACES:
        windows = [window for named, window in found if named == name]
        rates = zip(*(window.rates for window in windows), strict=True)
        rows.append(
            (
                name,
                f"{statistics.median(window.cpu for window in windows) * 1e6:.1f} µs",
                f"{statistics.median(more[name]):+.1f} %" if more[name] else "-",
                f"{min(more[name]):+.1f} to {max(more[name]):+.1f} %" if more[name] else "-",
                f"{min(window.calls for window in windows):.0f}",
                ", ".join(f"{min(rate):.0f}" for rate in rates) or "-",
            )
        )
    columns = ("watched by", "CPU per call", "more", "from, to", "calls a second", "refreshes")
    both = statistics.median(more["a page and the terminal"])
    promise = Promise("CPU that a page and the terminal add to a call", LIMIT, both, " %")
    return Report("Eyes", columns, rows, [promise])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of minutes")
    wanted = parser.parse_args()
    started = time.monotonic()
    report = asyncio.run(run(quick=wanted.quick))
    print(table(report.columns, report.rows))
    with contextlib.suppress(IndexError):
        promise = report.promises[0]
        print(f"{promise.words}: {promise.measured:.1f}{promise.unit}, at most {promise.limit:g}")
    print(f"took {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
