"""A replica that does not fit is refused at start, in one sentence that says why."""

import time
from contextlib import asynccontextmanager

import anyio
import pytest

from multitap import Settings
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.membership import VARIABLE, agree_on_key, given_key
from multitap.cluster.replica import ReplicaOptions, open_replica
from multitap.cluster.serving import ClusterOptions, fingerprint, open_cluster
from multitap.errors import ConfigError
from tests.cluster.hubs import zoo
from tests.cluster.redis_server import free_port
from tests.waiting import PATIENCE, until


@asynccontextmanager
async def joined(coordinator, folder, name, **options):
    wanted = {"fingerprint": "same", "key": b"k" * 32, **options}
    options = ReplicaOptions(listen=f"unix:{folder}/{name}", id=name, **wanted)
    async with open_replica(coordinator, options) as replica:
        yield replica


async def test_members_know_each_other_until_one_leaves(tmp_path):
    coordinator = LocalCoordinator()
    async with joined(coordinator, tmp_path, "a", labels={"zone": "x"}) as first:
        async with joined(coordinator, tmp_path, "b") as second:
            await until(lambda: set(first.membership.members) == {"a", "b"})
            assert second.membership.members["a"].labels == {"zone": "x"}
            assert not first.concerns
        await until(lambda: set(first.membership.members) == {"a"})


async def test_another_configuration_is_refused_unless_drift_is_allowed(tmp_path):
    coordinator = LocalCoordinator()
    async with joined(coordinator, tmp_path, "a") as first:
        with pytest.raises(ConfigError, match=r"differs from that of 1 other replica, such as 'a'"):
            async with joined(coordinator, tmp_path, "b", fingerprint="other"):
                pass
        async with joined(coordinator, tmp_path, "b", fingerprint="other", allow_drift=True):
            await until(lambda: first.concerns)
            assert "b" in first.concerns[0]


async def test_a_clock_that_is_off_is_refused(tmp_path):
    coordinator = LocalCoordinator(lambda: time.time() + 60)
    with pytest.raises(ConfigError, match=r"clock is (59|60) s behind the coordinator's"):
        async with joined(coordinator, tmp_path, "a"):
            pass


async def test_two_keys_are_refused(tmp_path):
    coordinator = LocalCoordinator()
    async with joined(coordinator, tmp_path, "a"):
        with pytest.raises(
            ConfigError, match="key differs from the one that this replica was given"
        ):
            async with joined(coordinator, tmp_path, "b", key=b"x" * 32):
                pass
        with pytest.raises(ConfigError, match="a key that this replica was not given"):
            async with joined(coordinator, tmp_path, "b", key=None):
                pass


async def test_the_cluster_keeps_a_key_for_those_without_one(tmp_path):
    coordinator = LocalCoordinator()
    async with (
        joined(coordinator, tmp_path, "a", key=None) as first,
        joined(coordinator, tmp_path, "b", key=None) as second,
    ):
        assert first.key == second.key
        with pytest.raises(ConfigError, match="a key of its own"):
            await agree_on_key(coordinator.records, b"x" * 32, patience=0)


def test_keys_come_from_a_file_or_the_environment(tmp_path):
    path = tmp_path / "key"
    path.write_text("0123456789abcdef\n")

    assert given_key(path, {}) == given_key(None, {VARIABLE: "0123456789abcdef"})
    assert given_key(None, {}) is None
    with pytest.raises(ConfigError, match="too short"):
        given_key(None, {VARIABLE: "short"})
    with pytest.raises(ConfigError, match="cannot be read"):
        given_key(tmp_path / "none", {})


async def test_without_redis_nothing_starts():
    options = ClusterOptions(url=f"redis://127.0.0.1:{free_port()}")
    with (
        anyio.fail_after(PATIENCE),
        pytest.raises(ConfigError, match=r"Redis at 127\.0\.0\.1.*does not"),
    ):
        async with open_cluster(options, Settings()):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ClusterOptions(url="redis://h", labels=("zone",)), "'zone' is not a label"),
        (ClusterOptions(url="redis://h", advertise="nowhere"), "not an address for other replicas"),
        (ClusterOptions(url="memcached://h"), "address cannot be used"),
    ],
    ids=["label", "advertise", "scheme"],
)
async def test_options_that_cannot_be_used_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        async with open_cluster(options, Settings()):
            pass


def test_a_fingerprint_tells_configurations_apart_and_no_machines():
    settings = Settings(servers={"zoo": zoo(env={"TOKEN": "a"})})

    assert fingerprint(settings) == fingerprint(settings.replace(state_dir="/x"))
    assert fingerprint(settings) != fingerprint(Settings(servers={"zoo": zoo(env={"TOKEN": "b"})}))
    assert fingerprint(settings) != fingerprint(Settings())


async def test_what_a_flushed_coordinator_lost_is_written_down_again(tmp_path):
    coordinator = LocalCoordinator()
    async with joined(coordinator, tmp_path, "a", key=None) as first:
        first.apply({"zoo": zoo()})
        with anyio.fail_after(PATIENCE):
            lease = await first.ownership.wait_owner("zoo")
        token = lease.token
        await forget(coordinator)
        # at once, and so before the other one can have noticed
        async with joined(coordinator, tmp_path, "b", key=None) as second:
            assert second.key == first.key
            await until(lambda: set(second.membership.members) == {"a", "b"})
        await until(lambda: lease.token > token)
        assert lease.is_valid


async def test_a_replica_whose_key_was_replaced_says_so_and_gives_its_servers_away(tmp_path):
    coordinator = LocalCoordinator()
    async with joined(coordinator, tmp_path, "a", key=None) as first:
        first.apply({"zoo": zoo()})
        with anyio.fail_after(PATIENCE):
            await first.ownership.wait_owner("zoo")
        await forget(coordinator)
        async with joined(coordinator, tmp_path, "b", key=None, is_fresh=True) as second:
            assert second.key != first.key
            await until(lambda: first.concerns)
            assert "a new key" in first.concerns[0]
            second.apply({"zoo": zoo()})
            with anyio.fail_after(PATIENCE):
                await second.ownership.wait_owner("zoo")
            await until(lambda: second.ownership.lease("zoo") is not None)


async def forget(coordinator):
    coordinator.leases.forget()
    for key in await coordinator.records.scan(""):
        await coordinator.records.delete(key)
