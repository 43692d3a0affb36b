"""Clients that impersonate others, or interfere with them."""

import json
import secrets

from tests.gateway.hostile.raw import (
    call,
    hello,
    http,
    in_session,
    message,
    shake_hands,
    stateless,
)
from tests.gateway.hostile.stage import BEARER, OTHER_BEARER

ASKED = {"elicitation": {}}
ANSWER = {"action": "accept", "content": {"name": "Ada"}}


async def guess_sessions(stage, healthy):
    async with stage.dial() as line:
        own = await shake_hands(line)
        guesses = [secrets.token_urlsafe(24) for _ in range(200)]
        for guess in (*guesses, own[:-1], own.swapcase(), f"{own} ", "", "null", "%00", "ä" * 32):
            asked = in_session(guess, message(1, "tools/list"))
            if guess.strip() != own:
                assert (await line.asks(asked)).status == 404, guess
                assert (await line.asks(http("DELETE", mcp_session_id=guess))).status == 404


async def bring_a_session_of_their_own(stage, healthy):
    async with stage.dial() as line:
        wanted = "a-session-that-somebody-else-knows"
        response = await line.asks(in_session(wanted, hello()))

        assert response.headers["mcp-session-id"] != wanted
        assert (await line.asks(in_session(wanted, message(1, "ping")))).status == 404


async def answer_what_others_are_asked(stage, healthy):
    """Guess the ids of questions, which are small numbers, and answer them first."""
    async with stage.dial() as victim, stage.dial() as line, stage.dial() as third:
        asked_one = await shake_hands(victim, capabilities=ASKED)
        session = await shake_hands(line)
        await victim.send(in_session(asked_one, call("a", "ask")))
        await victim.head()
        while b"elicitation/create" not in (event := await victim.chunk()):
            continue
        question = json.loads(event.partition(b"data: ")[2])["id"]
        for number in range(50):
            wrong = {"jsonrpc": "2.0", "id": number, "result": {"action": "decline"}}
            assert (await line.asks(in_session(session, wrong))).status == 202
            assert (await line.asks(http(body=json.dumps(wrong).encode()))).status == 400
        right = {"jsonrpc": "2.0", "id": question, "result": ANSWER}
        assert (await third.asks(in_session(asked_one, right))).status == 202
        assert b"Ada" in await victim.chunk()


async def cancel_what_others_wait_for(stage, healthy):
    async with stage.dial() as victim, stage.dial() as line:
        theirs = await shake_hands(victim)
        session = await shake_hands(line)
        await victim.send(in_session(theirs, call(7, "hang")))
        await stage.until_upstream(open=1)
        cancel = {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": 7},
        }
        assert (await line.asks(in_session(session, cancel))).status == 202
        assert (await line.asks(stateless(7, "notifications/cancelled", requestId=7))).status != 200
        assert (await line.asks(http(body=json.dumps(cancel).encode()))).status == 400
        assert (await stage.stats())["open"] == 1
        assert (await line.asks(in_session(theirs, cancel))).status == 202
        assert (await victim.response()).message["error"]["code"] == -32800


async def use_an_id_twice(stage, healthy):
    async with stage.dial() as first, stage.dial() as second:
        session = await shake_hands(first)
        await first.send(in_session(session, call(1, "hang")))
        await stage.until_upstream(open=1)
        for _ in range(20):
            assert (await second.asks(in_session(session, call(1, "hang")))).status == 400
        assert (await stage.stats())["open"] == 1


async def forge_tickets(stage):
    """Return with tickets of other clients, or with forged ones."""

    def ask(**more):
        return stateless(
            1, "tools/call", name="asks_ask", arguments={}, able=ASKED,
            headers={"authorization": BEARER}, **more,
        )  # fmt: skip

    async with stage.dial() as line:
        result = (await line.asks(ask())).message["result"]
        ticket, (question,) = result["requestState"], result["inputRequests"]
        answers = {question: {"action": "accept", "content": {}}}
        middle = len(ticket) // 2
        flipped = ticket[:middle] + ("A" if ticket[middle] != "A" else "B") + ticket[middle + 1 :]
        for forged in (flipped, ticket[:-4], "multitap:", "multitap:" + "A" * 100, ticket * 100):
            told = (await line.asks(ask(requestState=forged, inputResponses=answers))).message
            assert told["error"]["data"]["reason"] == "invalid_request_state", forged
        stolen = stateless(
            1, "tools/call", name="asks_ask", arguments={}, able=ASKED, requestState=ticket,
            inputResponses=answers, headers={"authorization": OTHER_BEARER},
        )  # fmt: skip
        assert "error" in (await line.asks(stolen)).message
        moved = stateless(
            1, "tools/call", name="counts_echo", arguments={}, able=ASKED, requestState=ticket,
            inputResponses=answers, headers={"authorization": BEARER},
        )  # fmt: skip
        assert "error" in (await line.asks(moved)).message
        done = (
            await line.asks(ask(requestState=ticket, inputResponses={question: ANSWER}))
        ).message
        assert "Ada" in done["result"]["content"][0]["text"]
        again = (await line.asks(ask(requestState=ticket, inputResponses=answers))).message
        assert "error" in again


async def use_sessions_of_others(stage):
    """With a token, but not the one the session was opened with."""
    async with stage.dial() as victim, stage.dial() as line:
        opened = await victim.asks(http(body=hello(), authorization=BEARER))
        session = opened.headers["mcp-session-id"]
        ping = message(1, "ping")
        asked = in_session(session, ping, authorization=OTHER_BEARER)
        assert (await line.asks(asked)).status == 404
        for method in ("GET", "DELETE"):
            touched = http(method, mcp_session_id=session, authorization=OTHER_BEARER)
            assert (await line.asks(touched)).status == 404
        for bearer in (None, "Bearer guessed-it-did-you"):
            asked = in_session(session, ping, authorization=bearer)
            assert await stage.turns_away(asked) == 401
            for method in ("GET", "DELETE"):
                touched = http(method, mcp_session_id=session, authorization=bearer)
                assert await stage.turns_away(touched) == 401
        own = in_session(session, ping, authorization=BEARER)
        assert (await victim.asks(own)).message["result"] == {}


async def write_to_event_streams_of_others(stage, healthy):
    async with stage.dial() as victim, stage.dial() as line:
        await victim.send(http("GET", "/sse"))
        await victim.head()
        place = (await victim.chunk()).decode().split("data: ")[1].strip()
        ping = json.dumps(message(1, "ping")).encode()
        for guess in ("", "a", place.partition("=")[2][:-1], secrets.token_urlsafe(24)):
            path = f"/messages?session_id={guess}"
            assert (await line.asks(http(path=path, body=ping))).status == 404
        assert (await line.asks(http(path=place, body=ping))).status == 202
        assert b'"result"' in await victim.chunk()


async def come_by_another_name(stage, healthy):
    """A foreign page after DNS rebinding."""
    paths = ("/mcp", "/sse", "/messages", "/health", "/metrics", "/", "/nowhere")
    hosts = ("evil.example", "127.0.0.1.evil.example", "localhost:80@evil", "", "[")
    origins = ("http://evil.example", "null", "http://[", "http://localhost:1@evil")
    for path in paths:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            for host in hosts:
                assert await stage.turns_away(http(method, path, host=host)) == 421
            for origin in origins:
                assert await stage.turns_away(http(method, path, origin=origin)) == 403


async def embed_what_they_may_not_read(stage, healthy):
    """A foreign page with an image, a script or a link: such requests have no Origin."""
    for path in ("/mcp", "/sse", "/messages", "/health", "/metrics", "/", "/nowhere"):
        for site in ("cross-site", "same-site", "Cross-Site", "anything"):
            assert await stage.turns_away(http("GET", path, sec_fetch_site=site)) == 403
    async with stage.dial() as line:
        for site in ("none", "same-origin"):
            response = await line.asks(http("GET", "/health", sec_fetch_site=site))
            assert response.status == 200
            assert response.headers["x-content-type-options"] == "nosniff"
        own = http("GET", "/health", sec_fetch_site="same-site", origin="http://localhost:6274")
        assert (await line.asks(own)).status == 200


async def vanish_while_they_are_asked(stage, healthy):
    """Of both eras: one of them will never come back for its call."""
    async with stage.dial() as old:
        session = await shake_hands(old, capabilities=ASKED)
        await old.send(in_session(session, call(1, "ask")))
        await stage.until_upstream(open=1)
        await old.head()  # of a stream, for which it may come back
    await stage.until(lambda: stage.front.sessions.away.total == 1)
    async with stage.dial() as again:
        await again.asks(http("DELETE", mcp_session_id=session))
    await stage.until_upstream(open=0)
    async with stage.dial() as new:
        asked = stateless(1, "tools/call", name="asks_ask", arguments={}, able=ASKED)
        assert (await new.asks(asked)).message["result"]["resultType"] == "input_required"
        assert len(stage.gateway.parked_calls) == 1
    await stage.until_upstream(open=0)


HOSTILE = (
    guess_sessions,
    bring_a_session_of_their_own,
    answer_what_others_are_asked,
    cancel_what_others_wait_for,
    use_an_id_twice,
    write_to_event_streams_of_others,
    come_by_another_name,
    embed_what_they_may_not_read,
    vanish_while_they_are_asked,
)
WITH_TOKENS = (forge_tickets, use_sessions_of_others)
