"""Hostile clients of every kind: the gateway and its other clients go on, and nothing is left."""

from contextlib import suppress

import pytest

from multitap.errors import MultitapError
from multitap.gateway.fronts.sessions import SessionLimits
from multitap.gateway.fronts.stdio import MAX_LINE
from tests.gateway.hostile import (
    bodies,
    crowds,
    heads,
    impostors,
    readers,
)
from tests.gateway.hostile.pipes import open_pipes
from tests.gateway.hostile.raw import (
    call,
    http,
    in_session,
    message,
    shake_hands,
)
from tests.gateway.hostile.stage import TOKENS, beside_healthy_clients, open_stage

KINDS = (heads, bodies, impostors, readers, crowds)
EVERYBODY = [hostile for kind in KINDS for hostile in kind.HOSTILE]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio", {"use_uvloop": True}  # as the program runs


@pytest.fixture(scope="module")
async def stage(tmp_path_factory):
    async with open_stage(tmp_path_factory.mktemp("stage")) as opened:
        hub = opened.gateway.hub
        with suppress(MultitapError):
            await hub.call(next(iter(hub.catalog.tools)))
        await hub.store.flush()  # what the first call opens stays open for all tests
        yield opened


@pytest.mark.parametrize("hostile", EVERYBODY, ids=lambda one: one.__name__)
async def test_the_others_are_served_while_some(hostile, stage):
    async with beside_healthy_clients(stage) as healthy:
        await hostile(stage, healthy)


@pytest.mark.parametrize("hostile", impostors.WITH_TOKENS, ids=lambda one: one.__name__)
async def test_no_harm_is_done_by_those_with_a_token_who(hostile, tmp_path):
    async with open_stage(tmp_path, tokens=TOKENS) as stage:
        await hostile(stage)


async def test_a_session_ends_that_nobody_uses(tmp_path):
    limits = SessionLimits(idle=0.05, look=0.01)
    async with open_stage(tmp_path, sessions=limits) as stage, stage.dial() as line:
        session = await shake_hands(line)
        await stage.until(lambda: not len(stage.front.sessions))
        response = await line.asks(in_session(session, message(1, "ping")))

        assert response.status == 404
        assert not stage.gateway.subscriptions.clients


async def test_the_gateway_ends_in_time_with_any_client_connected(tmp_path):
    async with open_stage(tmp_path) as stage, stage.dial() as half, stage.dial(window=4096) as deaf:
        await half.send(b"POST /mcp HTTP/1.1\r\n")
        session = await shake_hands(deaf)
        await deaf.send(in_session(session, readers.noise(10_000, size=200)))
        async with stage.dial() as listening:
            await listening.send(http("GET", mcp_session_id=session))
            assert (await listening.head())[0] == 200


async def test_nonsense_on_the_pipes_is_refused_and_nothing_else(tmp_path):
    async with open_pipes(tmp_path) as pipes:
        for nonsense in (
            b"hello",
            b"\xff\xfe\x00",
            b"[" * 100_000,
            b"[]",
            b"null",
            b'{"jsonrpc":"2.0","id":1,"method":',
            b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
            b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
            b'{"jsonrpc":"2.0","id":1,"method":"nope"}',
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
            b" " * (MAX_LINE + 1),
        ):
            assert "error" in await pipes.asks(nonsense), nonsense[:40]
        await pipes.send(
            b"", b"   ", b'{"jsonrpc":"2.0","id":99,"result":{}}', b'{"jsonrpc":"2.0"}'
        )
        said = await pipes.asks(call(1, "echo", said="still here"))

        assert "still here" in said["result"]["content"][0]["text"]


async def test_a_client_that_never_reads_its_pipe_can_leave_in_the_middle_of_a_message(tmp_path):
    async with open_pipes(tmp_path) as pipes:
        await pipes.send(*(call(number, "giant", size=1024 * 1024) for number in range(1, 20)))
        await pipes.send(call(20, "hang"))
        await pipes.process.stdin.send(b'{"jsonrpc":"2.0","id":21,"meth')
        await pipes.process.stdin.aclose()

        assert await pipes.ended() == 0
