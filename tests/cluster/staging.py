"""Several gateways in this process that share one Redis, as replicas do."""

import secrets
from contextlib import asynccontextmanager

import anyio

from multitap.cluster.bus import ReplicaIdentity
from multitap.cluster.redis_coordinator import open_redis
from tests.gateway.talking import gate


class Replicas:
    """All of them, each in a task of its own; each can leave."""

    def __init__(self):
        self.shared = secrets.token_hex(8), secrets.token_bytes(32)
        self.gates = []
        self.alive = set()
        self._stops = []
        self._ended = []

    def __getitem__(self, number):
        return self.gates[number]

    def port(self, number):
        return int(self.gates[number].url.rpartition(":")[2].partition("/")[0])

    async def run(self, url, settings, options, *, task_status):
        namespace, key = self.shared
        name, stop, ended = f"r{len(self.gates)}", anyio.Event(), anyio.Event()
        self._stops.append(stop)
        self._ended.append(ended)
        self.alive.add(name)
        try:
            async with open_redis(url, namespace=namespace) as coordinator:
                replica = ReplicaIdentity(name, coordinator, key, self.alive.__contains__)
                async with gate(settings, replica=replica, **options) as opened:
                    self.gates.append(opened)
                    task_status.started()
                    await stop.wait()
        finally:
            ended.set()

    async def end(self, number):
        """Close one; the others miss it."""
        self.alive.discard(f"r{number}")
        self._stops[number].set()
        await self._ended[number].wait()


@asynccontextmanager
async def replicas(redis_server, *settings, sources=None, **options):
    """One for each of these settings."""
    opened = Replicas()
    async with anyio.create_task_group() as tasks:
        for number, one in enumerate(settings):
            own = {**options, "sources": sources[number]} if sources else options
            await tasks.start(opened.run, redis_server.url, one, own)
        yield opened
        for number in range(len(settings)):
            await opened.end(number)
