"""What somebody who may write to Redis, or a client, gets by using a thing twice: nothing."""

import time
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
import redis.asyncio

from multitap.config import Settings
from multitap.store.audit_log import AuditBatch
from multitap.trust.single_use import WINDOW, Seal
from tests.cluster.redis_server import needs_redis
from tests.cluster.staging import replicas
from tests.cluster.test_counted_once import calls_in_log
from tests.gateway.hostile.raw import message
from tests.gateway.session_client import SessionClient
from tests.gateway.talking import served_cells, zoo
from tests.gateway.test_questions import ASK, NAMED, Decider, allow, call_once, is_permit
from tests.waiting import until

pytestmark = needs_redis


class Tape:
    """Every message that was published, as somebody with access to Redis records it."""

    def __init__(self, client):
        self.client = client
        self.messages = []

    async def run(self, *, task_status):
        async with self.client.pubsub() as channels:
            await channels.psubscribe("*")
            async for found in channels.listen():
                if found["type"] == "psubscribe":
                    task_status.started()
                else:
                    self.messages.append((found["channel"], found["data"]))

    async def replay(self):
        for channel, data in tuple(self.messages):
            await self.client.publish(channel, data)


@asynccontextmanager
async def connected(server):
    async with redis.asyncio.from_url(server.url) as client:
        yield client


@asynccontextmanager
async def taped(server):
    async with connected(server) as client, anyio.create_task_group() as tasks:
        tape = Tape(client)
        await tasks.start(tape.run)
        yield tape
        tasks.cancel_scope.cancel()


def settings(tmp_path, count=2, **fields):
    return [
        Settings(state_dir=tmp_path / str(number), servers={"zoo": zoo("good_legacy", **fields)})
        for number in range(count)
    ]


def pid(request_id):
    return message(request_id, "tools/call", name="zoo_pid", arguments={})


async def test_a_message_that_is_published_again_is_dropped(redis_server, tmp_path):
    two = settings(tmp_path, session="per-client")
    async with replicas(redis_server, *two) as opened, taped(redis_server) as tape:
        client = await SessionClient(opened.port(0)).shake_hands()
        await client.post(pid(1))
        client.port = opened.port(1)
        await client.post(pid(2))  # relayed to the first, where the client's process is
        made = opened[0].hub.calls.made
        for _ in range(3):
            await tape.replay()
        await client.post(pid(3))  # behind them on the same channel

        assert opened[0].hub.calls.made == made + 1
    assert made == 2
    assert tape.messages


async def test_a_session_that_has_ended_does_not_come_back_with_its_record(redis_server, tmp_path):
    async with (
        replicas(redis_server, *settings(tmp_path)) as opened,
        connected(redis_server) as attacker,
    ):
        client = await SessionClient(opened.port(0)).shake_hands()
        (name,) = [key async for key in attacker.scan_iter(f"*{opened.shared[0]}*session:*")]
        record = await attacker.get(name)
        client.port = opened.port(1)
        before = await client.post(message(1, "ping"))
        await client.delete()
        await attacker.set(name, record)
        statuses = []
        for number in (0, 1):
            client.port = opened.port(number)
            await until(lambda: not len(opened[number].front.sessions))  # noqa: B023 - waits here
            statuses.append((await client.post(message(2, "ping"))).status)

    assert before.status == 200
    assert statuses == [404, 404]


async def test_a_batch_of_audit_entries_that_was_sent_long_ago_is_not_written(
    redis_server, tmp_path
):
    async with replicas(redis_server, *settings(tmp_path, 1)) as opened:
        key, streams = opened.shared[1], opened[0].gateway.bus.coordinator.streams
        old = Seal(key, lambda: time.time() - 2 * WINDOW)
        for seal, number in ((old, 1), (Seal(key), 2)):
            batch = AuditBatch(f"batch {number}", [f'{{"kind":"call","at":{number}}}'])
            sealed = seal.seal(msgspec.msgpack.encode(batch), "audit")
            await streams.append("audit", sealed, most=100)
        await until(lambda: calls_in_log(tmp_path / "0"))

        assert calls_in_log(tmp_path / "0") == 1


@pytest.fixture(scope="module")
def servers():
    with served_cells() as found:
        yield found


async def test_a_permission_is_used_once_over_all_replicas(redis_server, servers, tmp_path):
    two = [
        Settings(servers=servers, policy=(ASK,), state_dir=tmp_path / str(number))
        for number in range(2)
    ]
    async with (
        replicas(redis_server, *two) as opened,
        Decider("new", opened[0].url) as here,
        Decider("new", opened[1].url) as there,
    ):
        await allow(here, "new_ask")
        elsewhere = await call_once(there, "new_ask", answers={"who": NAMED})
        repeated = [
            await call_once(talker, "new_ask", answers={"who": NAMED}) for talker in (here, there)
        ]

        await allow(there, "new_ask")
        results = []

        async def go_on(talker):
            results.append(await call_once(talker, "new_ask", answers={"who": NAMED}))

        async with anyio.create_task_group() as tasks:
            for talker in (here, there, here, there):
                tasks.start_soon(go_on, talker)

    assert "Ada" in elsewhere.content[0].text
    assert all(map(is_permit, repeated))
    assert sorted(map(is_permit, results)) == [False, True, True, True]
