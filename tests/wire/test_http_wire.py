"""Requests over HTTP in no task of their own end as those do that a task waits for."""

import json
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw

from multitap.config.models import Limits
from multitap.errors import (
    AnswerTimeout,
    AuthRequired,
    RequestFailed,
    SessionLost,
    WireFault,
    WrongProtocol,
)
from multitap.wire.http_wire import Refusal, is_passing, meaning
from multitap.wire.jsonrpc import RpcError
from tests.http.listener import Listener
from tests.waiting import PATIENCE, until
from tests.wire import http_zoo as zoo
from tests.wire.asking import Launched
from tests.wire.asking import ask as ask_on
from tests.wire.http_zoo import creature, error, result
from tests.wire.test_streamable import note, wired

LIMITS = Limits(message=100_000)


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
async def test_what_goes_wrong_is_reported_in_the_same_words(how):
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


MINE = 17


def refused(status: int, body: Any = b"", **headers: str) -> Refusal:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Refusal(status, {name.replace("_", "-"): value for name, value in headers.items()}, data)


def rpc(code: int, message: str = "no", request_id: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (refused(400), RpcError),
        (refused(400, rpc(-32602)), RpcError),
        (refused(400, {"error": "not found"}), RpcError),
        (refused(401), AuthRequired),
        (refused(401, rpc(-32001)), AuthRequired),
        (refused(403), AuthRequired),
        (refused(403, rpc(-32001)), RpcError),
        (refused(403, rpc(-32001), WWW_Authenticate="Bearer"), AuthRequired),
        (refused(404), WrongProtocol),
        (refused(404, rpc(-32601, request_id=MINE)), RpcError),
        (refused(405), WrongProtocol),
        (refused(408), RequestFailed),
        (refused(413), RpcError),
        (refused(415), RpcError),
        (refused(429), RequestFailed),
        (refused(500), RequestFailed),
        (refused(500, rpc(-32603)), RpcError),
        (refused(502), RequestFailed),
        (refused(599), RequestFailed),
    ],
)
def test_a_refusal_before_the_handshake(refusal: Refusal, kind: type[Exception]):
    assert type(meaning(refusal, MINE, established=False, in_session=False)) is kind


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        pytest.param(refused(404), SessionLost, id="a bare 404"),
        pytest.param(refused(404, rpc(-32600)), SessionLost, id="the SDK's 404"),
        pytest.param(refused(404, rpc(-32600, request_id=MINE)), SessionLost, id="with our id"),
        pytest.param(refused(404, rpc(-32601, request_id=MINE)), RpcError, id="unknown method"),
        pytest.param(refused(400, rpc(-32000, "No valid session ID")), SessionLost, id="in words"),
        pytest.param(refused(400, rpc(-32602, "session", MINE)), RpcError, id="our own error"),
        pytest.param(refused(405), RequestFailed, id="no such verb"),
    ],
)
def test_a_refusal_within_a_session(refusal: Refusal, kind: type[Exception]):
    fault = meaning(refusal, MINE, established=True, in_session=True)

    assert type(fault) is kind
    if isinstance(fault, SessionLost):
        assert not fault.sent


def test_a_404_without_a_session_is_a_failure():
    fault = meaning(refused(404), MINE, established=True, in_session=False)

    assert type(fault) is RequestFailed


def test_the_words_name_the_status_and_quote_the_page_in_one_line():
    refusal = refused(503, b"<p>\n  Sorry\n</p>", Retry_After="30")

    assert refusal.words == "HTTP 503 Service Unavailable, retry after 30: <p> Sorry </p>"


def test_words_are_printable_whatever_the_server_sends():
    refusal = refused(503, b"\x1b[31m\xff", Retry_After="\udcff")

    refusal.words.encode()
    assert "\x1b" not in refusal.words


def test_an_unknown_status_has_no_name():
    assert refused(599).words == "HTTP 599"


@pytest.mark.parametrize(
    ("status", "passing"), [(400, False), (404, False), (429, True), (500, True)]
)
def test_what_may_pass_is_known(status: int, passing: bool):
    assert is_passing(status) is passing
