"""Three replicas behind a balancer, clients of both eras, and one replica after another killed."""

import asyncio
import json
import random
import sys
import uuid
from collections import Counter
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio import to_thread

from tests.cluster.balancer import Balancer
from tests.cluster.clients import HandshakeClient, Refused, StatelessClient, connector
from tests.cluster.gateways import GatewayProcess, running
from tests.cluster.redis_server import running_redis

SERVER = Path(__file__).with_name("nonce_server.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_few_clients_survive_a_kill_every_five_seconds(tmp_path):
    await survive(tmp_path, seconds=15, clients=8)


@pytest.mark.wide
@pytest.mark.timeout(900)
async def test_a_hundred_clients_survive_a_minute_of_kills(tmp_path):
    await survive(tmp_path, seconds=60, clients=50)


async def survive(folder, *, seconds, clients):
    """Kill a random replica every five seconds, and start it again."""
    ledger, chance = folder / "ledger", random.Random(17)
    config = folder / "mcp.json"
    entry = {"command": sys.executable, "args": [str(SERVER), str(ledger)]}
    config.write_text(json.dumps({"mcpServers": {"nonces": entry}}))
    crowd = Crowd()
    with running_redis() as redis:
        gateways = [GatewayProcess(folder, config, "--cluster", redis.url) for _ in range(3)]
        with running(*gateways):
            ports = [one.port for one in gateways]
            async with (
                Balancer(ports) as balancer,
                aiohttp.ClientSession(connector=connector()) as http,
                anyio.create_task_group() as tasks,
            ):
                for n in range(clients):
                    tasks.start_soon(crowd.work, f"s{n}", StatelessClient(http, balancer.url))
                    tasks.start_soon(crowd.work, f"h{n}", HandshakeClient(http, balancer.url))
                await crowd.wait_all(2 * clients)
                for _ in range(seconds // 5):
                    await anyio.sleep(5)
                    doomed = chance.choice(gateways)
                    doomed.kill()
                    doomed.start()
                    await to_thread.run_sync(doomed.wait_up)
                # whatever happened: in the end every client is served again
                crowd.begin_again()
                await crowd.wait_all(2 * clients)
                crowd.is_over = True
    run = Counter(ledger.read_text().split())
    twice = {nonce for nonce, times in run.items() if times > 1}

    assert not twice
    assert crowd.answered <= run.keys()
    assert not [words for words in crowd.failures if "session" in words.lower()]
    assert all(crowd.failures), "a call failed without a reason"
    assert len(crowd.answered) > 10 * len(crowd.failures), Counter(crowd.failures)


class Crowd:
    """Clients that call without a pause, and what came of it."""

    def __init__(self):
        self.answered = set()
        self.failures = []
        self.is_over = False
        self._served = set()

    async def work(self, name, client):
        if isinstance(client, HandshakeClient):
            await client.open()
        while not self.is_over:
            nonce = f"{name}-{uuid.uuid4().hex}"
            try:
                async with asyncio.timeout(30):
                    await client.call("nonces_note", {"nonce": nonce})
            except (Refused, aiohttp.ClientError, TimeoutError) as exc:
                self.failures.append(str(exc) or type(exc).__name__)
            else:
                self.answered.add(nonce)
                self._served.add(name)
            await anyio.sleep(0.05)

    def begin_again(self):
        self._served.clear()

    async def wait_all(self, count):
        with anyio.fail_after(120):
            while len(self._served) < count:
                await anyio.sleep(0.05)
