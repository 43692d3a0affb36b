"""Tasks of clients of three gateways, one of which is killed."""

import itertools
import random
from contextlib import ExitStack

import anyio
import httpx2
import pytest

from tests.cluster.redis_server import needs_redis
from tests.cluster.test_killed_replica import Gateway
from tests.gateway import task_server
from tests.gateway.task_clients import NewClient, Refused
from tests.waiting import PATIENCE
from tests.wire.sdk_web import served

pytestmark = [needs_redis]


async def test_no_task_is_lost_when_its_gateway_is_killed(redis_server, tmp_path):
    redis_server.ask("FLUSHALL")
    servers = {}
    with ExitStack() as stack:
        urls = {
            era: stack.enter_context(served(task_server.app(era, servers)))
            for era in ("old", "new")
        }
        entries = [f'[servers.{era}]\nurl = "{url}/mcp"\n' for era, url in urls.items()]
        text = "auto_reload = false\n" + "".join(entries)
        gateways = []
        for number in range(3):
            gateways.append(Gateway(tmp_path, number, redis_server.url, text))
            stack.callback(gateways[-1].close)
        for gateway in gateways:
            gateway.wait()
        first, second, third = (f"http://127.0.0.1:{gateway.port}/mcp" for gateway in gateways)
        work = {"seconds": 4, "label": "x"}
        async with NewClient(first) as one, NewClient(second) as two, NewClient(third) as three:
            tasks = [await one.begin(f"{era}_slow_compute", work) for era in urls]
            asking = [await one.begin(f"{era}_confirm_delete") for era in urls]
            seen = [(await two.get(task))["status"] for task in tasks]
            await anyio.to_thread.run_sync(gateways[0].kill)
            ended = [await three.reach(task, "completed", "failed") for task in tasks]
            answered = [await two.finish(task) for task in asking]

    assert seen == ["working", "working"]
    assert [state["result"]["content"][0]["text"] for state in ended] == ["computed x"] * 2
    assert [result["content"][0]["text"] for result in answered] == ["accept {'confirm': True}"] * 2
    for server in servers.values():
        assert sorted(server.calls) == ["confirm_delete", "slow_compute"]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_id_has_one_end_while_gateways_are_killed(redis_server, tmp_path):
    redis_server.ask("FLUSHALL")
    servers, given, chance = {}, {}, random.Random(5)
    with ExitStack() as stack:
        urls = {
            era: stack.enter_context(served(task_server.app(era, servers)))
            for era in ("old", "new")
        }
        entries = [f'[servers.{era}]\nurl = "{url}/mcp"\n' for era, url in urls.items()]
        text = "auto_reload = false\n" + "".join(entries)
        numbers, labels = itertools.count(), itertools.count()

        def start():
            gateway = Gateway(tmp_path, next(numbers), redis_server.url, text)
            stack.callback(gateway.close)
            return gateway

        gateways = [start() for _ in range(3)]
        for gateway in gateways:
            gateway.wait()

        async def begin_tasks():
            while True:
                port, label = chance.choice(gateways).port, f"l{next(labels)}"
                tool = f"{chance.choice(('old', 'new'))}_slow_compute"
                arguments = {"seconds": chance.uniform(0.1, 4), "label": label}
                try:
                    async with NewClient(f"http://127.0.0.1:{port}/mcp") as client:
                        given[await client.begin(tool, arguments)] = label
                except (httpx2.HTTPError, Refused):
                    await anyio.sleep(0.2)  # its gateway was killed before it gave an id

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(begin_tasks)
            for _ in range(3):
                before = len(given)
                with anyio.fail_after(PATIENCE):
                    while len(given) < before + 20:
                        await anyio.sleep(0.05)
                await anyio.to_thread.run_sync(gateways.pop(0).kill)
                gateways.append(await anyio.to_thread.run_sync(start))
                await anyio.to_thread.run_sync(gateways[-1].wait)
            tasks.cancel_scope.cancel()
        ends = {}
        async with NewClient(f"http://127.0.0.1:{gateways[-1].port}/mcp") as client:
            for task, label in given.items():
                ends[label] = await client.reach(task, "completed", "failed", "cancelled")

    assert len(given) >= 60
    assert {label: state["result"]["content"][0]["text"] for label, state in ends.items()} == {
        label: f"computed {label}" for label in given.values()
    }
    for server in servers.values():
        assert len(server.labels) == len({*server.labels})
