"""Simulated servers: what they do is decided by a seed, when they do it by the virtual clock."""

import asyncio
import math
from collections import Counter
from contextlib import asynccontextmanager
from random import Random

import anyio
import msgspec
from msgspec import Raw

from multitap.errors import AnswerTimeout, CannotStart, WireClosed
from multitap.store.store import RecordBacklog
from multitap.wire.jsonrpc import RpcError
from multitap.wire.wire import Evidence

TOOL = {"name": "nonce", "inputSchema": {"type": "object"}}
SAFE = {**TOOL, "name": "safe", "annotations": {"idempotentHint": True}}


def raw(value):
    return Raw(msgspec.json.encode(value))


class SimulatedServer:
    """One server over all its lives."""

    def __init__(self, random):
        self.random = random
        self.extra = 0
        self.wires = set()
        self.runs = Counter()
        """How often each call was carried out."""

    @property
    def tools(self):
        return [TOOL, SAFE, *({**TOOL, "name": f"extra{n}"} for n in range(self.extra))]

    def crash(self):
        for wire in tuple(self.wires):
            wire.end(WireClosed("the program exited", sent=True))

    def change(self):
        self.extra = (self.extra + 1) % 4
        for wire in tuple(self.wires):
            if wire.inbound:
                wire.inbound.notification("notifications/tools/list_changed", Raw(b""), None)


class SimulatedWire:
    kind = "simulated"

    def __init__(self, server):
        self.server = server
        self.closed = asyncio.Event()
        self.fault = None
        self.inbound = None
        self._waiting = set()

    def attach(self, inbound):
        self.inbound = inbound

    def end(self, fault):
        if not self.closed.is_set():
            self.fault = fault
            self.closed.set()
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_exception(WireClosed("the program exited", sent=True))

    async def request(self, request):
        if self.closed.is_set():
            raise WireClosed("the program exited", sent=False)
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        delay = self.server.random.choice([0.0, 0.001, 0.01, 0.2, 3.0])
        timer = loop.call_later(delay, self._answer, answer, request)
        self._waiting.add(answer)
        try:
            async with asyncio.timeout_at(_due(request.deadline)):
                return await answer
        except TimeoutError:
            raise AnswerTimeout("no answer", sent=True) from None
        finally:
            timer.cancel()
            self._waiting.discard(answer)

    def _answer(self, answer, request):
        if answer.done():
            return
        match request.method:
            case "initialize":
                answer.set_result(raw(INITIALIZED))
            case "tools/list":
                answer.set_result(raw({"tools": self.server.tools}))
            case "tools/call":
                nonce = msgspec.json.decode(b"{%b}" % request.params)["arguments"]["n"]
                self.server.runs[nonce] += 1
                answer.set_result(raw({"content": [{"type": "text", "text": str(nonce)}]}))
                if self.server.random.random() < 0.05:
                    self.server.crash()
            case "ping":
                answer.set_result(raw({}))
            case _:
                answer.set_exception(RpcError(-32601, "no such method"))

    async def notify(self, method, params, *, headers=None):
        pass

    def serves_only(self, owner):
        return True

    def establish(self, protocol_version, *, stateless):
        pass

    def is_stopped(self):
        return False

    def evidence(self):
        return Evidence()


INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "simulated", "version": "1"},
}


class World:
    """All servers there could be."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.servers = {}

    def server(self, name):
        return self.servers.setdefault(name, SimulatedServer(self.random))

    @asynccontextmanager
    async def dial(self, name, config):
        server = self.server(name)
        await anyio.sleep(self.random.choice([0.0, 0.01, 0.5]))
        if self.random.random() < 0.1:
            raise CannotStart("no memory", hint="wait")
        wire = SimulatedWire(server)
        server.wires.add(wire)
        try:
            yield wire
        finally:
            server.wires.discard(wire)
            wire.end(None)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.random.choice([0.0, 0.01, 1.0]))


class MemoryStore:
    """Forgets everything, so that one run does not depend on another."""

    path = None
    audit_kept = 0

    def __init__(self):
        self.servers = NoServerNotes()
        self.call_backlog = RecordBacklog(asyncio.Event(), asyncio.Event())
        self.audit_backlog = RecordBacklog(asyncio.Event(), asyncio.Event())
        self.tasks = None

    def audit(self, record):
        pass

    def log(self, record):
        pass


class NoServerNotes:
    def load_catalog(self, server, fingerprint=None):
        return None

    def save_catalog(self, server, fingerprint, catalog):
        pass

    def load_outcomes(self):
        return {}

    def save_outcome(self, server, fingerprint, *, is_up):
        pass

    def load_asking(self):
        return set()

    def save_asking(self, server, fingerprint):
        pass

    def load_choices(self):
        return {}

    def save_choices(self, choices, servers):
        pass


def _due(deadline):
    """When a request is over, by the loop's clock; None: never."""
    return deadline.at if math.isfinite(deadline.at) else None
