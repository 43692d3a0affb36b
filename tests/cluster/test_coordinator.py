"""One contract for everything that coordinates; what holds for one holds for the others."""

import asyncio
import tempfile
import time
import uuid
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.redis_coordinator import (
    RedisChannels,
    RedisLine,
    RedisStreams,
    open_redis,
)
from multitap.cluster.socket_coordinator import open_socket, serve_coordinator
from multitap.errors import ConfigError, CoordinatorDown
from multitap.tasks import Tasks
from tests.cluster.redis_server import free_port, running_redis
from tests.waiting import PATIENCE, until, until_told

KEY = b"k" * 32


@asynccontextmanager
async def open_local(_):
    yield LocalCoordinator()


@asynccontextmanager
async def open_on_redis(server):
    async with open_redis(server.url, namespace=uuid.uuid4().hex) as coordinator:
        yield coordinator


@asynccontextmanager
async def open_through_socket(_):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "socket")
        async with (
            serve_coordinator(path, LocalCoordinator(), KEY),
            open_socket(path, KEY) as coordinator,
        ):
            yield coordinator


@pytest.fixture(
    params=[open_local, open_through_socket, open_on_redis], ids=["local", "socket", "redis"]
)
async def coordinator(request, redis_server):
    async with request.param(redis_server) as made:
        yield made


async def test_a_process_that_does_not_know_the_key_is_not_obeyed(tmp_path):
    path, served = tmp_path / "s", LocalCoordinator()
    with anyio.fail_after(PATIENCE):
        async with serve_coordinator(path, served, KEY):
            with pytest.raises(CoordinatorDown):
                async with open_socket(path, b"x" * 32) as coordinator:
                    await coordinator.records.write("a", b"1")
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"\0\0\0\1\x90" * 20)

            assert await reader.read() == b""
            writer.close()

    assert await served.records.scan("") == {}


async def test_records_are_kept_swapped_and_removed_only_as_expected(coordinator):
    records = coordinator.records
    assert await records.read("a") is None
    assert await records.swap("a", None, b"1")
    assert not await records.swap("a", None, b"2")
    assert not await records.swap("a", b"9", b"2")
    assert await records.swap("a", b"1", b"2")
    await records.write("ab", b"3", ttl=60)
    await records.write("b", b"4")

    assert await records.scan("a") == {"a": b"2", "ab": b"3"}
    assert await records.delete("a")
    assert not await records.delete("a")
    assert await records.scan("") == {"ab": b"3", "b": b"4"}


async def test_records_end_with_their_time_unless_touched(coordinator):
    records = coordinator.records
    # long enough for a busy machine to touch it in time
    await records.write("short", b"x", ttl=2)
    await records.write("kept", b"x", ttl=2)

    assert await records.touch("kept", 60)

    async def is_gone():
        return await records.read("short") is None

    await until_told(is_gone)
    assert await records.read("kept") == b"x"
    assert not await records.touch("short", 60)


async def test_the_leases_of_a_process_that_has_ended_last_no_longer_than_those_of_others(tmp_path):
    path, served = tmp_path / "s", LocalCoordinator()
    async with serve_coordinator(path, served, KEY):
        async with open_socket(path, KEY) as coordinator:
            await coordinator.leases.acquire("calc", "a", ttl=60)

            assert (await served.leases.look("calc"))["calc"].expires_in > 50

        async def ends_soon():
            return (await served.leases.look("calc"))["calc"].expires_in <= served.lease_ttl

        await until_told(ends_soon)


async def test_a_process_that_does_nothing_keeps_its_leases_until_it_has_ended(tmp_path):
    now = 1000.0
    path, served = tmp_path / "s", LocalCoordinator(clock=lambda: now)
    async with serve_coordinator(path, served, KEY), open_socket(path, KEY) as other:
        async with open_socket(path, KEY) as starved:
            token = await starved.leases.acquire("calc", "a", ttl=1)
            now += 1000

            assert await other.leases.acquire("calc", "b", ttl=1) is None
            assert (await other.leases.look("calc"))["calc"].is_held
            assert await starved.leases.renew({"calc": token}, ttl=1) == {"calc"}
            now += 1000

        assert await until_told(lambda: other.leases.acquire("calc", "b", ttl=1)) > token


async def test_a_lease_has_one_holder_and_every_holder_a_greater_token(coordinator):
    leases = coordinator.leases
    first = await leases.acquire("calc", "a", ttl=60, note=b"at a")
    assert await leases.acquire("calc", "b", ttl=60) is None
    assert await leases.renew({"calc": first, "other": 3}, ttl=60) == {"calc"}
    seen = (await leases.look("calc", "other"))["calc"]
    assert (seen.holder, seen.token, seen.note, seen.is_held) == ("a", first, b"at a", True)
    assert not await leases.release("calc", first - 1)
    assert await leases.release("calc", first)
    assert not (await leases.look("calc"))["calc"].is_held

    second = await leases.acquire("calc", "b", ttl=60)

    assert second > first
    assert await leases.renew({"calc": first}, ttl=60) == frozenset()
    assert await leases.acquire("calc", "b", ttl=60) > second
    assert await leases.acquire("new", "a", ttl=60, guard=("calc", second)) is None
    third = (await leases.look("calc"))["calc"].token
    assert await leases.acquire("new", "a", ttl=60, guard=("calc", third))


@pytest.mark.parametrize("coordinator", [open_local, open_on_redis], indirect=True)
async def test_an_expired_lease_is_renewed_until_another_one_has_taken_it(coordinator):
    leases = coordinator.leases
    first = await leases.acquire("calc", "a", ttl=0.05)

    async def has_expired():
        return not (await leases.look("calc"))["calc"].is_held

    await until_told(has_expired)
    assert await leases.renew({"calc": first}, ttl=0.05) == {"calc"}
    second = await until_told(lambda: leases.acquire("calc", "b", ttl=0.05))

    assert second > first
    assert await leases.renew({"calc": first}, ttl=60) == frozenset()


async def test_published_messages_reach_those_who_listen(coordinator):
    channels = coordinator.channels
    async with channels.subscribe("news", "more") as heard, channels.subscribe("other") as other:
        await channels.publish("news", b"1")
        await channels.publish("more", b"2")
        await channels.publish("other", b"3")
        with anyio.fail_after(PATIENCE):
            got = [await _message(heard), await _message(heard), await _message(other)]

    assert [(one.channel, one.data) for one in got] == [
        ("news", b"1"),
        ("more", b"2"),
        ("other", b"3"),
    ]


async def _message(heard):
    while (found := await anext(heard)) is None:
        pass
    return found


async def test_streams_are_bounded_and_read_from_any_entry_on(coordinator):
    streams = coordinator.streams
    assert await streams.ends("s") is None
    ids = [await streams.append("s", str(n).encode(), most=3, ttl=60) for n in range(5)]

    kept = await streams.entries("s")
    assert [(one.id, one.data) for one in kept] == list(
        zip(ids[2:], [b"2", b"3", b"4"], strict=True)
    )
    assert [one.data for one in await streams.entries("s", ids[3])] == [b"4"]
    assert [one.data for one in await streams.entries("s", limit=1)] == [b"2"]
    ends = await streams.ends("s")
    assert (ends.first, ends.last) == (ids[2], ids[4])
    await streams.trim("s", ids[4])
    assert [one.data for one in await streams.entries("s")] == [b"4"]
    await streams.trim("s")
    assert await streams.entries("s") == []


async def test_who_waits_for_a_stream_gets_the_next_entry(coordinator):
    streams, got = coordinator.streams, []

    async def read():
        got.extend(await streams.entries("s", wait=10))

    assert await streams.entries("s", wait=0.01) == []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.sleep(0.05)
        await streams.append("s", b"x", most=10)

    assert [one.data for one in got] == [b"x"]


async def test_a_strange_message_does_not_keep_streams_from_waking(coordinator):
    await coordinator.channels.publish("streams", b"\xe0\xff not text")
    entries = []

    async def wait():
        entries.extend(await coordinator.streams.entries("s", wait=10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await coordinator.streams.append("s", b"1", most=10)

    assert [entry.data for entry in entries] == [b"1"]


async def test_limits_are_exact_and_say_when_to_come_back(coordinator):
    limits = coordinator.limits
    taken = [await limits.take("k", limit=100, window=60) for _ in range(103)]

    assert [one.allowed for one in taken].count(True) == 100
    assert taken[99].left == 0
    assert 0 < taken[-1].retry_after <= 60
    assert [await limits.count("c", 2, ttl=60) for _ in range(3)] == [2, 4, 6]


async def test_a_limit_is_free_again_after_its_window(coordinator):
    limits = coordinator.limits
    assert (await limits.take("k", limit=1, window=0.2)).allowed
    with anyio.fail_after(PATIENCE):
        while not (again := await limits.take("k", limit=1, window=0.2)).allowed:
            await anyio.sleep(again.retry_after)


async def test_the_coordinator_tells_the_time(coordinator):
    first = await coordinator.time()

    assert await coordinator.time() >= first > 1_700_000_000


async def test_a_redis_that_comes_back_is_used_again():
    with running_redis() as server:
        async with (
            open_redis(server.url) as coordinator,
            coordinator.channels.subscribe("news") as heard,
        ):
            first = await coordinator.leases.acquire("calc", "a", ttl=60)
            server.stop()
            with pytest.raises(CoordinatorDown, match=f"127.0.0.1:{server.port}"):
                await coordinator.records.read("a")
            assert not coordinator.health.is_up
            server.start()
            await until(lambda: coordinator.health.is_up)
            # it has lost everything: the token still rises
            assert await coordinator.leases.acquire("calc", "b", ttl=60) > first
            with anyio.fail_after(PATIENCE):
                while await anext(heard) is not None:
                    pass
                await coordinator.channels.publish("news", b"1")
                assert (await _message(heard)).data == b"1"


@pytest.mark.parametrize(
    "url",
    ["http://x", "redis+sentinel://host:1", "", "redis://h:port", "redis+sentinel://:1/x"],
)
async def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="address cannot be used"):
        async with open_redis(url):
            pass


async def test_a_user_without_rights_is_told_so():
    with running_redis("--requirepass", "s3cret") as server:
        async with open_redis(server.url) as coordinator:
            with pytest.raises(CoordinatorDown, match="refuses"):
                await coordinator.records.read("a")
        async with open_redis(f"redis://default:s3cret@127.0.0.1:{server.port}") as coordinator:
            assert await coordinator.records.read("a") is None


async def test_nothing_listens_at_the_address():
    async with open_redis(f"redis://127.0.0.1:{free_port()}") as coordinator:
        with pytest.raises(CoordinatorDown, match="does not answer"):
            await coordinator.time()


async def test_an_entry_that_comes_during_the_look_is_not_slept_through(redis_server, monkeypatch):
    async with open_on_redis(redis_server) as coordinator:
        streams = coordinator.streams
        look, rung = streams._after, anyio.Event()

        async def slow(key, *given):
            found = await look(key, *given)
            if not rung.is_set():
                waiting = streams._grown[key].coming()
                await streams.append("s", b"1", most=10)
                await waiting.wait()
                rung.set()
            return found

        monkeypatch.setattr(streams, "_after", slow)
        with anyio.fail_after(PATIENCE):
            found = await streams.entries("s", wait=60)

    assert [one.data for one in found] == [b"1"]


async def test_an_entry_that_comes_before_redis_has_confirmed_the_listener_is_read(redis_server):
    async with open_on_redis(redis_server) as coordinator, anyio.create_task_group() as tasks:
        line = coordinator._redis
        channels, streams = RedisChannels(line), RedisStreams(line)
        found = []

        async def read():
            found.extend(await streams.entries("s", wait=60))

        with anyio.fail_after(PATIENCE):
            tasks.start_soon(read)
            await until(lambda: streams._waiting)
            await coordinator.streams.append("s", b"1", most=10)
            tasks.start_soon(channels.listen)
            tasks.start_soon(streams.listen, channels)
            await until(lambda: found)
        tasks.cancel_scope.cancel()

    assert [entry.data for entry in found] == [b"1"]


async def test_subscribers_hear_of_a_gap_once_redis_has_confirmed_them(redis_server):
    async with open_on_redis(redis_server) as coordinator:
        channels = coordinator.channels
        async with channels.subscribe("c") as messages:
            with anyio.fail_after(PATIENCE):
                await coordinator._redis.client.client_kill_filter(_type="pubsub")
                assert await anext(messages) is None

                await channels.publish("c", b"1")
                assert (await anext(messages)).data == b"1"


async def test_a_machine_without_time_for_us_is_not_a_redis_that_does_not_answer(redis_server):
    async with open_on_redis(redis_server) as coordinator:
        for stall in (1.5, 2.5):  # while it connects, and while it waits
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(coordinator.records.read, "a")
                await anyio.sleep(0)
                time.sleep(stall)


class Deaf:
    """Questions whose first cancellation gets lost, as it may in `redis`."""

    def __init__(self):
        self.line = RedisLine(None, "nowhere", "test")
        self.asked = 0

    async def ask(self):
        self.asked += 1
        await self.line.ask(self._answer())

    async def ask_thrice(self):
        for _ in range(3):
            await self.ask()

    async def _answer(self):
        with suppress(asyncio.CancelledError):
            if self.asked == 1:
                await anyio.sleep_forever()


async def test_a_task_ends_although_redis_swallowed_its_cancellation():
    deaf = Deaf()
    async with Tasks() as tasks:
        tasks.start_soon(deaf.ask_thrice)
        await until(lambda: deaf.asked)
        await anyio.wait_all_tasks_blocked()

    assert deaf.asked == 1


async def test_a_scope_knows_its_cancellation_although_redis_swallowed_it():
    deaf = Deaf()
    with anyio.move_on_after(0.01) as scope:
        await deaf.ask_thrice()

    assert scope.cancelled_caught
    assert deaf.asked == 1


async def test_a_task_that_asks_redis_again_and_again_ends_when_it_is_cancelled(redis_server):
    async def ask(records):
        while True:
            await records.read("a")

    async with open_on_redis(redis_server) as coordinator:
        with anyio.fail_after(PATIENCE):
            for steps in range(200):
                async with Tasks() as tasks:
                    tasks.start_soon(ask, coordinator.records)
                    # at another point of a request each time
                    for _ in range(steps % 50):
                        await anyio.lowlevel.checkpoint()


async def test_a_connection_that_uvloop_has_closed_does_not_answer():
    async def answer():
        raise RuntimeError("unable to perform operation; the handler is closed")

    line = RedisLine(None, "nowhere", "test")
    with pytest.raises(CoordinatorDown, match="does not answer"):
        await line.ask(answer())

    assert not line.health.is_up
