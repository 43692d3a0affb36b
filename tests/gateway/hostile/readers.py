"""Clients that ask and do not read, or read too little."""

import anyio

from tests.gateway.hostile.raw import (
    PATIENCE,
    call,
    http,
    in_session,
    message,
    shake_hands,
    stateless,
)

WINDOW = 4096


def noise(times, *, token="t", size=0):
    return call(1, "noise", times=times, size=size, _meta={"progressToken": token})


async def never_read_a_giant_answer(stage, healthy):
    async with stage.dial(window=WINDOW) as old, stage.dial(window=WINDOW) as new:
        session = await shake_hands(old)
        # both are counted from here on: one may be gone before the other has asked
        assert (await new.asks(stateless(1, "tools/list"))).status == 200
        await old.send(in_session(session, call(1, "giant", size=8 * 1024 * 1024)))
        arguments = {"size": 8 * 1024 * 1024}
        await new.send(stateless(2, "tools/call", name="counts_giant", arguments=arguments))
        await stage.until(lambda: stage.crowd() == stage.usual)


async def never_read_their_answers(stage, healthy):
    """Ask for more and more on the same connection."""
    async with stage.dial(window=WINDOW) as line:
        session = await shake_hands(line)
        asked = in_session(session, call(1, "giant", size=1024 * 1024))
        await line.send(asked * 100)
        await stage.until(lambda: stage.crowd() == stage.usual)
        assert stage.memory() < stage.usual_memory + 100 * 2**20


async def never_read_a_stream(stage, healthy):
    async with stage.dial(window=WINDOW) as line:
        session = await shake_hands(line)
        await line.send(in_session(session, noise(10_000, size=200)))
        await stage.until(lambda: stage.crowd() == stage.usual)


async def never_listen_to_what_they_follow(stage, healthy):
    async with stage.dial(window=WINDOW) as deaf:
        async with stage.dial() as line:
            session = await shake_hands(line)
            follow = message(1, "resources/subscribe", uri="notes://" + "x" * 4000)
            assert (await line.asks(in_session(session, follow))).message["result"] == {}
            await deaf.send(http("GET", mcp_session_id=session))
            touch = call(2, "touch", times=3000)
            assert (await line.asks(in_session(session, touch))).text == "touched"
        await stage.until(lambda: stage.crowd() == stage.usual)


async def abuse_progress_tokens(stage, healthy):
    async with stage.dial() as line:
        session = await shake_hands(line)
        for token in (None, {"a": [1]}, [], 1.5, "\n\ndata: {}\n\n", "é" * 1000):
            response = await line.asks(in_session(session, noise(2, token=token)))
            assert response.text == "quiet"
            assert all(told["params"]["progressToken"] == token for told in response.events[:-1])
    async with stage.dial(window=WINDOW) as deaf:
        await deaf.send(in_session(session, noise(500, token="t" * 500_000)))
        await stage.until(lambda: stage.crowd() == stage.usual)
        assert stage.memory() < stage.usual_memory + 200 * 2**20


async def hang_up_in_the_middle_of_an_answer(stage, healthy):
    for _ in range(4):
        async with stage.dial(window=WINDOW) as line:
            session = await shake_hands(line)
            await line.send(in_session(session, call(1, "giant", size=4 * 1024 * 1024)))
            await line.reader.readexactly(1000)
            line.reset()
        async with stage.dial(window=WINDOW) as line:
            await line.send(in_session(session, noise(500, size=1000)))
            await line.reader.readexactly(1000)
            line.reset()


async def read_a_byte_at_a_time(stage, healthy):
    """Slow is not hostile: a client that keeps reading gets its whole answer."""
    size = 1024 * 1024
    async with stage.dial(window=WINDOW) as line:
        session = await shake_hands(line)
        await line.send(in_session(session, call(1, "giant", size=size)))
        with anyio.fail_after(PATIENCE):
            _, headers = await line.head()
            left = int(headers["content-length"])
            assert left > size
            while left > 0:
                left -= len(await line.reader.read(65536))
                await anyio.sleep(0.01)  # it reads slowly: that is its attack


HOSTILE = (
    never_read_a_giant_answer,
    never_read_their_answers,
    never_read_a_stream,
    never_listen_to_what_they_follow,
    abuse_progress_tokens,
    hang_up_in_the_middle_of_an_answer,
    read_a_byte_at_a_time,
)
