"""Three replicas behind a balancer, clients of both eras, and one replica after another killed."""

import random
import signal
import time

import anyio
import pytest
from anyio import to_thread

from tests.cluster.balancer import Balancer
from tests.cluster.crowd import Crowd, NonceLedger, check, tell
from tests.cluster.gateways import GatewayProcess, running
from tests.cluster.redis_server import running_redis
from tests.waiting import until

AFTERMATH = 0.5
"""Seconds after a kill in which a call may still reach the dead replica's port."""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_few_clients_survive_a_kill_every_five_seconds(tmp_path):
    await survive(tmp_path, seconds=10, clients=8)


@pytest.mark.wide
@pytest.mark.timeout(900)
async def test_a_hundred_clients_survive_a_minute_of_kills(tmp_path):
    await survive(tmp_path, seconds=60, clients=50)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_call_is_lost_when_replicas_leave(tmp_path):
    await restart_politely(tmp_path, rounds=2, clients=5)


@pytest.mark.wide
@pytest.mark.timeout(900)
async def test_no_call_of_a_hundred_clients_is_lost_when_replicas_leave(tmp_path):
    await restart_politely(tmp_path, rounds=8, clients=50)


async def survive(folder, *, seconds, clients):
    """Kill a random replica every five seconds, and start it again."""
    ledger, crowd, chance = NonceLedger(folder), Crowd(pause=0.1), random.Random(17)
    kills = []
    with running_redis() as redis:
        gateways = three(folder, ledger, redis.url)
        with running(*gateways):
            async with (
                Balancer([one.port for one in gateways]) as balancer,
                crowd.at_work(balancer.url, stateless=clients, handshake=clients),
            ):
                for _ in range(seconds // 5):
                    await anyio.sleep(5)
                    doomed = chance.choice(gateways)
                    kills.append(time.monotonic())
                    doomed.kill()
                    doomed.start()
                    await to_thread.run_sync(doomed.wait_up)
    await until(lambda: not ledger.left)
    tell(crowd, ledger, kills)

    check(crowd, ledger, disturbed=[(kill, kill + AFTERMATH) for kill in kills])


async def restart_politely(folder, *, rounds, clients):
    """End one replica after another with SIGTERM, and start each again."""
    ledger, crowd = NonceLedger(folder), Crowd(pause=0.1)
    with running_redis() as redis:
        gateways = three(folder, ledger, redis.url)
        with running(*gateways):
            async with (
                Balancer([one.port for one in gateways]) as balancer,
                crowd.at_work(balancer.url, stateless=clients, handshake=clients),
            ):
                for n in range(rounds):
                    leaving = gateways[n % len(gateways)]
                    leaving.signal(signal.SIGTERM)
                    await to_thread.run_sync(leaving.process.wait)
                    leaving.start()
                    await to_thread.run_sync(leaving.wait_up)
                    await crowd.wait_served()
    await until(lambda: not ledger.left)
    tell(crowd, ledger)

    check(crowd, ledger)
    assert len(ledger.terms) <= rounds + 1, "a hand-over started the server more than once"


def three(folder, ledger, url):
    config = ledger.config()
    return [GatewayProcess(folder, config, "--cluster", url) for _ in range(3)]
