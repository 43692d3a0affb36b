"""A rolling upgrade: replicas of an earlier version and of this one, on one Redis."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from anyio import to_thread

from tests.cluster.balancer import Balancer
from tests.cluster.crowd import Crowd, NonceLedger, check, tell
from tests.cluster.gateways import GatewayProcess, running
from tests.cluster.redis_server import running_redis
from tests.waiting import until

ROOT = Path(__file__).parents[2]
BACK = 30
"""Commits."""


@pytest.fixture
def earlier(tmp_path):
    """The source of an earlier version."""
    archive = ["git", "-C", str(ROOT), "archive", f"HEAD~{BACK}", "src"]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("there is no history")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.2 has none
        files.extractall(tmp_path / "earlier")
    return tmp_path / "earlier" / "src"


@pytest.mark.wide
@pytest.mark.timeout(300)
async def test_two_versions_work_side_by_side(tmp_path, earlier):
    ledger, crowd = NonceLedger(tmp_path), Crowd(pause=0.05)
    config = ledger.config()
    with running_redis() as redis:
        options = ["--cluster", redis.url, "--allow-drift"]
        old = [GatewayProcess(tmp_path, config, *options, source=earlier) for _ in range(2)]
        new = [GatewayProcess(tmp_path, config, *options, port=one.port) for one in old]
        with running(*old):
            async with (
                Balancer([one.port for one in old]) as balancer,
                crowd.at_work(balancer.url, stateless=4, handshake=4),
            ):
                for before, after in zip(old, new, strict=True):
                    await to_thread.run_sync(before.stop)
                    after.start()
                    await to_thread.run_sync(after.wait_up)
                    await crowd.wait_served()
            for one in new:
                await to_thread.run_sync(one.stop)
    await until(lambda: not ledger.left)
    tell(crowd, ledger)

    check(crowd, ledger, disturbed=[(0, float("inf"))])
    assert len(crowd.failures) < len(crowd.made) / 20, [one.failure for one in crowd.failures]
