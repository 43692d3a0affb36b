"""Streams of the handshake era that lose their connection, and the clients that come back."""

from contextlib import asynccontextmanager

import anyio
import pytest

from multitap.gateway.fronts.sessions import SessionLimits
from multitap.gateway.fronts.streams import EventLog, LoggedEvent, LogLimits, parse_event_id
from multitap.gateway.fronts.tokens import Token
from multitap.limits import Shares
from tests.gateway.hostile.raw import message
from tests.gateway.session_client import SessionClient
from tests.gateway.talking import Talker, gate, zoo
from tests.waiting import PATIENCE, until

ANN, BOB = Token(b"the-token-of-ann-1", "ann"), Token(b"the-token-of-bob-1", "bob")


def bearer(token):
    return {"authorization": f"Bearer {token.secret.decode()}"}


def progress_of(steps, interval=0.01, request_id=7):
    arguments = {"steps": steps, "interval": interval}
    meta = {"progressToken": f"of {request_id}"}
    return message(request_id, "tools/call", name="zoo_progress", arguments=arguments, _meta=meta)


def port_of(opened):
    return int(opened.url.rpartition(":")[2].partition("/")[0])


@asynccontextmanager
async def raw_client(settings, version="2025-11-25", **capabilities):
    async with gate(settings(zoo=zoo("good_legacy")), tokens=(ANN, BOB)) as opened:
        client = SessionClient(port_of(opened), bearer(ANN), version)
        yield opened, await client.shake_hands(**capabilities)


async def test_a_call_whose_stream_is_cut_goes_on_and_nothing_of_it_is_lost(settings):
    async with raw_client(settings) as (_, client):
        steps, answer = [], None
        async with client.streams(progress_of(12)) as stream:
            while len(steps) < 3:
                steps.append((await stream.event())["params"]["progress"])
            last_id, retry = stream.last_id, stream.retry
        while answer is None:  # cut again and again
            async with client.listens(last_id) as stream:
                for _ in range(2):
                    told = await stream.event()
                    if "result" in told:
                        answer = told
                        assert await stream.event() is None
                        break
                    steps.append(told["params"]["progress"])
                last_id = stream.last_id

    assert int(retry) > 0
    assert steps == [*range(1, 13)]
    assert answer["id"] == 7
    assert answer["result"]["content"][0]["text"] == "12 steps"


async def test_a_stream_can_be_resumed_before_its_first_message(settings):
    async with raw_client(settings) as (_, client):
        async with client.streams(progress_of(3)) as stream:
            part = await stream.line.chunk()
            primed = part.split(b"\r\n\r\n")[0].split(b"\r\n")
            name = next(one[4:] for one in primed if one.startswith(b"id: "))
        async with client.listens(name) as stream:
            told = [await stream.event() for _ in range(4)]

    assert b"data: " in primed
    assert [one["params"]["progress"] for one in told[:3]] == [1, 2, 3]
    assert "result" in told[3]


async def test_an_answer_can_be_fetched_again_after_it_was_sent(settings):
    async with raw_client(settings, "2025-06-18") as (_, client):
        async with client.streams(progress_of(2)) as stream:
            first = await stream.event()
            first_id = stream.last_id
            rest = [await stream.event(), await stream.event()]
            assert await stream.event() is None
        async with client.listens(first_id) as stream:
            again = [await stream.event(), await stream.event()]
            assert await stream.event() is None

    assert first["params"]["progress"] == 1
    assert again == rest


async def test_streams_of_one_session_are_not_mixed_up(settings):
    async with raw_client(settings) as (_, client):
        one, two = progress_of(6, request_id=1), progress_of(6, request_id=2)
        async with client.streams(one) as first, client.streams(two) as second:
            await first.event()
            await second.event()
        heard = {}
        for request_id, stream in ((1, first), (2, second)):
            heard[request_id] = []
            async with client.listens(stream.last_id) as resumed:
                while (told := await resumed.event()) is not None:
                    heard[request_id].append(told)

    for request_id, told in heard.items():
        assert told[-1]["id"] == request_id
        tokens = {one["params"]["progressToken"] for one in told[:-1]}
        assert tokens == {f"of {request_id}"}
        assert [one["params"]["progress"] for one in told[:-1]] == [2, 3, 4, 5, 6]


async def test_a_client_that_comes_back_receives_what_happened_meanwhile(settings):
    async with raw_client(settings) as (opened, client):
        async with client.listens() as stream:
            await until(lambda: next(iter(opened.front.sessions)).streams.mailbox.is_connected)
            opened.hub.apply(settings(zoo=zoo("good_legacy"), more=zoo("good")))
            assert (await stream.event())["method"] == "notifications/tools/list_changed"
            last_id = stream.last_id
        session = next(iter(opened.front.sessions))
        await until(lambda: not session.streams.mailbox.is_connected)
        number = session.streams.mailbox.number
        opened.hub.apply(settings(zoo=zoo("good_legacy")))
        await until(lambda: session.streams.mailbox.number > number)
        async with client.listens(last_id) as stream:
            told = [await stream.event() for _ in range(session.streams.mailbox.number - 1)]

    assert "notifications/tools/list_changed" in {one["method"] for one in told}


FOREIGN = ["", "x", "9-1", "1-1", "0-99", "0-", "-1", "0-1-1", "../0-1", "0-" + "9" * 400]


async def test_an_event_id_that_is_not_the_sessions_own_is_refused(settings):
    async with raw_client(settings) as (_, client):
        for last_id in FOREIGN:
            response = await client.refusal(last_id)

            assert response.status == 400
            assert b"Last-Event-ID" in response.body


async def test_nobody_resumes_the_stream_of_another_one(settings):
    async with raw_client(settings) as (opened, ann):
        async with ann.streams(progress_of(2)) as stream:
            await stream.event()
            while await stream.event() is not None:
                pass
        bob = await SessionClient(port_of(opened), bearer(BOB), ann.version).shake_hands()
        own = await bob.refusal(stream.last_id.decode())
        bob.session = ann.session
        stolen = await bob.refusal(stream.last_id.decode())

    assert own.status == 400
    assert stolen.status == 404


async def test_a_question_whose_stream_is_cut_is_asked_again_when_its_client_comes_back(settings):
    ask = message(5, "tools/call", name="zoo_ask", arguments={})
    async with raw_client(settings, elicitation={}) as (_, client):
        async with client.streams(ask) as stream:
            chunk = await stream.line.chunk()
            primed = next(one[4:] for one in chunk.split(b"\r\n") if one.startswith(b"id: "))
        async with client.listens(primed) as stream:
            question = await stream.event()
            reply = {"action": "accept", "content": {"name": "Ada"}}
            said = {"jsonrpc": "2.0", "id": question["id"], "result": reply}
            assert (await client.post(said)).status == 202
            answer = await stream.event()

    assert question["method"] == "elicitation/create"
    assert "Ada" in answer["result"]["content"][0]["text"]


async def test_a_call_is_cancelled_though_its_stream_is_cut(settings):
    async with raw_client(settings) as (opened, client):
        async with client.streams(progress_of(10_000)) as stream:
            await stream.event()
        gives_up = {"requestId": 7}
        said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gives_up}
        await client.post(said)
        await until(lambda: not opened.hub.snapshot().server("zoo").in_flight)
        async with client.listens(stream.last_id) as resumed:
            *_, last = await resumed.rest()

    assert last["error"]["code"] == -32800


async def test_a_session_that_ends_takes_its_calls_and_streams_with_it(settings):
    async with raw_client(settings) as (opened, client):
        async with client.streams(progress_of(10_000)) as stream:
            await stream.event()
        await client.delete()
        await until(lambda: not opened.hub.snapshot().server("zoo").in_flight)
        response = await client.refusal(stream.last_id.decode())

        assert response.status == 404
        assert not opened.front.sessions._bytes_kept.total
        assert not opened.front.sessions.away.total


async def test_a_call_ends_when_its_client_does_not_come_back(settings):
    limits = SessionLimits(log=LogLimits(away=0.05))
    async with gate(settings(zoo=zoo("good_legacy")), limits=limits) as opened:
        client = await SessionClient(port_of(opened)).shake_hands()
        async with client.streams(progress_of(100_000)) as stream:
            await stream.event()
        await until(lambda: not opened.hub.snapshot().server("zoo").in_flight)

        assert not opened.front.sessions.away.total


async def test_the_sdk_resumes_a_call_by_itself(settings):
    async with gate(settings(zoo=zoo("good_legacy"))) as opened:
        seen = []

        async def on_progress(progress, total, words):
            seen.append(progress)
            if progress in {3, 6}:  # the network fails
                sessions = opened.front.sessions
                for session in sessions:
                    for stream in tuple(session.streams._streams.values()):
                        stream.disconnect()

        async with Talker("old", opened.url) as talker:
            with anyio.fail_after(PATIENCE):
                result = await talker.client.call_tool(
                    "zoo_progress",
                    {"steps": 10, "interval": 0.01},
                    progress_callback=on_progress,
                )

    assert result.content[0].text == "10 steps"
    assert seen == [*range(1, 11)]


def test_a_log_is_bounded_in_events_bytes_and_age():
    shares = Shares(10_000, "bytes")
    log, gone = EventLog(LogLimits(events=3, room=100, age=10), shares, "ann"), []
    log.on_gone = gone.append

    for number in range(1, 6):
        log.add(LoggedEvent("1", number, b"x" * 10, number == 1, number))
    assert [one.number for one in log.after("1", 0)] == [3, 4, 5]
    assert gone == ["1"]

    log.add(LoggedEvent("2", 1, b"x" * 500, True, 6))
    assert [one.stream for one in log.after("2", 0)] == ["2"]
    assert len(log) == 1
    assert shares.total == 500

    log.add(LoggedEvent("3", 1, b"x" * 9_600, True, 7))  # more than one's share
    assert gone == ["1", "3"]
    log.expire(20)
    assert (len(log), shares.total) == (0, 0)


@pytest.mark.parametrize("given", [b"", b"0", b"0-1\n", b"\xff-1", b"A-1", b"0-" + b"1" * 10])
def test_an_event_id_has_one_form(given):
    assert parse_event_id(given) is None
    assert parse_event_id(b"a1-12") == ("a1", 12)
