"""Clients that take all they can get, of everything there is only so much of, and one other."""

import json
from contextlib import AsyncExitStack

import anyio
import mcp_types as types
import pytest
from msgspec import Raw

from multitap.config import Limits
from multitap.errors import Overloaded
from multitap.gateway.client import Client, stateless_request
from multitap.gateway.fronts.sessions import SessionLimits
from multitap.gateway.parked_calls import MOST_EACH, ParkedCalls
from multitap.gateway.private_links import PrivateLinks
from multitap.gateway.subscriptions import Subscriptions, WantedNotifications
from multitap.http.server.request import EventWriter
from multitap.principal import token_principal
from multitap.tasks import Tasks
from multitap.wire.jsonrpc import EMPTY, RequestParams, RpcError
from tests.gateway.hostile.raw import (
    dial,
    hello,
    http,
    stateless,
)
from tests.gateway.hostile.stage import (
    BEARER,
    OTHER_BEARER,
    TOKENS,
    open_stage,
)
from tests.gateway.talking import gate, zoo
from tests.waiting import until


def client(principal):
    client = Client(EventWriter(), principal=token_principal(principal))
    client.introduce("2025-11-25", EMPTY, {})
    return client


def request(principal):
    client = Client(EventWriter(), principal=token_principal(principal))
    return stateless_request(client, Raw(b"1"), client.outlet, RequestParams())


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
        assert words == b"one client already has 6 of the 8 sessions"
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
        with pytest.raises(Overloaded, match="3 of the 4 sessions of single clients"):
            await private.link(greedy, links["s3"])
        other = await private.link(client("bob"), links["s3"])

        assert other is not links["s3"]


async def test_calls_that_may_have_to_wait_for_their_client():
    async def hang(_):
        await anyio.sleep_forever()

    async def ask(principal, parked_calls):
        await parked_calls.begin(request(principal), "subject", hang)

    async def answer(_):
        return b"{}"

    async with Tasks() as runs, anyio.create_task_group() as tasks:
        parked_calls = ParkedCalls(runs, most=8)
        for _ in range(6):
            tasks.start_soon(ask, "ann", parked_calls)
        await until(lambda: len(parked_calls) == 6)
        with pytest.raises(RpcError, match="6 of the 8 calls"):
            await ask("ann", parked_calls)

        assert await parked_calls.begin(request("bob"), "subject", answer) == b"{}"
        await until(lambda: len(parked_calls) == 6)
        tasks.cancel_scope.cancel()


def asking_request(**identity):
    """A request of a client that can be asked, and is."""
    meta = {types.CLIENT_CAPABILITIES_META_KEY: Raw(b'{"elicitation":{}}')}
    client = Client(EventWriter(), **identity)
    return stateless_request(client, Raw(b"1"), client.outlet, RequestParams(meta=meta))


async def asks_client(context):
    return bytes(await context.client.ask("elicitation/create", {}))


async def test_the_oldest_call_that_waits_gives_way_to_a_new_one_of_the_same_client():
    def asked(principal):
        return asking_request(principal=token_principal(principal))

    assert MOST_EACH > 6
    async with Tasks() as runs, anyio.create_task_group() as tasks:
        parked_calls = ParkedCalls(runs, most=8)
        for _ in range(10):
            result = await parked_calls.begin(asked("ann"), "subject", asks_client)
            assert b"input_required" in result
        result = await parked_calls.begin(asked("bob"), "subject", asks_client)
        assert b"input_required" in result

        await until(lambda: len(parked_calls) == 7)
        tasks.cancel_scope.cancel()


async def test_the_calls_of_a_stranger_do_not_give_way_to_those_of_another():
    async with Tasks() as runs, anyio.create_task_group() as tasks:
        parked_calls = ParkedCalls(runs)
        first = await parked_calls.begin(asking_request(holder="10.0.0.1"), "s", asks_client)
        for _ in range(MOST_EACH + 1):
            await parked_calls.begin(asking_request(holder="10.0.0.2"), "s", asks_client)
        back = asking_request(holder="10.0.0.1")
        back.params.request_state = json.loads(first)["requestState"]

        await until(lambda: len(parked_calls) == MOST_EACH + 1)
        assert b"input_required" in await parked_calls.resume(back, "s")
        tasks.cancel_scope.cancel()


async def test_strangers_at_other_addresses_have_other_sessions_with_servers(settings):
    async with gate(settings(own=zoo(session="per-client", start="lazy"))) as opened:
        private, shared = opened.gateway.private, opened.hub.links["own"]
        one, other = (Client(EventWriter(), holder=f"10.0.0.{number}") for number in (1, 2))
        link = await private.link(one, shared)

        assert await private.link(one, shared) is link
        assert await private.link(other, shared) is not link


async def test_streams_of_changes(settings):
    wanted = WantedNotifications(tools_list_changed=True)

    def find(uri):
        raise RpcError(-32002, uri)

    async with gate(settings()) as opened, anyio.create_task_group() as tasks:
        subscriptions = Subscriptions(opened.hub, opened.gateway.view, tasks, most=4)
        for _ in range(3):
            tasks.start_soon(subscriptions.listen, request("ann"), wanted, find)
        await until(lambda: len(subscriptions._streams) == 3)
        with pytest.raises(RpcError, match="3 of the 4 streams of changes"):
            await subscriptions.listen(request("ann"), wanted, find)
        tasks.start_soon(subscriptions.listen, request("bob"), wanted, find)
        await until(lambda: len(subscriptions._streams) == 4)
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

    assert "3 of the 4 waiting calls" in refused["error"]["message"]
    assert [answered.text, again.text] == ["hi", "there"]


def call(tool, bearer, **arguments):
    headers = {"authorization": bearer}
    return stateless(1, "tools/call", name=tool, arguments=arguments, headers=headers)
