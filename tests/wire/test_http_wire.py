"""Requests over HTTP in no task of their own end as those do that a task waits for."""

import anyio
import msgspec
import pytest
from msgspec import Raw

from multitap.config.models import Limits
from multitap.faults import AnswerTimeout, WireFault
from multitap.wire.wire import RpcError
from tests.http.listener import Listener
from tests.waiting import until
from tests.wire import http_zoo as zoo
from tests.wire.asking import Launched
from tests.wire.asking import ask as ask_on
from tests.wire.http_zoo import creature, error, result
from tests.wire.test_streamable_wire import note, wired

LIMITS = Limits(message=100_000)
PATIENCE = 10


def launched_on(wire, timeout=PATIENCE):
    return Launched(wire, wire._tasks, "tools/call", {}, timeout=timeout)


async def waited_for(wire):
    try:
        return await ask_on(wire, "tools/call", {}, timeout=PATIENCE)
    except (WireFault, RpcError) as exc:
        return exc


async def whole(request, caller):
    await caller.respond(result(request, n=1))


async def in_pieces(request, caller):
    body = msgspec.json.encode(result(request, n=1))
    await caller.head(200, content_type="application/json", content_length=str(len(body)))
    for at in range(0, len(body), 10):
        await caller.send(body[at : at + 10])
        await anyio.sleep(0.001)  # so that each piece is a read of its own


async def by_events(request, caller):
    await caller.begin_events()
    await anyio.sleep(0.01)  # so that each event is a read of its own
    await caller.event(note("notifications/message", level="info"))
    await anyio.sleep(0.01)  # so that each event is a read of its own
    await caller.event(result(request, n=1))
    await caller.end_events()


async def by_one_piece_of_events(request, caller):
    text = b"data: %b\n\n" % msgspec.json.encode(result(request, n=1))
    await caller.respond(text, content_type="text/event-stream")


@pytest.mark.parametrize("era", ["old", "new"])
@pytest.mark.parametrize("how", [whole, in_pieces, by_events, by_one_piece_of_events])
async def test_an_answer_is_heard_however_it_comes(how, era):
    listener = Listener()
    async with wired(creature(call=how), era, listener) as (server, wire):
        await ask_on(wire, "ping", None, timeout=PATIENCE)
        launched, waited = launched_on(wire), await waited_for(wire)

        assert msgspec.json.decode(await launched.get()) == {"n": 1}
        assert msgspec.json.decode(waited) == {"n": 1}
        assert not len(wire._exchange.pending_requests)
        assert [request.rpc for request in server.requests].count("tools/call") == 2


async def refusing(request, caller):
    await caller.respond(error(-7, "no", request.message["id"]))


async def refusing_in_http(request, caller):
    await caller.respond(error(-7, "no", request.message["id"]), status=400)


async def to_another_question(request, caller):
    await caller.respond({"jsonrpc": "2.0", "id": 1, "result": {}})


async def forgetful(request, caller):
    await caller.respond(b"who are you?", status=404, content_type="text/plain")


async def in_html(request, caller):
    await caller.respond(b"<html>", content_type="text/html")


async def damaged_event(request, caller):
    await caller.begin_events()
    await caller.event(b'{"jsonrpc":')
    await caller.gone()


@pytest.mark.parametrize(
    "how",
    [
        refusing,
        refusing_in_http,
        to_another_question,
        forgetful,
        in_html,
        damaged_event,
        zoo.resetting,
        zoo.hanging_up,
        zoo.half_an_answer,
        zoo.broken_chunk,
        zoo.no_http,
        zoo.stuck_error_page,
        zoo.endless_body,
        zoo.endless_event,
        zoo.gzip_bomb,
    ],
)
async def test_what_goes_wrong_is_told_in_the_same_words(how):
    outcomes = []
    for launches in (True, False):
        async with wired(creature(call=how), "old", limits=LIMITS) as (server, wire):
            came = await (launched_on(wire).get() if launches else waited_for(wire))
            assert not isinstance(came, Raw)
            outcomes.append((type(came), str(came).replace(server.url, "URL")))
            assert not len(wire._exchange.pending_requests)

    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("era", ["old", "new"])
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("ends", ["given up", "too late"])
async def test_what_is_not_wanted_any_more_leaves_nothing_behind(era, begins, ends):
    gone, reached = anyio.Event(), anyio.Event()

    async def slow(_, caller):
        if begins:
            await caller.begin_events()
            await caller.event(note("notifications/message", level="info"))
        reached.set()
        await caller.gone()
        gone.set()

    async with wired(creature(call=slow), era) as (server, wire):
        await ask_on(wire, "ping", None, timeout=PATIENCE)
        outcome = launched_on(wire, timeout=0.2 if ends == "too late" else PATIENCE)
        with anyio.fail_after(PATIENCE):
            await reached.wait()
            if ends == "given up":
                outcome.give_up()
            else:
                assert isinstance(await outcome.get(), AnswerTimeout)
            await gone.wait()
            await until(lambda: not len(wire._exchange.pending_requests))

        assert len(outcome.told) == (ends == "too late")
        said = [request.rpc for request in server.requests]
        assert ("notifications/cancelled" in said) == (era == "old")


async def test_without_an_idle_connection_it_takes_a_task():
    async with wired(zoo.polite, "new") as (_, wire):
        first = launched_on(wire)
        assert first.in_task
        assert isinstance(await first.get(), Raw)

        second = launched_on(wire)
        assert not second.in_task
        assert isinstance(await second.get(), Raw)
        assert not second.in_task
