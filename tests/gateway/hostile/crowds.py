"""Too many clients."""

from contextlib import suppress

import anyio

from multitap.gateway.parked_calls import MOST_EACH
from tests.gateway.hostile.raw import (
    call,
    hello,
    http,
    in_session,
    message,
    shake_hands,
    stateless,
)
from tests.gateway.hostile.stage import BRIEF

ASKED = {"elicitation": {}}


async def send_a_thousand_requests_at_once(stage, healthy):
    async with stage.dial() as line:
        session = await shake_hands(line)
        await line.send(b"".join(in_session(session, message(n, "ping")) for n in range(1000)))
        for number in range(1000):
            assert (await line.response()).message["id"] == number
    async with stage.dial() as line:
        hang = in_session(session, call("h", "hang"))
        await line.send(hang + b"".join(in_session(session, message(n, "ping")) for n in range(9)))
        await stage.until_upstream(open=1)
    await stage.until_upstream(open=0)


async def open_thousands_of_sessions(stage, healthy):
    most = stage.front.sessions.limits.most
    async with stage.dial() as line:
        for number in range(600):
            response = await line.asks(http(body=hello()))
            assert response.status == 200, number
            assert len(stage.front.sessions) <= most
            if number % 2:
                session = response.headers["mcp-session-id"]
                done = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
                assert (await line.asks(in_session(session, done))).status == 202
        assert len(stage.gateway.subscriptions.clients) <= most


async def open_sessions_and_keep_them_busy(stage, healthy):
    """Busy sessions are not ended for new ones, which are refused."""
    most = stage.front.sessions.limits.most
    statuses = []

    async def listen():
        async with stage.dial() as line:
            await line.send(http("GET", "/sse"))
            statuses.append((await line.head())[0])
            await done.wait()

    done = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(most + 20):
            tasks.start_soon(listen)
        await stage.until(lambda: len(statuses) == most + 20)
        assert statuses.count(503) >= 20
        await healthy.goes_on()
        done.set()


async def listen_over_and_over(stage, healthy):
    async with stage.dial() as line:
        session = await shake_hands(line)

    async def listen():
        async with stage.dial() as line:
            await line.send(http("GET", mcp_session_id=session))
            assert (await line.head())[0] == 200
            await done.wait()

    done = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(listen)
        await healthy.goes_on(10)
        done.set()


async def vanish_in_the_middle_of_calls(stage, healthy):
    before = (await stage.stats())["cancelled"]

    async def vanish(number):
        async with stage.dial() as line:
            if number % 2:
                session = await shake_hands(line)
                await line.send(in_session(session, call(1, "hang")))
            else:
                asked = stateless(1, "tools/call", name="counts_hang", arguments={}, able=ASKED)
                await line.send(asked)
            await everybody.wait()
            line.reset()

    everybody = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(vanish, number)
        await stage.until_upstream(open=30)
        everybody.set()
    await stage.until_upstream(open=0, cancelled=before + 30)


async def vanish_at_once(stage, healthy):
    """Before anybody has looked at what they asked."""
    async with stage.dial() as line:
        session = await shake_hands(line)
    asked = (
        http("GET", "/sse"),
        http("GET", mcp_session_id=session),
        in_session(session, call(1, "hang")),
        stateless(1, "tools/call", name="counts_hang", arguments={}),
        stateless(1, "subscriptions/listen", notifications={"toolsListChanged": True}),
        http(body=hello()),
    )
    for number in range(240):
        async with stage.dial() as line:
            await line.send(asked[number % len(asked)])
            if number % 4 == 0:
                await anyio.lowlevel.checkpoint()
            line.reset()
    await stage.until_upstream(open=0)


async def listen_for_changes_in_crowds(stage, healthy):
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["notes://"]}

    async def listen(number):
        async with stage.dial() as line:
            await line.send(stateless(number, "subscriptions/listen", notifications=wanted))
            await line.head()
            await line.chunk()
            await done.wait()

    done = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(listen, number)
        await stage.until(lambda: len(stage.gateway.subscriptions._streams) == 60)
        await healthy.goes_on()
        done.set()
    await stage.until_upstream(followed=0)


async def follow_everything_there_could_be(stage, healthy):
    async with stage.dial() as line:
        session = await shake_hands(line)
        asked = [
            in_session(session, message(n, "resources/subscribe", uri=f"notes://{n}"))
            for n in range(1010)
        ]
        told = []
        for start in range(0, len(asked), 10):
            await line.send(b"".join(asked[start : start + 10]))
            told += [(await line.response()).message for _ in range(10)]
        assert sum("error" in one for one in told) == 10
        long = message(1, "resources/subscribe", uri="notes://" + "x" * 100_000)
        assert "error" in (await line.asks(in_session(session, long))).message
        assert (await line.asks(http("DELETE", mcp_session_id=session))).status == 200
    await stage.until_upstream(followed=0)


async def keep_more_calls_waiting_than_may_wait(stage, healthy):
    """Of the stateless era, able to be asked: others of that kind still can call."""
    hang = stateless(1, "tools/call", name="counts_hang", arguments={}, able=ASKED)

    async def wait():
        async with stage.dial() as line:
            await line.send(hang)
            await done.wait()

    done = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(MOST_EACH + 8):
            tasks.start_soon(wait)
        await stage.until_upstream(open=MOST_EACH + 8)
        async with stage.dial() as line:
            said = {"said": 1}
            echo = stateless(1, "tools/call", name="counts_echo", arguments=said, able=ASKED)
            assert (await line.asks(echo)).text == "1"
        done.set()


async def take_every_connection(stage, healthy):
    """None is left for others, unless those that do nothing make room."""
    most = BRIEF.connections
    async with anyio.create_task_group() as tasks:

        async def sit():
            while True:  # again and again: each place is free after a moment
                with suppress(ConnectionError):
                    async with stage.dial() as line:
                        await line.send(b"GET /health HTTP/1.1\r\n")
                        await line.closed()

        for _ in range(2 * most):
            tasks.start_soon(sit)
        await stage.until(lambda: stage.crowd() >= most - 1)
        async with stage.dial() as newcomer:
            assert (await newcomer.asks(http("GET", "/health"))).status == 200
        await healthy.goes_on()
        tasks.cancel_scope.cancel()


HOSTILE = (
    send_a_thousand_requests_at_once,
    open_thousands_of_sessions,
    open_sessions_and_keep_them_busy,
    listen_over_and_over,
    vanish_in_the_middle_of_calls,
    vanish_at_once,
    listen_for_changes_in_crowds,
    follow_everything_there_could_be,
    keep_more_calls_waiting_than_may_wait,
    take_every_connection,
)
