"""Three replicas and a Redis, one fault after another: no call runs twice or fails for nothing."""

import os
import random
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack

import anyio
import pytest
from anyio import to_thread

from tests.cluster.balancer import Balancer
from tests.cluster.crowd import Crowd, NonceLedger, check
from tests.cluster.cut_line import CutLine
from tests.cluster.gateways import GatewayProcess, running_beside
from tests.cluster.redis_server import running_redis
from tests.waiting import until

MINUTES = float(os.environ.get("CLUSTER_MINUTES", "10"))
CLIENTS = int(os.environ.get("CLIENTS", "4"))
"""Of each era."""
AFTERMATH = 0.5
"""Seconds after a kill in which a call may still reach the dead replica's port."""
RECOVERY = 10.0
"""Seconds after a fault in which a call may still fail for it: its own patience, and a start."""
CALM = 3.0
"""Seconds between the recovery from one fault and the next, in which every call is answered."""


class Faults:
    """What can happen to a cluster; each fault returns the time in which a call may fail for it."""

    def __init__(self, gateways, lines, redis):
        self._gateways = gateways
        self._lines = lines
        self._redis = redis
        self._random = random.Random(os.environ.get("SEED", "1"))
        self.happened = Counter()

    async def happen(self):
        """A random one."""
        faults = (
            *(self.kill, self.leave, self.freeze, self.cut_off, self.silence),
            *(self.kill_redis, self.freeze_redis),
        )
        fault = self._random.choice(faults)
        self.happened[fault.__name__] += 1
        return await fault(self._random.choice(range(len(self._gateways))))

    async def kill(self, number):
        began = time.monotonic()
        self._gateways[number].kill()
        killed = time.monotonic()
        await self._start(number)
        return began, killed + AFTERMATH

    async def leave(self, number):
        leaving = self._gateways[number]
        leaving.signal(signal.SIGTERM)
        await to_thread.run_sync(leaving.process.wait)
        await self._start(number)

    async def freeze(self, number):
        began = time.monotonic()
        self._gateways[number].signal(signal.SIGSTOP)
        await self._a_while()
        self._gateways[number].signal(signal.SIGCONT)
        return began, time.monotonic() + RECOVERY

    async def cut_off(self, number):
        return await self._cut(self._lines[number].reset, self._lines[number])

    async def silence(self, number):
        return await self._cut(self._lines[number].swallow, self._lines[number])

    async def kill_redis(self, _number):
        began = time.monotonic()
        self._redis.stop()
        await self._a_while()
        await to_thread.run_sync(self._redis.start)
        return began, time.monotonic() + RECOVERY

    async def freeze_redis(self, _number):
        began = time.monotonic()
        os.kill(self._redis.pid, signal.SIGSTOP)
        await self._a_while()
        os.kill(self._redis.pid, signal.SIGCONT)
        return began, time.monotonic() + RECOVERY

    async def _cut(self, cut, line):
        began = time.monotonic()
        cut()
        await self._a_while()
        line.mend()
        return began, time.monotonic() + RECOVERY

    async def _start(self, number):
        self._gateways[number].start()
        await to_thread.run_sync(self._gateways[number].wait_up)

    async def _a_while(self):
        await anyio.sleep(self._random.uniform(0.5, 12))


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_no_call_runs_twice_or_fails_without_a_cause(tmp_path, figures):
    ledger, crowd, disturbed = NonceLedger(tmp_path), Crowd(pause=0.05), []
    config = ledger.config()
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(running_redis("--appendonly", "yes", "--appendfsync", "always"))
        lines = [await stack.enter_async_context(CutLine(redis.port)) for _ in range(3)]
        gateways = [
            GatewayProcess(tmp_path, config, "--cluster", f"redis://127.0.0.1:{line.port}/0")
            for line in lines
        ]
        await stack.enter_async_context(running_beside(*gateways))
        balancer = Balancer([gateway.port for gateway in gateways])
        await stack.enter_async_context(balancer)
        at_work = crowd.at_work(balancer.url, stateless=CLIENTS, handshake=CLIENTS)
        await stack.enter_async_context(at_work)
        faults = Faults(gateways, lines, redis)
        end = time.monotonic() + MINUTES * 60
        while time.monotonic() < end:
            window = await faults.happen()
            if window is not None:
                disturbed.append(window)
                await anyio.sleep(max(0, window[1] - time.monotonic()))
            await crowd.wait_served()
            await anyio.sleep(CALM)
        assert [gateway.process.poll() for gateway in gateways] == [None] * len(gateways)
    await until(lambda: not ledger.left)
    figures(
        minutes=MINUTES,
        calls=len(crowd.made),
        failed_in_a_fault=len(crowd.failures),
        **{f"failed: {reason}": times for reason, times in _reasons(crowd).items()},
        twice=sum(times > 1 for times in ledger.executed.values()),
        slowest_call_s=round(max(call.ended - call.began for call in crowd.made), 2),
        **{f"did {name}": times for name, times in faults.happened.items()},
    )

    check(crowd, ledger, disturbed=disturbed)


def _reasons(crowd):
    return Counter(call.failure[:120] for call in crowd.failures)
