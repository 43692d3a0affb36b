"""Clients that take all they can get, of everything there is only so much of, and one other."""

import json
from contextlib import AsyncExitStack

import anyio
import mcp_types as types
import pytest
from msgspec import Raw

from multitap.config import Limits
from multitap.errors import Overloaded
from multitap.serve.changes import Changes
from multitap.serve.errands import MOST_EACH, Errands
from multitap.serve.message import EMPTY, Params, Refused
from multitap.serve.peer import Peer
from multitap.serve.private import PrivateLinks
from multitap.serve.sessions import Mailbox, SessionLimits
from multitap.serve.turn import Turn
from tests.serve.hostile.raw import dial, hello, http, stateless
from tests.serve.hostile.stage import BEARER, OTHER_BEARER, TOKENS, open_stage
from tests.serve.talking import gate, zoo

PATIENCE = 15


async def until(holds):
    with anyio.fail_after(PATIENCE):
        while not holds():
            await anyio.sleep(0.005)


def client(principal):
    peer = Peer(Mailbox(), principal=principal)
    peer.introduce("2025-11-25", EMPTY, {})
    return peer


def turn(principal):
    peer = Peer(Mailbox(), principal=principal)
    return Turn(peer, Raw(b"1"), peer.outlet, Params(), modern=True)


async def test_sessions(tmp_path):
    async with open_stage(tmp_path, tokens=TOKENS, sessions=SessionLimits(most=8)) as stage:
        async with AsyncExitStack() as stack:
            statuses, words = [], b""
            for _ in range(8):
                line = await stack.enter_async_context(stage.dial())
                await line.send(http("GET", "/sse", authorization=BEARER))
                status, headers = await line.head()
                statuses.append(status)
                if status == 503:
                    words = await line.reader.readexactly(int(headers["content-length"]))
            other = await stack.enter_async_context(stage.dial())
            opened = await other.asks(http(body=hello(), authorization=OTHER_BEARER))

        await stage.until(lambda: len(stage.front.sessions) == 1)
        assert statuses == [200] * 6 + [503] * 2
        assert words == b"one client has 6 of all 8 sessions, and gets no more"
        assert opened.status == 200


async def test_sessions_that_nobody_uses_make_room_for_others_of_the_same_client(tmp_path):
    async with open_stage(tmp_path, tokens=TOKENS, sessions=SessionLimits(most=8)) as stage:
        async with stage.dial() as line:
            theirs = await line.asks(http(body=hello(), authorization=OTHER_BEARER))
            for _ in range(20):
                opened = await line.asks(http(body=hello(), authorization=BEARER))
                assert opened.status == 200
        ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
        session = theirs.headers["mcp-session-id"]
        async with stage.dial() as line:
            asked = http(body=ping, mcp_session_id=session, authorization=OTHER_BEARER)
            assert (await line.asks(asked)).status == 200


async def test_sessions_of_clients_with_servers(settings):
    names = [f"s{number}" for number in range(4)]
    async with gate(
        settings(**{name: zoo(session="per-client", start="lazy") for name in names})
    ) as opened:
        private = PrivateLinks(opened.hub, opened.gateway.tasks, most=4)
        links, greedy = opened.hub.links, client("ann")
        for name in names[:3]:
            await private.link(greedy, links[name])
        with pytest.raises(Overloaded, match="3 of all 4 sessions of single clients"):
            await private.link(greedy, links["s3"])
        other = await private.link(client("bob"), links["s3"])

        assert other is not links["s3"]


async def test_calls_that_may_have_to_wait_for_their_client():
    async def hang(_):
        await anyio.sleep_forever()

    async def ask(principal, errands):
        await errands.begin(turn(principal), "subject", hang)

    async def answer(_):
        return b"{}"

    async with anyio.create_task_group() as tasks:
        errands = Errands(tasks, most=8)
        for _ in range(6):
            tasks.start_soon(ask, "ann", errands)
        await until(lambda: len(errands) == 6)
        with pytest.raises(Refused, match="6 of all 8 calls"):
            await ask("ann", errands)

        assert await errands.begin(turn("bob"), "subject", answer) == b"{}"
        await until(lambda: len(errands) == 6)
        tasks.cancel_scope.cancel()


async def test_the_oldest_call_that_waits_gives_way_to_a_new_one_of_the_same_client():
    async def work(context):
        return bytes(await context.guest.ask("elicitation/create", {}))

    def asked(principal):
        meta = {types.CLIENT_CAPABILITIES_META_KEY: Raw(b'{"elicitation":{}}')}
        peer = Peer(Mailbox(), principal=principal)
        return Turn(peer, Raw(b"1"), peer.outlet, Params(meta=meta), modern=True)

    assert MOST_EACH > 6
    async with anyio.create_task_group() as tasks:
        errands = Errands(tasks, most=8)
        for _ in range(10):
            assert b"input_required" in await errands.begin(asked("ann"), "subject", work)
        assert b"input_required" in await errands.begin(asked("bob"), "subject", work)

        await until(lambda: len(errands) == 7)
        tasks.cancel_scope.cancel()


async def test_streams_of_changes(settings):
    wanted = types.SubscriptionFilter(tools_list_changed=True)

    def find(uri):
        raise Refused(-32002, uri)

    async with gate(settings()) as opened, anyio.create_task_group() as tasks:
        changes = Changes(opened.hub, opened.gateway.view, tasks, most=4)
        for _ in range(3):
            tasks.start_soon(changes.listen, turn("ann"), wanted, find)
        await until(lambda: len(changes._streams) == 3)
        with pytest.raises(Refused, match="3 of all 4 streams of changes"):
            await changes.listen(turn("ann"), wanted, find)
        tasks.start_soon(changes.listen, turn("bob"), wanted, find)
        await until(lambda: len(changes._streams) == 4)
        tasks.cancel_scope.cancel()


async def test_the_time_of_a_server(settings):
    """However many calls hang, of one client, that of another is answered."""
    server = zoo("good_legacy", limits=Limits(in_flight=4, queue=4))
    async with gate(settings(zoo=server), tokens=TOKENS) as opened:
        port = int(opened.url.split(":")[2].partition("/")[0])
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(dial(port)) for _ in range(7)]
            for line in lines:
                await line.send(call("zoo_sleep", BEARER, seconds=60))
            refused = (await lines[-1].response()).message
            async with dial(port) as other:
                answered = await other.asks(call("zoo_echo", OTHER_BEARER, text="hi"))
                again = await other.asks(call("zoo_echo", OTHER_BEARER, text="there"))

    assert "3 of all 4 waiting calls" in refused["error"]["message"]
    assert [answered.text, again.text] == ["hi", "there"]


def call(tool, bearer, **arguments):
    headers = {"authorization": bearer}
    return stateless(1, "tools/call", name=tool, arguments=arguments, headers=headers)
