"""Real gateways on a real Redis: killed, stopped, cut off, and ended politely."""

import json
import signal
import subprocess
import sys
from contextlib import suppress

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from tests.cluster.clients import Refused, StatelessClient, connector
from tests.cluster.gateways import GatewayProcess, running
from tests.cluster.redis_server import running_redis
from tests.cluster.test_workers import config_of
from tests.waiting import PATIENCE, until
from tests.zoo.ledger import Ledger

pytestmark = pytest.mark.slow


@pytest.fixture
def redis():
    with running_redis() as server:
        yield server


async def test_a_replica_takes_over_from_one_that_is_killed_stopped_or_leaves(tmp_path, redis):
    ledger = Ledger(tmp_path / "zoo")
    config = config_of(tmp_path, zoo=ledger)
    gateways = [GatewayProcess(tmp_path, config, "--cluster", redis.url) for _ in range(2)]
    with running(*gateways):
        async with aiohttp.ClientSession(connector=connector()) as http:
            clients = {one: StatelessClient(http, one.url) for one in gateways}
            with anyio.fail_after(PATIENCE):
                # on a busy machine, the first owner may be too late for its lease
                while len(pids := {await _pid(client) for client in clients.values()}) > 1:
                    pass

            with anyio.fail_after(PATIENCE):  # it says so with its next sign of life
                while not any(_owns(status := _status(redis), one) for one in gateways):
                    await anyio.lowlevel.checkpoint()
            owner, other = sorted(gateways, key=lambda one: not _owns(status, one))
            assert len(status["replicas"]) == 2
            assert not status["drift"]

            owner.signal(signal.SIGSTOP)
            with anyio.fail_after(PATIENCE):
                taken = await _pid(clients[other])
            assert taken not in pids
            owner.signal(signal.SIGCONT)
            with anyio.fail_after(PATIENCE):
                # one that was stopped must not answer from the process that it had
                assert await _pid(clients[owner]) == taken

            other.kill()
            with anyio.fail_after(PATIENCE):
                again = await _pid(clients[owner])
            assert again not in {taken, *pids}

            redis.stop()
            redis.start()
            with anyio.fail_after(PATIENCE):
                assert await _pid(clients[owner]) == again  # it kept its process

            other.start()
            other.wait_up()
            with anyio.fail_after(PATIENCE):
                assert await _pid(clients[other]) == again
            async with anyio.create_task_group() as tasks:
                slow = []

                async def call(client):
                    slow.append(await client.call("zoo_sleep", {"seconds": 1}))

                tasks.start_soon(call, clients[owner])
                tasks.start_soon(call, clients[other])
                await until(lambda: ledger.calls.count("sleep") >= 2)
                owner.process.terminate()
            assert len(slow) == 2
            with anyio.fail_after(PATIENCE):
                assert await _pid(clients[other]) != again


async def test_calls_are_refused_at_once_when_no_replica_is_left(tmp_path, redis):
    ledger = Ledger(tmp_path / "zoo")
    config = config_of(tmp_path, zoo=ledger)
    gateways = [GatewayProcess(tmp_path, config, "--cluster", redis.url) for _ in range(2)]
    told = []
    with running(*gateways):
        async with aiohttp.ClientSession(connector=connector()) as http:
            clients = [StatelessClient(http, one.url) for one in gateways]

            async def sleep(client):
                # it never ends by itself, so that its owner waits for as long as it ever does
                with suppress(aiohttp.ClientError, Refused):
                    await client.call("zoo_sleep", {"seconds": 3600})

            async def call(gateway):
                while (503, "1") not in told:
                    # the one that runs no server closes its port at once
                    with suppress(aiohttp.ClientError):
                        async with http.post(gateway.url, json={}) as response:
                            told.append((response.status, response.headers.get("Retry-After")))
                    await anyio.sleep(0.01)  # the gateways need the processor, too

            with anyio.fail_after(PATIENCE):
                await _pid(clients[0])
                async with anyio.create_task_group() as tasks:
                    for client in clients:
                        tasks.start_soon(sleep, client)
                    await until(lambda: ledger.calls.count("sleep") >= 2)
                    # before the signals: the moment that is waited for lasts some seconds only
                    for one in gateways:
                        tasks.start_soon(call, one)
                    await until(lambda: told)
                    for one in gateways:
                        one.signal(signal.SIGTERM)

    assert (503, "1") in told


async def _pid(client):
    result = await client.call("zoo_pid", {})
    return result["structuredContent"]["result"]


def _status(redis):
    command = [sys.executable, "-m", "multitap", "cluster", "status", "--cluster", redis.url]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _owns(status, gateway):
    return any(
        f":{gateway.port}/" in one["url"] and "zoo" in one["owns"] for one in status["replicas"]
    )
