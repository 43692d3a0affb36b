"""Several gateways in this process that share one Redis, as replicas do."""

import secrets
from contextlib import AsyncExitStack, asynccontextmanager

from multitap.cluster.redis_coordinator import open_redis
from multitap.gateway.fronts.http_sessions import SessionLimits
from multitap.gateway.replicas.replica_bus import ReplicaIdentity
from tests.gateway.talking import gate


class Replicas:
    """All of them; each can go away without a word to the others."""

    def __init__(self):
        self.gates = []
        self.alive = set()
        self._stacks = []

    def __getitem__(self, number):
        return self.gates[number]

    def port(self, number):
        return int(self.gates[number].url.rpartition(":")[2].partition("/")[0])

    async def open(self, url, settings, namespace, key, options):
        name = f"r{len(self.gates)}"
        stack = AsyncExitStack()
        self._stacks.append(stack)
        coordinator = await stack.enter_async_context(open_redis(url, namespace=namespace))
        self.alive.add(name)
        replica = ReplicaIdentity(name, coordinator, key, self.alive.__contains__)
        self.gates.append(
            await stack.enter_async_context(gate(settings, replica=replica, **options))
        )

    async def close(self):
        for stack in reversed(self._stacks):
            await stack.aclose()


@asynccontextmanager
async def replicas(redis_server, *settings, limits=SessionLimits(), tokens=()):
    """One for each of these settings."""
    opened, namespace, key = Replicas(), secrets.token_hex(8), secrets.token_bytes(32)
    options = {"limits": limits, "tokens": tokens}
    try:
        for one in settings:
            await opened.open(redis_server.url, one, namespace, key, options)
        yield opened
    finally:
        await opened.close()
