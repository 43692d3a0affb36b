"""Clients of the SDK behind a balancer that sends each connection to another replica."""

import asyncio
from contextlib import asynccontextmanager, suppress
from itertools import cycle

import anyio
import pytest

from multitap import Settings
from tests.cluster.redis_server import needs_redis
from tests.cluster.staging import replicas
from tests.gateway.talking import Talker, zoo

pytestmark = needs_redis


@asynccontextmanager
async def balancer(*ports):
    """The address of one that knows nothing but TCP."""
    turns = cycle(ports)

    async def pump(reader, writer):
        with suppress(ConnectionError):
            while part := await reader.read(2**16):
                writer.write(part)
                await writer.drain()
        writer.close()

    async def serve(from_client, to_client):
        # by number, which takes no thread to look up
        from_replica, to_replica = await asyncio.open_connection("127.0.0.1", next(turns))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump, from_client, to_replica)
            tasks.start_soon(pump, from_replica, to_client)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


@pytest.mark.parametrize("era", ["old", "new"])
async def test_clients_behind_a_balancer_notice_nothing(redis_server, tmp_path, era):
    settings = [
        Settings(state_dir=tmp_path / str(number), servers={"zoo": zoo("good_legacy")})
        for number in range(3)
    ]
    async with replicas(redis_server, *settings) as opened:
        ports = [opened.port(number) for number in range(3)]
        async with balancer(*ports) as url, Talker(era, url) as talker:
            answers = []

            async def call(number):
                result = await talker.client.call_tool("zoo_echo", {"text": str(number)})
                answers.append(result.content[0].text)

            async with anyio.create_task_group() as tasks:
                for number in range(12):  # at once, or one connection would do
                    tasks.start_soon(call, number)
            asked = [await talker.client.call_tool("zoo_ask", {}) for _ in range(3)]
        served = [len(one.front.sessions) for one in opened.gates]

    assert sorted(answers, key=int) == [str(number) for number in range(12)]
    assert all("Ada" in one.content[0].text for one in asked)
    assert era == "new" or sum(served) == 0
