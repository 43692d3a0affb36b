"""Clients of both eras that call without a pause, and the outcome of each call."""

import asyncio
import json
import random
import sys
import time
import uuid
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import aiohttp
import anyio

from tests.cluster.clients import HandshakeClient, Refused, StatelessClient, connector
from tests.waiting import PATIENCE

SERVER = Path(__file__).with_name("nonce_server.py")


@dataclass(frozen=True)
class Made:
    """One call that is over."""

    nonce: str
    began: float
    ended: float
    failure: str | None = None
    """None: it was answered."""


class NonceLedger:
    """The calls that the server executed, over all its processes."""

    def __init__(self, folder):
        self.path = Path(folder, "ledger")

    def config(self, **more):
        """A configuration with the one server, as `nonces`."""
        entry = {"command": sys.executable, "args": [str(SERVER), str(self.path)], **more}
        path = self.path.with_name("mcp.json")
        path.write_text(json.dumps({"mcpServers": {"nonces": entry}}))
        return path

    @property
    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines()]

    @property
    def executed(self):
        """How often each nonce was executed."""
        return Counter(nonce for nonce, _ in self.lines)

    @property
    def terms(self):
        """The processes in the order in which they executed something."""
        return [int(pid) for pid, _ in groupby(pid for _, pid in self.lines)]

    @property
    def left(self):
        """Processes of the server that still run."""
        own = str(self.path).encode()
        found = []
        for one in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = one.read_bytes().split(b"\0")
            except OSError:
                continue
            if own in words and str(SERVER).encode() in words:
                found.append(int(one.parent.name))
        return found


class Crowd:
    """Clients that call until they are stopped."""

    def __init__(self, *, pause=0.0):
        self.made = []
        self.unopened = []
        self._pause = pause
        self._is_over = False
        self._chance = random.Random(5)

    @property
    def answered(self):
        return {one.nonce for one in self.made if one.failure is None}

    @property
    def failures(self):
        return [one for one in self.made if one.failure is not None]

    async def work(self, name, client):
        if isinstance(client, HandshakeClient):
            while not await self._opened(client):
                await anyio.sleep(0.1)
        while not self._is_over:
            nonce, failure = f"{name}-{uuid.uuid4().hex}", None
            began = time.monotonic()
            arguments = {"nonce": nonce, "pause": self._chance.random() * self._pause}
            try:
                async with asyncio.timeout(PATIENCE):
                    await client.call("nonces_note", arguments)
            except (Refused, aiohttp.ClientError, TimeoutError) as exc:
                failure = str(exc) or type(exc).__name__
            self.made.append(Made(nonce, began, time.monotonic(), failure))
            await anyio.sleep(0.02)

    async def _opened(self, client):
        try:
            await client.open()
        except (Refused, aiohttp.ClientError) as exc:
            self.unopened.append(str(exc) or type(exc).__name__)
            return False
        return True

    async def wait_served(self):
        """Wait until every client has been answered something that it asks from now on."""
        now, names, already = time.monotonic(), self.names, len(self.made)
        with anyio.fail_after(120):
            while names - {
                one.nonce.partition("-")[0]
                for one in self.made[already:]
                if one.failure is None and one.began > now
            }:
                await anyio.sleep(0.05)

    @asynccontextmanager
    async def at_work(self, url, *, stateless, handshake, is_lasting=True):
        """Clients of each era, from the moment all of them are served until the block ends.

        Args:
            url: Whom they call.
            stateless: How many of the new era.
            handshake: How many of the old one.
            is_lasting: Whether somebody answers them at the end of the block.
        """
        self.names = {f"s{n}" for n in range(stateless)} | {f"h{n}" for n in range(handshake)}
        async with (
            aiohttp.ClientSession(connector=connector()) as http,
            anyio.create_task_group() as tasks,
        ):
            for name in sorted(self.names):
                kind = StatelessClient if name.startswith("s") else HandshakeClient
                tasks.start_soon(self.work, name, kind(http, url))
            await self.wait_served()
            try:
                yield self
                if is_lasting:
                    await self.wait_served()
            finally:
                self._is_over = True


def check(crowd, ledger, *, disturbed=()):
    """Assert what holds whatever happened.

    Args:
        crowd: Who called.
        ledger: What was executed.
        disturbed: When calls that were under way may have failed: pairs of moments, from and to.
    """
    executed, failures = ledger.executed, crowd.failures
    late = [
        one
        for one in failures
        if not any(one.began <= end and one.ended >= begin for begin, end in disturbed)
    ]
    terms = ledger.terms

    assert not [nonce for nonce, times in executed.items() if times > 1], "executed twice"
    assert crowd.answered <= executed.keys(), "answered, and not executed"
    assert len(terms) == len(set(terms)), "a process went on after another one had taken over"
    # 404 would say that there is no such session; without Redis it is 503, and the client waits
    assert not [one for one in failures if one.failure.startswith("404")], failures
    assert not late, f"{len(late)} of {len(crowd.made)} calls failed without a cause: {late[:5]}"


def tell(crowd, ledger, kills=()):
    """Print what happened, for a run by hand."""
    words = {}
    for one in crowd.failures:
        words[one.failure] = words.get(one.failure, 0) + 1
    print(f"{len(crowd.made)} calls, {len(crowd.failures)} failed, {len(ledger.terms)} processes")
    for text, times in words.items():
        print(f"  {times} times: {text}")
    slowest = sorted((one.ended - one.began for one in crowd.made), reverse=True)[:3]
    print("  slowest:", ", ".join(f"{seconds:.2f} s" for seconds in slowest))
    for kill in kills:
        served = [one.ended for one in crowd.made if one.began > kill and one.failure is None]
        print(f"  a call begun after the kill was answered {min(served) - kill:.2f} s after it")
