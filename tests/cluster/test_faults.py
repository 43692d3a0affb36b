"""Three real gateways under load, and what can go wrong between them and Redis."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from tests.cluster.balancer import Balancer
from tests.cluster.clients import HandshakeClient, Refused, StatelessClient, connector
from tests.cluster.crowd import Crowd, NonceLedger, check, tell
from tests.cluster.cut_line import CutLine
from tests.cluster.gateways import GatewayProcess, running, running_beside
from tests.cluster.redis_server import running_redis
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RECOVERY = 10.0
"""Seconds after a fault in which a call may still fail for it: its own patience, and a start."""


@pytest.fixture
def ledger(tmp_path):
    return NonceLedger(tmp_path)


def wide(value):
    return pytest.param(value, marks=pytest.mark.wide)


@asynccontextmanager
async def crowded(gateways, crowd, *, clients):
    async with (
        running_beside(*gateways),
        Balancer([one.port for one in gateways]) as balancer,
        crowd.at_work(balancer.url, stateless=clients, handshake=clients),
    ):
        yield
        assert [one.process.poll() for one in gateways] == [None, None, None]


def cluster_status(url):
    command = [sys.executable, "-m", "multitap", "cluster", "status", "--cluster", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return json.loads(done.stdout)


async def owner_among(gateways, url):
    """The gateway that runs the server."""
    with anyio.fail_after(PATIENCE):
        while True:
            status = await anyio.to_thread.run_sync(cluster_status, url, abandon_on_cancel=True)
            for gateway in gateways:
                for replica in status["replicas"]:
                    if f":{gateway.port}/" in replica["url"] and replica["owns"]:
                        return gateway


async def ready(http, gateway):
    async with http.get(gateway.url.replace("/mcp", "/ready")) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("how", [wide("reset"), "swallow"])
@pytest.mark.parametrize("seconds", [7, wide(20)])
async def test_an_owner_that_is_cut_off_from_redis_executes_nothing_beside_the_next(
    tmp_path, ledger, how, seconds
):
    crowd, config = Crowd(pause=0.05), ledger.config()
    with running_redis() as redis:
        lines = [CutLine(redis.port) for _ in range(3)]
        async with lines[0], lines[1], lines[2]:
            gateways = [
                GatewayProcess(tmp_path, config, "--cluster", f"redis://127.0.0.1:{one.port}/0")
                for one in lines
            ]
            async with crowded(gateways, crowd, clients=6):
                owner = await owner_among(gateways, redis.url)
                line = lines[gateways.index(owner)]
                began = time.monotonic()
                getattr(line, how)()
                await anyio.sleep(seconds)
                line.mend()
                ended = time.monotonic()
                await until(lambda: len(ledger.terms) > 1)
    await until(lambda: not ledger.left)
    tell(crowd, ledger, [began])

    check(crowd, ledger, disturbed=[(began, ended + RECOVERY)])
    assert crowd.failures or how == "reset"


@pytest.mark.parametrize("seconds", [4, wide(10)])
async def test_an_owner_that_stood_still_executes_nothing_beside_the_next(
    tmp_path, ledger, seconds
):
    crowd, config = Crowd(pause=0.05), ledger.config()
    with running_redis() as redis:
        gateways = [GatewayProcess(tmp_path, config, "--cluster", redis.url) for _ in range(3)]
        async with crowded(gateways, crowd, clients=6):
            owner = await owner_among(gateways, redis.url)
            began = time.monotonic()
            owner.signal(signal.SIGSTOP)
            await until(lambda: len(ledger.terms) > 1)
            await anyio.sleep(seconds)
            owner.signal(signal.SIGCONT)
            ended = time.monotonic()
    await until(lambda: not ledger.left)
    tell(crowd, ledger, [began])

    check(crowd, ledger, disturbed=[(began, ended + 1)])


@pytest.mark.wide
@pytest.mark.parametrize("how", ["empty", "kept", "frozen"])
async def test_redis_goes_away_for_ten_seconds_and_comes_back(tmp_path, ledger, how):
    """`far` is reached by each replica itself; the program needs a lease."""
    far = NonceLedger(tmp_path / "far")
    far.path.parent.mkdir()
    options = ["--appendonly", "yes", "--appendfsync", "always"] if how == "kept" else []
    alone = GatewayProcess(tmp_path, far.config())
    with running_redis(*options) as redis, running(alone):
        config = ledger.config()
        servers = json.loads(config.read_text())
        servers["mcpServers"]["far"] = {"type": "http", "url": alone.url}
        config.write_text(json.dumps(servers))
        gateways = [GatewayProcess(tmp_path, config, "--cluster", redis.url) for _ in range(3)]
        with running(*gateways):
            async with aiohttp.ClientSession(connector=connector()) as http:
                clients = [StatelessClient(http, one.url) for one in gateways]
                for one in clients:
                    await served(one, "far_nonces_note")
                    await served(one, "nonces_note")
                session = HandshakeClient(http, gateways[0].url)
                await session.open()

                if how == "frozen":
                    os.kill(redis.pid, signal.SIGSTOP)
                else:
                    redis.stop()
                away = time.monotonic()
                told = [await degraded(http, one) for one in gateways]
                reasons = []
                for one in clients:
                    await one.call("far_nonces_note", {"nonce": f"away-{one}"})
                    reasons.append(await refused(one, "nonces_note"))
                await session.call("far_nonces_note", {"nonce": "in a session"})
                await anyio.sleep(max(0, away + 10 - time.monotonic()))
                if how == "frozen":
                    os.kill(redis.pid, signal.SIGCONT)
                else:
                    redis.start()
                for one in clients:
                    await served(one, "nonces_note")
                # the owner's lease has ended: the first replica to take it runs the server now
                await until(lambda: len(ledger.left) == 1)
                for one in gateways:
                    while "is down" in (await ready(http, one))[1]:
                        await anyio.sleep(0.1)

    assert all("coordinator is down" in one for one in reasons), reasons
    assert all(status == 200 and "is down" in text for status, text in told), told
    assert len(ledger.terms) <= 2


async def served(client, tool):
    """Call until it is answered, as a client does that tries again."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await client.call(tool, {"nonce": os.urandom(8).hex()})
            except Refused:
                await anyio.sleep(0.2)


async def refused(client, tool):
    """Call until it is refused, which is when the owner's lease has ended."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await client.call(tool, {"nonce": os.urandom(8).hex()})
            except Refused as exc:
                return str(exc)


async def degraded(http, gateway):
    with anyio.fail_after(PATIENCE):
        while "is down" not in (found := await ready(http, gateway))[1]:
            await anyio.sleep(0.1)
    return found


async def test_a_flush_ends_sessions_and_nothing_else(tmp_path, ledger):
    crowd, config = Crowd(pause=0.05), ledger.config()
    with running_redis() as redis:
        gateways = [GatewayProcess(tmp_path, config, "--cluster", redis.url) for _ in range(2)]
        late = GatewayProcess(tmp_path, config, "--cluster", redis.url)
        with running(*gateways):
            async with (
                Balancer([one.port for one in gateways]) as balancer,
                aiohttp.ClientSession(connector=connector()) as http,
                crowd.at_work(balancer.url, stateless=6, handshake=0),
            ):
                client = HandshakeClient(http, balancer.url)
                await client.open()
                redis.ask("FLUSHALL")
                late.start()  # at once: the others have yet to write down what it needs
                with anyio.fail_after(PATIENCE):
                    while True:
                        try:
                            await client.call("nonces_note", {"nonce": os.urandom(8).hex()})
                        except Refused as exc:
                            ended = str(exc)
                            break
                await client.open()
                await client.call("nonces_note", {"nonce": "again"})
                with running(late):
                    await served(StatelessClient(http, late.url), "nonces_note")
    await until(lambda: not ledger.left)

    assert "initialize again" in ended
    assert not crowd.failures
    assert len(ledger.terms) == 1
    check(crowd, ledger)
