"""Legacy SSE, against the SDK and against servers that break it."""

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from multitap.config import HttpServer
from multitap.config.models import Limits
from multitap.errors import (
    AnswerInvalid,
    AnswerTimeout,
    AuthRequired,
    RequestFailed,
    SessionLost,
    WireClosed,
    WireFault,
    WrongProtocol,
)
from multitap.wire.jsonrpc import RpcError
from multitap.wire.sse import LegacySseWire, open_sse
from tests.http.listener import Listener
from tests.waiting import PATIENCE, until
from tests.wire import http_zoo as zoo
from tests.wire.asking import ask as ask_on
from tests.wire.http_zoo import Caller, Handler, Request, WebServer, error, result, serve
from tests.wire.sdk_web import Waiting, served, toolbox
from tests.wire.zoo_wire import shake_hands, tool


class Legacy:
    """A server of 2024: what it says, it says on the stream of the last caller."""

    def __init__(self, **handlers: Any) -> None:
        self.handlers = handlers
        self.stream: Caller | None = None
        self.endpoint = "/messages?session=1"

    async def __call__(self, request: Request, caller: Caller) -> None:
        if request.method == "GET":
            self.stream = caller
            await caller.begin_events()
            await caller.chunk(f"event: endpoint\ndata: {self.endpoint}\n\n".encode())
            await caller.gone()
            await caller.hang_up()
            return
        handler = self.handlers.get(request.rpc.rpartition("/")[2])
        if handler is not None:
            await handler(self, request, caller)
            return
        await caller.accept()
        if "id" in request.message and request.rpc:
            await self.say(result(request, echo=request.message.get("params")))

    async def say(self, data: Any) -> None:
        assert self.stream is not None
        await self.stream.event(data, event="message")


@asynccontextmanager
async def wired(
    server: Handler, listener: Listener | None = None, **settings: Any
) -> AsyncGenerator[tuple[WebServer, LegacySseWire]]:
    async with (
        serve(server) as web,
        open_sse(HttpServer(url=web.url, **settings)) as wire,
    ):
        wire.attach(listener or Listener())
        yield web, wire


async def call(wire: LegacySseWire, timeout: float | None = 5, **options: Any) -> Any:
    raw = await ask_on(wire, "tools/call", {"name": "t"}, timeout=timeout, **options)
    return msgspec.json.decode(raw)


async def test_the_sdks_own_server_is_understood():
    listener = Listener(lambda: {"action": "accept", "content": {"name": "Ali"}})
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "0"},
    }
    reports: list[float] = []
    with served(toolbox().sse_app()) as url:
        async with open_sse(HttpServer(url=f"{url}/sse")) as wire:
            wire.attach(listener)
            await ask_on(wire, "initialize", hello, timeout=PATIENCE, cancellable=False)
            wire.establish("2025-11-25", stateless=False)
            await wire.notify("notifications/initialized", None)
            raw = await ask_on(
                wire, "tools/call", {"name": "ask", "arguments": {}}, timeout=PATIENCE
            )
            await ask_on(
                wire,
                "tools/call",
                {"name": "count", "arguments": {"to": 3}},
                timeout=PATIENCE,
                on_progress=lambda progress, *_: reports.append(progress),
            )

    assert msgspec.json.decode(raw)["structuredContent"] == {"result": "Ali"}
    assert reports == [1, 2, 3]


async def test_messages_go_where_the_server_said_and_answers_come_on_the_stream():
    async with wired(Legacy(), headers={"X-Key": "k"}) as (web, wire):
        assert (await call(wire))["echo"]["name"] == "t"

    stream, message = web.requests
    assert stream.headers["accept"] == "text/event-stream"
    assert (message.method, message.path) == ("POST", "/messages?session=1")
    assert message.headers["x-key"] == "k"


async def test_messages_for_another_origin_are_refused():
    async with serve(zoo.polite) as canary:
        legacy = Legacy()
        legacy.endpoint = f"{canary.url}?session=secret"

        with pytest.raises(AnswerInvalid, match=f"{canary.url}, which is another") as failure:
            async with wired(legacy):
                pass

    assert "secret" not in str(failure.value)
    assert not canary.requests


async def test_a_stream_that_names_no_place_is_waited_for_only_so_long():
    async def mute(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.gone()

    with pytest.raises(AnswerTimeout, match=r"no event stream from .* within 0\.2 s"):
        async with wired(mute, connect_timeout=0.2):
            pass


async def test_a_stream_that_ends_before_it_names_a_place_is_no_connection():
    async def brief(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.end_events()

    with pytest.raises(WireClosed, match="ended the event stream"):
        async with wired(brief):
            pass


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"status": 404}, WrongProtocol),
        ({"status": 405}, WrongProtocol),
        ({"status": 400}, WrongProtocol),
        ({"status": 401}, AuthRequired),
        ({"status": 503}, RequestFailed),
        ({"status": 200, "content_type": "text/html"}, WrongProtocol),
    ],
)
async def test_what_is_no_event_stream_is_refused(options: Any, kind: type[WireFault]):
    async def other(request: Request, caller: Caller):
        await caller.respond(b"hello", **options)

    with pytest.raises(kind):
        async with wired(other):
            pass


async def test_a_server_that_is_not_there_is_a_failed_request():
    async with serve(zoo.polite) as web:
        pass

    with pytest.raises(RequestFailed, match="cannot connect") as failure:
        async with open_sse(HttpServer(url=web.url)):
            pass
    assert not failure.value.sent


async def test_a_failed_post_is_its_requests_failure_only():
    async def resetting(legacy: Legacy, request: Request, caller: Caller):
        await caller.reset()

    async with wired(Legacy(call=resetting)) as (web, wire):
        with pytest.raises(RequestFailed) as failure:
            await call(wire)

        assert failure.value.sent
        assert len(web.of("tools/call")) == 1
        assert await ask_on(wire, "ping", None, timeout=PATIENCE)


async def test_a_refused_post_fails_in_the_servers_words():
    async def refusing(legacy: Legacy, request: Request, caller: Caller):
        await caller.respond(error(-32602, "no such tool"), status=400)

    async with wired(Legacy(call=refusing)) as (_, wire):
        with pytest.raises(RpcError, match="no such tool"):
            await call(wire)


async def test_a_forgotten_session_closes_the_wire():
    async def forgetful(legacy: Legacy, request: Request, caller: Caller):
        await caller.respond(b"Could not find session", status=404, content_type="text/plain")

    async with wired(Legacy(call=forgetful)) as (_, wire):
        with pytest.raises(SessionLost):
            await call(wire)

        assert isinstance(wire.fault, SessionLost)
        assert wire.closed.is_set()


@pytest.mark.parametrize("ending", ["end_events", "reset"])
async def test_the_end_of_the_stream_is_noticed_without_a_call(ending: str):
    legacy = Legacy()
    async with wired(legacy) as (_, wire):
        assert legacy.stream is not None
        await getattr(legacy.stream, ending)()
        with anyio.fail_after(PATIENCE):
            await wire.closed.wait()

        assert isinstance(wire.fault, WireClosed)
        with pytest.raises(WireClosed):
            await call(wire)


async def test_a_stream_that_turns_to_garbage_closes_the_wire():
    async def garbled(request: Request, caller: Caller):
        packer = zlib.compressobj(wbits=31)
        endpoint = packer.compress(b"event: endpoint\ndata: /m\n\n")
        await caller.begin_events(content_encoding="gzip")
        await caller.chunk(endpoint + packer.flush(zlib.Z_SYNC_FLUSH))
        await told.wait()
        await caller.chunk(b"\xff" * 100)
        await caller.gone()

    told = anyio.Event()
    async with wired(garbled) as (_, wire):
        told.set()
        with anyio.fail_after(PATIENCE):
            await wire.closed.wait()

        assert "cannot be decompressed" in str(wire.fault)


async def test_the_end_of_the_stream_ends_the_calls_under_way():
    async def hanging_up(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()
        assert legacy.stream is not None
        await legacy.stream.end_events()

    async with wired(Legacy(call=hanging_up)) as (_, wire):
        with pytest.raises(WireClosed, match="ended the event stream") as failure:
            await call(wire, timeout=None)

    assert failure.value.sent


async def test_answers_find_their_questions_in_any_order():
    asked: list[Request] = []

    async def slow(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()
        asked.append(request)
        if len(asked) == 10:
            for one in reversed(asked):
                await legacy.say(result(one, said=one.message["params"]["name"]))

    answers: dict[int, Any] = {}

    async def ask(wire: LegacySseWire, number: int):
        raw = await ask_on(wire, "tools/call", {"name": number}, timeout=PATIENCE)
        answers[number] = msgspec.json.decode(raw)["said"]

    async with wired(Legacy(call=slow)) as (_, wire), anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(ask, wire, number)

    assert answers == {number: number for number in range(10)}


@pytest.mark.parametrize(
    "body",
    [b'{"jsonrpc":"2.0","id":ID,"result":', b'[{"id":ID,"result":{}}]', b'{"id":ID,"result":7}',
     b'{"id":ID,"result":{"a":"\xff"}}', b'{"jsonrpc":"2.0","id":ID}'],
)  # fmt: skip
async def test_a_bad_answer_fails_its_request_at_once(body: bytes):
    async def bad(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()
        await legacy.say(body.replace(b"ID", str(request.message["id"]).encode()))

    async with wired(Legacy(call=bad)) as (_, wire):
        with pytest.raises(AnswerInvalid):
            await call(wire)
        assert await ask_on(wire, "ping", None, timeout=PATIENCE)


async def test_an_oversized_answer_fails_its_request_and_the_stream_goes_on():
    async def large(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()
        await legacy.say(result(request, text="x" * 5000))

    async with wired(Legacy(call=large), limits=Limits(message=1024)) as (_, wire):
        with pytest.raises(AnswerInvalid, match=r"1,024 bytes of `limits\.message`"):
            await call(wire)
        assert await ask_on(wire, "ping", None, timeout=PATIENCE)


async def test_an_error_without_an_id_is_for_the_only_one_who_asked():
    async def confused(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()
        await legacy.say(error(-32700, "cannot read that"))

    async with wired(Legacy(call=confused)) as (_, wire):
        with pytest.raises(RpcError, match="cannot read that"):
            await call(wire)


async def test_noise_is_counted():
    async def noisy(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()
        await legacy.say({"jsonrpc": "2.0", "id": 1, "result": {}})
        await legacy.say(b"not json")
        await legacy.say(result(request))

    async with wired(Legacy(call=noisy)) as (_, wire):
        assert await call(wire) == {}
        assert wire.evidence().noise == 2


async def test_the_server_asks_and_is_answered_by_post():
    async def asking(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()
        await legacy.say({"jsonrpc": "2.0", "id": "q", "method": "roots/list", "params": {}})
        await legacy.say({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        await legacy.say(result(request))

    listener = Listener(lambda: {"roots": []})
    mine = object()
    async with wired(Legacy(call=asking), listener) as (web, wire):
        await call(wire, call=mine)
        await web.until(lambda: len(web.of("POST")) == 2)

    assert web.requests[-1].message == {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    assert listener.requests == [("roots/list", {}, mine)]
    assert listener.notifications == ["notifications/message"]


async def test_silence_ends_with_the_deadline_and_the_server_is_notified():
    async def silent(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()

    async with wired(Legacy(call=silent)) as (web, wire):
        with pytest.raises(AnswerTimeout) as failure:
            await call(wire, timeout=0.1)
        await web.until(lambda: web.of("notifications/cancelled"))

    assert failure.value.sent
    (asked,) = web.of("tools/call")
    (told,) = web.of("notifications/cancelled")
    assert told.message["params"]["requestId"] == asked.message["id"]


async def test_closing_the_wire_ends_every_wait_with_an_error():
    async def silent(legacy: Legacy, request: Request, caller: Caller):
        await caller.accept()

    async def wait(wire: LegacySseWire):
        with pytest.raises(WireClosed):
            await call(wire, timeout=None)

    async with serve(Legacy(call=silent)) as web:
        async with anyio.create_task_group() as tasks, open_sse(HttpServer(url=web.url)) as wire:
            tasks.start_soon(wait, wire)
            await web.until(lambda: web.of("tools/call"))
            await asyncio.sleep(0)
        await web.until(lambda: web.open == 0)

    assert wire.fault is None


async def test_a_call_that_is_given_up_at_any_point_of_its_way_does_not_run():
    waiting = Waiting()
    with served(waiting.server.sse_app()) as url:
        async with open_sse(HttpServer(url=f"{url}/sse")) as wire:
            await shake_hands(wire)
            wire.establish("2025-11-25", stateless=False)
            for turns in range(25):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: tool(wire, "wait", timeout=PATIENCE))
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            await ask_on(wire, "tools/list", {}, timeout=PATIENCE)
            await until(lambda: waiting.begun == waiting.ended)
