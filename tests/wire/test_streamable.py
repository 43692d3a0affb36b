"""Streamable HTTP, against the SDK and against servers that break it."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
import pytest
from msgspec import Raw
from yarl import URL

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
from multitap.http.client.client import HttpClient
from multitap.wire.http_origin import Challenge
from multitap.wire.jsonrpc import RpcError
from multitap.wire.request import make_request
from multitap.wire.streamable import StreamableWire, open_streamable, pause
from multitap.wire.wire import INBOUND_REQUESTS
from tests.http.listener import Listener
from tests.waiting import PATIENCE, until
from tests.wire import http_zoo as zoo
from tests.wire.asking import ask as ask_on
from tests.wire.http_zoo import Caller, Handler, Request, WebServer, creature, error, result, serve
from tests.wire.sdk_web import served, toolbox

SECRET = "open-sesame-42"
Era = Literal["old", "new"] | None


@asynccontextmanager
async def wired(
    handler: Handler, era: Era = "old", listener: Listener | None = None, **settings: Any
) -> AsyncGenerator[tuple[WebServer, StreamableWire]]:
    async with (
        serve(handler) as server,
        open_streamable(HttpServer(url=server.url, **settings)) as wire,
    ):
        wire.attach(listener or Listener())
        if era == "old":
            await ask_on(wire, "initialize", {}, timeout=PATIENCE, cancellable=False)
            wire.establish("2025-11-25", stateless=False)
        elif era == "new":
            wire.establish("2026-07-28", stateless=True)
        yield server, wire


async def call(wire: StreamableWire, timeout: float | None = 5, **options: Any) -> Any:
    raw = await ask_on(wire, "tools/call", {"name": "t"}, timeout=timeout, **options)
    return msgspec.json.decode(raw)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def note(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


SDK = {
    "sessions": {},
    "sessions, json": {"json_response": True},
    "no sessions": {"stateless_http": True},
    "no sessions, json": {"stateless_http": True, "json_response": True},
}


async def shake_hands(wire: StreamableWire) -> None:
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "0"},
    }
    await ask_on(wire, "initialize", hello, timeout=PATIENCE, cancellable=False)
    wire.establish("2025-11-25", stateless=False)
    await wire.notify("notifications/initialized", None)


async def use(wire: StreamableWire, tool: str, **arguments: Any) -> Any:
    params = {"name": tool, "arguments": arguments}
    return msgspec.json.decode(await ask_on(wire, "tools/call", params, timeout=PATIENCE))


@pytest.mark.parametrize("options", SDK.values(), ids=SDK)
async def test_the_sdks_own_server_is_understood(options: dict[str, bool]):
    with served(toolbox().streamable_http_app(**options)) as url:
        async with open_streamable(HttpServer(url=f"{url}/mcp")) as wire:
            wire.attach(Listener())
            await shake_hands(wire)
            answer = await use(wire, "add", a=2, b=3)

    assert answer["structuredContent"] == {"result": 5}


async def test_the_sdks_own_server_is_understood_without_a_handshake():
    stamp = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {
        "Mcp-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "count",
    }
    reports: list[float] = []
    with served(toolbox().streamable_http_app()) as url:
        async with open_streamable(HttpServer(url=f"{url}/mcp")) as wire:
            wire.attach(Listener())
            wire.establish("2026-07-28", stateless=True)
            raw = await ask_on(
                wire,
                "tools/call",
                {"name": "count", "arguments": {"to": 3}, "_meta": stamp},
                timeout=PATIENCE,
                headers=headers,
                on_progress=lambda progress, *_: reports.append(progress),
            )

    assert msgspec.json.decode(raw)["structuredContent"] == {"result": "done"}
    assert reports == [1, 2, 3]


async def test_the_sdks_own_server_asks_and_announces():
    listener = Listener(lambda: {"action": "accept", "content": {"name": "Ali"}})
    with served(toolbox().streamable_http_app()) as url:
        async with open_streamable(HttpServer(url=f"{url}/mcp")) as wire:
            wire.attach(listener)
            await shake_hands(wire)
            answer = await use(wire, "ask")
            await use(wire, "announce")
            await listener.until(lambda: listener.notifications)

    assert answer["structuredContent"] == {"result": "Ali"}
    assert listener.notifications == ["notifications/tools/list_changed"]


async def test_a_json_answer_comes_back_undecoded():
    async with wired(zoo.polite) as (_, wire):
        raw = await ask_on(wire, "tools/call", {"name": "t"}, timeout=PATIENCE)

    assert isinstance(raw, Raw)
    assert msgspec.json.decode(raw)["echo"]["name"] == "t"


async def test_a_byte_order_mark_before_an_answer_is_skipped():
    async def marked(request: Request, caller: Caller):
        await caller.respond(b"\xef\xbb\xbf" + msgspec.json.encode(result(request, said="marked")))

    async with wired(creature(call=marked)) as (_, wire):
        assert await call(wire) == {"said": "marked"}


async def test_an_event_stream_is_an_answer_too():
    async def streaming(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event(result(request, said="streamed"), event="message")
        await caller.end_events()

    async with wired(creature(call=streaming)) as (_, wire):
        assert await call(wire) == {"said": "streamed"}


async def test_params_that_are_encoded_already_are_sent_as_they_are():
    async with wired(zoo.polite) as (server, wire):
        await ask_on(wire, "tools/call", {"arguments": Raw(b'{"a": 1}')}, timeout=PATIENCE)

    assert b'"arguments":{"a": 1}' in server.of("tools/call")[0].body


async def test_a_refused_connection_is_the_requests_own_failure_and_provably_unsent():
    port = free_port()
    async with open_streamable(HttpServer(url=f"http://127.0.0.1:{port}/mcp")) as wire:
        with pytest.raises(RequestFailed, match="cannot connect") as failure:
            await call(wire)
        assert not failure.value.sent
        assert not wire.closed.is_set()

        async with serve(zoo.polite, port=port):
            assert (await call(wire))["echo"]["name"] == "t"


async def test_a_certificate_that_is_not_trusted_is_said_to_be_so_and_nothing_is_sent(
    tmp_path: Path,
):
    unknown, _ = zoo.self_signed(tmp_path)
    async with (
        serve(zoo.polite, tls=unknown) as server,
        open_streamable(HttpServer(url=server.url)) as wire,
    ):
        with pytest.raises(RequestFailed, match="not trusted: self-signed") as failure:
            await call(wire)

    assert not failure.value.sent
    assert not server.requests


async def test_a_trusted_certificate_is_all_it_takes(tmp_path: Path):
    certified, trusting = zoo.self_signed(tmp_path)

    def client(url: URL) -> HttpClient:
        return HttpClient("the zoo", tls=trusting)

    async with (
        serve(zoo.polite, tls=certified) as server,
        open_streamable(HttpServer(url=server.url), client_factory=client) as wire,
    ):
        assert (await call(wire))["echo"]["name"] == "t"


async def test_tls_with_a_server_that_has_none_fails_unsent():
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(plain, "127.0.0.1")
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        async with open_streamable(HttpServer(url=f"https://127.0.0.1:{port}/")) as wire:
            with pytest.raises(RequestFailed, match="cannot connect") as failure:
                await call(wire)

    assert not failure.value.sent


async def test_a_host_that_does_not_exist_is_named():
    async with open_streamable(HttpServer(url="http://nowhere.invalid/mcp")) as wire:
        with pytest.raises(RequestFailed, match=r"http://nowhere\.invalid/mcp") as failure:
            await call(wire)

    assert not failure.value.sent
    await asyncio.get_running_loop().shutdown_default_executor()  # it resolves names


@pytest.mark.parametrize(
    "fault",
    [zoo.resetting, zoo.hanging_up, zoo.half_an_answer, zoo.half_a_stream],
    ids=lambda fault: fault.__name__,
)
@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_connection_that_breaks_after_the_request_fails_it_once(fault: Handler, era: Era):
    async with wired(creature(call=fault), era) as (server, wire):
        with pytest.raises(RequestFailed) as failure:
            await call(wire)

        assert failure.value.sent
        assert len(server.of("tools/call")) == 1
        assert not wire.closed.is_set()
        assert await ask_on(wire, "ping", None, timeout=PATIENCE)


async def test_one_failed_request_does_not_disturb_the_others():
    failed = anyio.Event()

    async def moody(request: Request, caller: Caller):
        if request.message["params"].get("fail"):
            await caller.reset()
        else:
            await failed.wait()
            await caller.respond(result(request))

    async with wired(creature(call=moody)) as (_, wire), anyio.create_task_group() as tasks:
        tasks.start_soon(call, wire)
        with pytest.raises(RequestFailed):
            await ask_on(wire, "tools/call", {"fail": True}, timeout=PATIENCE)
        failed.set()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "empty", id="nothing"),
        pytest.param(b"[]", "batch", id="batch"),
        pytest.param(b"<html>oh</html>", "<html>oh", id="no JSON"),
        pytest.param(b'{"jsonrpc":"2.0","id":ID}', "has none", id="neither result nor error"),
        pytest.param(b'{"id":ID,"result":[]}', "result object", id="result of a wrong type"),
        pytest.param(b'{"id":ID,"error":"bad"}', "wrong shape", id="error of a wrong shape"),
        pytest.param(b'{"id":"ID","result":{}}', "another request", id="id of a wrong type"),
        pytest.param(b'{"id":7,"result":{}}', "another request", id="id of another"),
        pytest.param(b'{"result":{}}', "another request", id="no id"),
        pytest.param(b'{"id":ID,"method":"ping"}', "another request", id="a request"),
        pytest.param(b'{"id":ID,"result":{"a":"\xff"}}', "UTF-8", id="bad UTF-8"),
        pytest.param(
            b'{"id":ID,"result":' + b"[" * 90_000 + b"]" * 90_000 + b"}", "deep", id="deep"
        ),
        pytest.param(b'{"id":ID,"result":{}}{"id":2}', "trailing", id="two at once"),
        pytest.param(b'{"id":ID,"result":{', "truncated", id="cut"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "events"])
async def test_a_bad_answer_fails_its_request_at_once(body: bytes, words: str, kind: str):
    async def bad(request: Request, caller: Caller):
        data = body.replace(b"ID", str(request.message["id"]).encode())
        if kind == "json":
            await caller.respond(data)
        else:
            await caller.begin_events()
            await caller.event(data)
            await caller.end_events()

    async with wired(creature(call=bad)) as (_, wire):
        with pytest.raises((AnswerInvalid, RequestFailed)) as failure:
            await call(wire)

        if kind == "json":
            assert isinstance(failure.value, AnswerInvalid)
            assert words in str(failure.value)
        assert failure.value.sent
        assert not wire.closed.is_set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"body": b"<h1>Hello</h1>", "content_type": "text/html"}, "text/html.*<h1>Hello"),
        ({"body": b"hi", "content_type": ""}, "no content type"),
        ({"body": b"", "status": 202}, "HTTP 202"),
        ({"body": b"", "status": 204}, "HTTP 204"),
    ],
)
async def test_an_answer_of_the_wrong_type_is_quoted(options: dict[str, Any], words: str):
    async def odd(request: Request, caller: Caller):
        await caller.respond(**options)

    async with wired(creature(call=odd)) as (_, wire):
        with pytest.raises(AnswerInvalid, match=words):
            await call(wire)


async def test_what_is_no_http_is_said_to_be_none():
    async with wired(creature(call=zoo.no_http)) as (_, wire):
        with pytest.raises(AnswerInvalid, match="is not valid HTTP: Bad status line") as failure:
            await call(wire)

    assert failure.value.sent


async def test_garbage_in_the_middle_of_a_body_does_not_wait_for_the_deadline():
    async with wired(creature(call=zoo.broken_chunk)) as (_, wire):
        with pytest.raises(RequestFailed, match="broke off"):
            await call(wire, timeout=None)


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
async def test_what_cannot_be_decompressed_is_no_answer(encoding: str):
    async def garbled(request: Request, caller: Caller):
        await caller.respond(b"no such format", content_encoding=encoding)

    async with wired(creature(call=garbled)) as (_, wire):
        with pytest.raises(AnswerInvalid, match=r"decompressed|content-encoding"):
            await call(wire)


@pytest.mark.parametrize("request_id", [None, "server-error"])
async def test_an_error_in_the_body_counts_whatever_the_status(request_id: str | None):
    async def refusing(request: Request, caller: Caller):
        await caller.respond(error(-32602, "no such tool", request_id), status=400)

    async with wired(creature(call=refusing)) as (_, wire):
        with pytest.raises(RpcError, match="no such tool") as failure:
            await call(wire)

    assert failure.value.code == -32602


async def test_an_error_without_an_id_is_the_answer_to_what_was_posted():
    async def confused(request: Request, caller: Caller):
        await caller.respond(error(-32700, "cannot read that"))

    async with wired(creature(call=confused)) as (_, wire):
        with pytest.raises(RpcError, match="cannot read that"):
            await call(wire)


async def test_a_challenge_is_passed_on_as_it_came():
    async def guarded(request: Request, caller: Caller):
        await caller.respond(error(-32001, "who are you?"), status=401, www_authenticate="Bearer x")

    async with wired(guarded, None) as (_, wire):
        with pytest.raises(AuthRequired) as failure:
            await call(wire)

    assert failure.value.challenge == "Bearer x"


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_that_takes_no_posts_does_not_speak_this_transport(status: int):
    async def elsewhere(request: Request, caller: Caller):
        await caller.respond(b"Cannot POST /mcp", status=status, content_type="text/html")

    async with wired(elsewhere, None) as (_, wire):
        with pytest.raises(WrongProtocol, match="Cannot POST"):
            await ask_on(wire, "initialize", {}, timeout=PATIENCE)


async def test_an_overloaded_server_says_when_to_come_back():
    async def busy(request: Request, caller: Caller):
        await caller.respond(b"busy", status=503, content_type="text/plain", retry_after="17")

    async with wired(creature(call=busy)) as (_, wire):
        with pytest.raises(
            RequestFailed, match="HTTP 503 Service Unavailable, retry after 17: busy"
        ):
            await call(wire)


async def test_an_error_page_that_never_ends_is_not_waited_for():
    async with wired(creature(call=zoo.stuck_error_page)) as (_, wire):
        with pytest.raises(RequestFailed, match="out of order"):
            await call(wire, timeout=4)


@pytest.mark.parametrize(
    "bomb",
    [zoo.gzip_bomb, zoo.endless_body, zoo.endless_event],
    ids=lambda bomb: bomb.__name__,
)
async def test_no_answer_costs_more_than_the_limit(bomb: Handler):
    limit = 2**20
    async with wired(creature(call=bomb), limits=Limits(message=limit)) as (_, wire):
        tracemalloc.start()
        try:
            with pytest.raises(AnswerInvalid, match=r"1,048,576 bytes of `limits\.message`"):
                await call(wire)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert peak < 24 * limit  # the bomber's own pieces are of 16 MiB
        assert not wire.closed.is_set()


async def test_an_event_over_the_limit_fails_even_when_it_comes_in_one_piece():
    async def large(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event(result(request, text="x" * 3000))

    async with wired(creature(call=large), limits=Limits(message=1024)) as (_, wire):
        with pytest.raises(AnswerInvalid, match=r"limits\.message"):
            await call(wire)


@pytest.mark.parametrize("kind", ["json", "events"])
async def test_sixteen_megabytes_are_read_whole(kind: str):
    text = "x" * 2**24

    async def large(request: Request, caller: Caller):
        if kind == "json":
            await caller.respond(result(request, text=text))
        else:
            await caller.begin_events()
            await caller.event(result(request, text=text))
            await caller.end_events()

    async with wired(creature(call=large)) as (_, wire):
        assert await call(wire, timeout=PATIENCE) == {"text": text}


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_is_followed_with_the_message(status: int):
    async def moved(request: Request, caller: Caller):
        if request.path == "/mcp":
            await caller.respond(status=status, location="/mcp/")
        else:
            await zoo.polite(request, caller)

    async with wired(moved, "new", headers={"X-Key": SECRET}) as (server, wire):
        assert (await call(wire))["echo"]["name"] == "t"

    assert [one.path for one in server.requests] == ["/mcp", "/mcp/"]
    assert server.requests[1].headers["x-key"] == SECRET


async def test_a_redirect_that_begins_later_is_followed_too():
    async def moving(request: Request, caller: Caller):
        if request.path == "/mcp" and len(server.requests) > 1:
            await caller.respond(status=307, location="/mcp/")
        else:
            await zoo.polite(request, caller)

    async with wired(moving, "new") as (server, wire):
        answers = [(await call(wire))["echo"]["name"] for _ in range(3)]

    assert answers == ["t"] * 3
    assert [one.path for one in server.requests] == ["/mcp", "/mcp", "/mcp/", "/mcp", "/mcp/"]


async def test_a_redirect_to_another_origin_is_named_and_not_followed():
    async with serve(zoo.polite) as canary:

        async def luring(request: Request, caller: Caller):
            await caller.respond(status=307, location=f"{canary.url}?token=abc")

        async with wired(luring, "new", headers={"Authorization": f"Bearer {SECRET}"}) as (_, wire):
            with pytest.raises(RequestFailed, match=f"{canary.url}, which is another") as failure:
                await call(wire)

    assert "abc" not in str(failure.value)
    assert not canary.requests


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_lose_the_message_is_not_followed(status: int):
    async def moved(request: Request, caller: Caller):
        await caller.respond(status=status, location="/elsewhere")

    async with wired(moved, "new") as (server, wire):
        with pytest.raises(RequestFailed, match="/elsewhere"):
            await call(wire)

    assert len(server.requests) == 1


async def test_redirects_in_circles_end():
    async def circling(request: Request, caller: Caller):
        await caller.respond(status=307, location="/mcp")

    async with wired(circling, "new") as (server, wire):
        with pytest.raises(RequestFailed, match="in a loop"):
            await call(wire)

    assert len(server.requests) == 4


async def test_the_connection_is_used_again():
    async with wired(zoo.polite, "new") as (server, wire):
        for _ in range(5):
            await call(wire)

    assert server.connections == 1


async def test_the_connection_of_a_stream_is_used_again_once_the_server_has_ended_it():
    answered = anyio.Event()

    async def streaming(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event(result(request))
        await answered.wait()
        await caller.end_events()

    async with wired(creature(call=streaming), "new") as (server, wire):
        for _ in range(5):
            answered = anyio.Event()
            await call(wire)
            answered.set()
            await until(lambda: not wire._origin._lingering)

        assert server.connections == 1


async def test_a_stream_that_does_not_end_after_the_answer_is_closed():
    async def lingering(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event(result(request))
        await caller.gone()
        await caller.hang_up()

    async with wired(creature(call=lingering), "new") as (server, wire):
        await call(wire)
        await server.until(lambda: server.open == 0)

        assert not wire.closed.is_set()


async def test_many_calls_reach_the_server_at_the_same_time():
    everybody = asyncio.Barrier(150)

    async def waiting(request: Request, caller: Caller):
        await everybody.wait()
        await caller.respond(result(request))

    async with wired(creature(call=waiting)) as (_, wire), anyio.create_task_group() as tasks:
        for _ in range(150):
            tasks.start_soon(call, wire)


async def test_the_session_and_the_version_are_sent_after_the_handshake_and_ended_at_the_end():
    async with wired(zoo.polite) as (server, wire):
        await wire.notify("notifications/initialized", None)
        await call(wire)

    first, *others = server.requests
    assert "mcp-session-id" not in first.headers
    assert "mcp-protocol-version" not in first.headers
    assert {one.headers["mcp-session-id"] for one in others} == {"s-1"}
    assert {one.headers["mcp-protocol-version"] for one in others} == {"2025-11-25"}
    assert server.requests[-1].method == "DELETE"


async def test_a_farewell_nobody_answers_does_not_hold_up_the_close():
    with anyio.fail_after(PATIENCE):
        async with (
            serve(creature(DELETE=zoo.silent)) as server,
            open_streamable(HttpServer(url=server.url)) as wire,
        ):
            await ask_on(wire, "initialize", {}, timeout=PATIENCE)

    assert server.of("DELETE")


async def test_without_sessions_nothing_but_the_callers_headers_is_sent():
    headers = {"Mcp-Method": "tools/call", "mcp-name": "t", "Mcp-Protocol-Version": "2026-07-28"}
    async with wired(zoo.polite, "new") as (server, wire):
        await call(wire, headers=headers)

    (only,) = server.requests
    assert only.headers["mcp-method"] == "tools/call"
    assert only.headers["mcp-protocol-version"] == "2026-07-28"
    assert "mcp-session-id" not in only.headers


async def test_a_header_of_one_call_is_said_instead_of_the_configured_one():
    async with wired(zoo.polite, "new", headers={"X-Tag": "all"}) as (server, wire):
        await call(wire, headers={"x-tag": "one", "X-Other": "1"})
        await call(wire)

    assert [one.headers["x-tag"] for one in server.requests] == ["one", "all"]
    assert [one.headers.get("x-other") for one in server.requests] == ["1", None]


async def test_a_forgotten_session_closes_the_wire():
    async def forgetful(request: Request, caller: Caller):
        await caller.respond(error(-32600, "Session not found"), status=404)

    async with wired(creature(call=forgetful)) as (server, wire):
        with pytest.raises(SessionLost) as failure:
            await call(wire)

        assert not failure.value.sent
        assert isinstance(wire.fault, SessionLost)
        assert wire.closed.is_set()
        with pytest.raises(SessionLost):
            await call(wire)

    assert not server.of("DELETE")


async def test_a_forgotten_session_ends_the_calls_under_way():
    asked = anyio.Event()

    async def forgetful(request: Request, caller: Caller):
        if request.message["params"]["name"] == "slow":
            asked.set()
            await caller.gone()
        else:
            await caller.head(404, content_length="0")

    async def slow(wire: StreamableWire):
        with pytest.raises(SessionLost) as failure:
            await ask_on(wire, "tools/call", {"name": "slow"}, timeout=PATIENCE)
        assert failure.value.sent

    async with wired(creature(call=forgetful)) as (_, wire), anyio.create_task_group() as tasks:
        tasks.start_soon(slow, wire)
        await asked.wait()
        with pytest.raises(SessionLost):
            await call(wire)


async def test_what_the_server_says_between_requests_is_heard():
    async def chatty(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event(note("notifications/tools/list_changed"))
        await caller.gone()

    listener = Listener()
    async with wired(creature(GET=chatty), listener=listener) as (server, _):
        await listener.until(lambda: listener.notifications)

    assert listener.notifications == ["notifications/tools/list_changed"]
    assert server.of("GET")[0].headers["accept"] == "text/event-stream"
    assert server.of("GET")[0].headers["mcp-session-id"] == "s-1"


async def test_a_broken_stream_is_opened_again_where_it_was_and_when_the_server_said():
    ended: list[float] = []

    async def breaking(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.chunk(b"retry: 200\n\n")
        await caller.event(note("notifications/message"), id=f"e{len(ended)}")
        ended.append(asyncio.get_running_loop().time())
        await (caller.reset() if len(ended) == 1 else caller.end_events())

    async with wired(creature(GET=breaking)) as (server, wire):
        await server.until(lambda: len(server.of("GET")) == 3)

        assert not wire.closed.is_set()
    first, second, third = server.of("GET")[:3]
    assert "last-event-id" not in first.headers
    assert second.headers["last-event-id"] == "e0"
    assert third.headers["last-event-id"] == "e1"
    assert second.at - ended[0] >= 0.19


@pytest.mark.parametrize("status", [400, 401, 404, 405])
async def test_a_server_without_a_stream_is_not_asked_again(status: int):
    async def streamless(request: Request, caller: Caller):
        await caller.respond(b"no", status=status, content_type="text/html")

    async with wired(creature(GET=streamless)) as (server, wire):
        await server.until(lambda: server.of("GET"))
        await call(wire)

        assert not wire.closed.is_set()
    assert len(server.of("GET")) == 1


async def test_a_stream_that_is_gone_with_its_session_closes_the_wire():
    async def once(request: Request, caller: Caller):
        if len(server.of("GET")) > 1:
            await caller.head(404, content_length="0")
        else:
            await caller.begin_events()
            await caller.chunk(b"retry: 1\n\n")
            await caller.end_events()

    async with wired(creature(GET=once)) as (server, wire):
        with anyio.fail_after(PATIENCE):
            await wire.closed.wait()

        assert isinstance(wire.fault, SessionLost)


@pytest.mark.parametrize(
    ("retry", "failures", "low", "high"),
    [(None, 0, 1, 1), (0.5, 0, 0.5, 0.5), (0.5, 3, 0.5, 8), (None, 99, 1, 30), (9e9, 9, 300, 300)],
)
def test_the_pause_grows_up_to_half_a_minute_and_honours_the_server(
    retry: float | None, failures: int, low: float, high: float
):
    assert all(low <= pause(retry, failures) <= high for _ in range(100))


async def test_an_answer_that_broke_off_is_resumed_where_it_was():
    broken: list[float] = []

    async def breaking(request: Request, caller: Caller):
        broken.append(asyncio.get_running_loop().time())
        asked.append(request)
        await caller.begin_events()
        await caller.chunk(b"id: e1\nretry: 200\ndata: \n\n")
        await caller.reset()

    async def resuming(request: Request, caller: Caller):
        if request.headers.get("last-event-id") != "e1":
            await caller.head(405, content_length="0")
            return
        await caller.begin_events()
        await caller.event(result(asked[0], said="at last"))
        await caller.end_events()

    asked: list[Request] = []
    async with wired(creature(call=breaking, GET=resuming)) as (server, wire):
        assert await call(wire) == {"said": "at last"}

    resumed = next(one for one in server.of("GET") if "last-event-id" in one.headers)
    assert resumed.at - broken[0] >= 0.19
    assert len(server.of("tools/call")) == 1


async def test_an_answer_that_cannot_be_resumed_fails_as_sent():
    async def breaking(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.chunk(b"id: e1\nretry: 1\ndata: \n\n")
        await caller.reset()

    async with wired(creature(call=breaking)) as (_, wire):
        with pytest.raises(RequestFailed, match="cannot be resumed: HTTP 405") as failure:
            await call(wire)

    assert failure.value.sent


async def test_without_sessions_nothing_is_resumed():
    async def breaking(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.chunk(b"id: e1\nretry: 1\ndata: \n\n")
        await caller.end_events()

    async with wired(creature(call=breaking), "new") as (server, wire):
        with pytest.raises(RequestFailed, match="ended before the answer"):
            await call(wire)

    assert not server.of("GET")


async def test_a_request_of_the_server_is_answered_in_the_name_of_the_call_it_came_with():
    answered = anyio.Event()

    async def asking(request: Request, caller: Caller):
        await caller.begin_events()
        ask = {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": {"m": 1}}
        await caller.event(ask)
        await answered.wait()
        await caller.event(result(request))
        await caller.end_events()

    async def answer(request: Request, caller: Caller):
        answered.set()
        await caller.accept()

    listener = Listener(lambda: {"action": "accept"})
    mine = object()
    async with wired(creature(call=asking, answer=answer), listener=listener) as (server, wire):
        await call(wire, call=mine)

    assert listener.requests == [("elicitation/create", {"m": 1}, mine)]
    (reply,) = [one for one in server.of("POST") if "result" in one.message and not one.rpc]
    assert reply.message == {"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept"}}
    assert reply.headers["mcp-session-id"] == "s-1"


def refuse() -> Any:
    raise RpcError(-32601, "not offered")


def fail() -> Any:
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("answer", "code", "words"), [(refuse, -32601, "not offered"), (fail, -32603, "internal error")]
)
async def test_a_request_that_cannot_be_answered_is_refused_in_words(
    answer: Callable[[], Any], code: int, words: str
):
    async def asking(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event({"jsonrpc": "2.0", "id": 0, "method": "roots/list", "params": {}})
        await caller.gone()

    listener = Listener(answer)
    async with wired(creature(GET=asking), listener=listener) as (server, _):
        await server.until(lambda: [one for one in server.of("POST") if "error" in one.message])

    reply = next(one for one in server.of("POST") if "error" in one.message)
    assert reply.message == error(code, words, 0)
    assert listener.requests[0][2] is None


async def test_too_many_requests_of_the_server_are_refused():
    async def flooding(request: Request, caller: Caller):
        await caller.begin_events()
        for number in range(INBOUND_REQUESTS + 5):
            await caller.event(
                {"jsonrpc": "2.0", "id": number, "method": "roots/list", "params": {}}
            )
        await caller.gone()

    def refusals() -> list[int]:
        return [one.message["id"] for one in server.of("POST") if "error" in one.message]

    listener = Listener()
    async with wired(creature(GET=flooding), listener=listener) as (server, _):
        await server.until(lambda: len(refusals()) == 5)

        assert sorted(refusals()) == list(range(INBOUND_REQUESTS, INBOUND_REQUESTS + 5))
        assert len(listener.requests) == INBOUND_REQUESTS


async def test_the_server_may_take_its_request_back():
    async def fickle(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event({"jsonrpc": "2.0", "id": "q", "method": "roots/list", "params": {}})
        await asking.wait()
        await caller.event(note("notifications/cancelled", requestId="q"))
        await caller.gone()

    asking = anyio.Event()
    listener = Listener()
    async with wired(creature(GET=fickle), listener=listener):
        await listener.until(lambda: listener.requests)
        asking.set()
        await listener.until(lambda: listener.cancelled)


async def test_progress_reaches_its_call_and_starts_the_time_again():
    reports: list[tuple[float, float | None, str | None]] = []

    async def slow(request: Request, caller: Caller):
        token = request.message["params"]["_meta"]["progressToken"]
        await caller.begin_events()
        for step in range(1, 5):
            await asyncio.sleep(0.2)  # four of them take longer than the call's time
            await caller.event(
                note(
                    "notifications/progress",
                    progressToken=token,
                    progress=step,
                    total=4,
                    message="m",
                )
            )
        await caller.event(result(request, done=True))
        await caller.end_events()

    async with wired(creature(call=slow)) as (_, wire):
        answer = await call(
            wire, timeout=0.7, hard_timeout=30, on_progress=lambda *report: reports.append(report)
        )

    assert answer == {"done": True}
    assert reports == [(step, 4, "m") for step in (1, 2, 3, 4)]


async def test_progress_does_not_help_beyond_the_hard_limit():
    async def endless(request: Request, caller: Caller):
        token = request.message["params"]["_meta"]["progressToken"]
        await caller.begin_events()
        while True:
            await caller.event(note("notifications/progress", progressToken=token, progress=1))
            await asyncio.sleep(0.05)  # more often than its time runs out

    async with wired(creature(call=endless)) as (_, wire):
        with pytest.raises(AnswerTimeout, match=r"hard limit of 0\.3 s"):
            await call(wire, timeout=0.2, hard_timeout=0.3, on_progress=lambda *_: None)


async def test_a_progress_callback_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture):
    async def reporting(request: Request, caller: Caller):
        token = request.message["params"]["_meta"]["progressToken"]
        await caller.begin_events()
        await caller.event(note("notifications/progress", progressToken=token, progress=1))
        await caller.event(result(request))
        await caller.end_events()

    def broken(*_: object) -> None:
        raise ValueError("oops")

    async with wired(creature(call=reporting)) as (_, wire):
        assert await call(wire, on_progress=broken) == {}

    assert "a progress callback raised" in caplog.text


async def stalled_body(request: Request, caller: Caller) -> None:
    await caller.head(200, content_type="application/json", content_length="100")
    await caller.send(b"{")
    await caller.gone()


async def stalled_stream(request: Request, caller: Caller) -> None:
    await caller.begin_events()
    await caller.chunk(b": still here\n\n")
    await caller.gone()


@pytest.mark.parametrize(
    "stall",
    [zoo.silent, stalled_body, stalled_stream, zoo.flood],
    ids=lambda stall: stall.__name__,
)
async def test_nothing_lasts_longer_than_its_deadline(stall: Handler):
    async with wired(creature(call=stall)) as (_, wire):
        with pytest.raises(
            AnswerTimeout, match=r"no answer to 'tools/call' within 0\.2 s"
        ) as failure:
            await call(wire, timeout=0.2)

        assert failure.value.sent
        assert not wire.closed.is_set()


async def test_a_server_that_does_not_even_accept_is_covered_by_the_deadline():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)  # the queue is full now
            async with open_streamable(HttpServer(url=f"http://127.0.0.1:{address[1]}/")) as wire:
                with pytest.raises(AnswerTimeout):
                    await call(wire, timeout=0.2)


async def test_a_server_that_does_not_read_is_covered_by_the_deadline():
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await released.wait()
        writer.transport.abort()

    released = asyncio.Event()
    listener = await asyncio.start_server(deaf, "127.0.0.1", limit=1024)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with listener, open_streamable(HttpServer(url=url)) as wire:
        with pytest.raises(AnswerTimeout) as failure:
            await ask_on(wire, "tools/call", {"text": "x" * 2**25}, timeout=3)
        released.set()

    assert failure.value.sent


async def test_a_flood_does_not_hold_up_the_others():
    served = 0

    async def flooded(wire: StreamableWire):
        with pytest.raises(AnswerTimeout):
            await call(wire, timeout=0.5)
        tasks.cancel_scope.cancel()

    async with wired(creature(call=zoo.flood)) as (_, wire), anyio.create_task_group() as tasks:
        tasks.start_soon(flooded, wire)
        while True:
            await ask_on(wire, "ping", None, timeout=PATIENCE, cancellable=False)
            served += 1

    assert served >= 3


@pytest.mark.parametrize("why", ["timed out", "no longer wanted"])
async def test_the_server_is_told_that_an_answer_is_not_wanted_any_more(why: str):
    async with wired(creature(call=zoo.silent)) as (server, wire):
        if why == "timed out":
            with pytest.raises(AnswerTimeout):
                await call(wire, timeout=0.1)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, wire)
                await server.until(lambda: server.of("tools/call"))
                tasks.cancel_scope.cancel()
        await server.until(lambda: server.of("notifications/cancelled"))

    (asked,) = server.of("tools/call")
    (told,) = server.of("notifications/cancelled")
    assert told.message["params"] == {"requestId": asked.message["id"], "reason": why}
    assert told.headers["mcp-session-id"] == "s-1"


async def test_a_busy_server_has_time_to_read_a_cancellation():
    read = []

    async def busy(request: Request, caller: Caller):
        with anyio.move_on_after(3) as time:  # it is lost if we hang up before
            await caller.gone()
        read.append(time.cancelled_caught)
        await caller.respond(status=202)

    async with wired(creature(call=zoo.silent, cancelled=busy)) as (server, wire):
        with pytest.raises(AnswerTimeout):
            await call(wire, timeout=0.1)
        await server.until(lambda: read)

    assert read == [True]


async def test_without_sessions_the_closed_connection_says_it():
    hung_up = anyio.Event()

    async def silent(request: Request, caller: Caller):
        await caller.gone()
        hung_up.set()

    async with wired(creature(call=silent), "new") as (server, wire):
        with anyio.fail_after(PATIENCE):
            while not server.requests:  # on a busy machine, the time may be over before it is sent
                with pytest.raises(AnswerTimeout):
                    await call(wire, timeout=0.1)
            await hung_up.wait()

    assert not server.of("notifications/cancelled")


async def test_what_cannot_be_cancelled_is_not():
    async with wired(creature(call=zoo.silent)) as (server, wire):
        with pytest.raises(AnswerTimeout):
            await call(wire, timeout=0.1, cancellable=False)
        await ask_on(wire, "ping", None, timeout=PATIENCE)

    assert not server.of("notifications/cancelled")


async def test_closing_the_wire_ends_every_wait_with_an_error():
    outcomes: list[WireFault] = []

    async def wait(wire: StreamableWire, timeout: float | None):
        with pytest.raises(WireClosed) as failure:
            await call(wire, timeout=timeout)
        outcomes.append(failure.value)

    async with anyio.create_task_group() as tasks, serve(creature(call=stalled_stream)) as server:
        async with open_streamable(HttpServer(url=server.url)) as wire:
            tasks.start_soon(wait, wire, None)
            tasks.start_soon(wait, wire, 5)
            await server.until(lambda: len(server.of("tools/call")) == 2)
        await server.until(lambda: server.open == 0)

    assert [fault.sent for fault in outcomes] == [True, True]
    assert wire.fault is None
    with pytest.raises(WireClosed) as failure:
        await call(wire)
    assert not failure.value.sent
    await wire.notify("notifications/initialized", None)


async def test_an_error_of_the_owner_leaves_as_itself():
    async with serve(zoo.polite) as server:
        with pytest.raises(ZeroDivisionError):
            async with open_streamable(HttpServer(url=server.url)):
                raise ZeroDivisionError


async def test_answers_to_nobody_are_counted_and_the_first_to_the_question_wins():
    async def noisy(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event({"jsonrpc": "2.0", "id": 1, "result": {"said": "forged"}})
        await caller.event(b"not json", id="1")
        await caller.event({"hello": "world"})
        await caller.event(b"{}", event="heartbeat")
        await caller.chunk(
            b"".join(
                b"data: " + msgspec.json.encode(result(request, said=said)) + b"\n\n"
                for said in ("first", "second")
            )
        )
        await caller.end_events()

    async with wired(creature(call=noisy)) as (_, wire):
        assert await call(wire) == {"said": "first"}
        assert wire.evidence().noise == 4
        assert "forged" in wire.evidence().noise_sample


async def test_ids_cannot_be_guessed():
    async with wired(zoo.polite) as (server, wire):
        for _ in range(20):
            await call(wire)

    ids = [one.message["id"] for one in server.of("tools/call")]
    assert len(set(ids)) == 20
    assert max(ids) > 2**20
    assert max(ids) < 2**31


async def test_an_oversized_event_between_requests_is_only_noise():
    async def chatty(request: Request, caller: Caller):
        await caller.begin_events()
        await caller.event(note("notifications/message", text="x" * 3000))
        await caller.event(note("notifications/tools/list_changed"))
        await caller.gone()

    listener = Listener()
    async with wired(creature(GET=chatty), listener=listener, limits=Limits(message=1024)) as (
        _,
        wire,
    ):
        await listener.until(lambda: listener.notifications)

        assert listener.notifications == ["notifications/tools/list_changed"]
        assert wire.evidence().noise == 1


async def test_the_environments_proxy_is_used(monkeypatch: pytest.MonkeyPatch):
    async with serve(zoo.polite) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with open_streamable(HttpServer(url="http://far.invalid/mcp")) as wire:
            assert (await call(wire))["echo"]["name"] == "t"

    assert proxy.requests[0].path == "http://far.invalid/mcp"


async def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch):
    async def guarded(request: Request, caller: Caller):
        await caller.respond(b"who are you?", status=407)

    async with serve(guarded) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        async with open_streamable(HttpServer(url="https://far.invalid/mcp")) as wire:
            with pytest.raises(
                RequestFailed, match=r"proxy refuses to connect .* HTTP 407"
            ) as failure:
                await call(wire)

    assert proxy.requests[0].method == "CONNECT"
    assert not failure.value.sent


async def test_credentials_are_asked_for_each_request():
    class Counting:
        ready = standing = None
        turn = iter(range(100))

        async def headers(self, _method: str, _url: URL) -> dict[str, str]:
            return {"Authorization": f"Bearer {next(self.turn)}"}

        async def answer(self, challenge: Challenge, *_: object, **__: object) -> dict[str, str]:
            raise AssertionError(challenge)

        def on_response(self, _response: object) -> None:
            pass

    async with (
        serve(zoo.polite) as server,
        open_streamable(HttpServer(url=server.url), authorizer=Counting()) as wire,
    ):
        await call(wire)
        await call(wire)

    assert [one.headers["authorization"] for one in server.requests] == ["Bearer 0", "Bearer 1"]


async def test_user_and_password_of_the_address_become_a_header():
    async with serve(zoo.polite) as server:
        url = server.url.replace("127.0.0.1", "user:pass@127.0.0.1")
        async with open_streamable(HttpServer(url=url)) as wire:
            await call(wire)

    assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwYXNz"


@pytest.mark.parametrize("status", [200, 400, 401, 404, 500])
async def test_no_message_shows_what_is_secret(status: int):
    async def echoing(request: Request, caller: Caller):
        text = " ".join(request.headers.values()) + request.path
        await caller.respond(text.encode(), status=status, content_type="text/plain")

    async with serve(echoing) as server:
        url = f"{server.url.replace('127', f'me:{SECRET}@127')}?key={SECRET}"
        headers = {"X-Api-Key": SECRET}
        async with open_streamable(HttpServer(url=url, headers=headers)) as wire:
            with pytest.raises((WireFault, RpcError)) as failure:
                await call(wire)

    assert SECRET not in str(failure.value)
    assert "bWU6" not in str(failure.value)


async def test_a_refused_notification_is_an_error_of_its_own():
    async def refusing(request: Request, caller: Caller):
        await caller.respond(b"no", status=500, content_type="text/plain")

    async with wired(creature(initialized=refusing)) as (_, wire):
        with pytest.raises(RequestFailed, match="HTTP 500"):
            await wire.notify("notifications/initialized", None)
        assert await call(wire)


@pytest.mark.parametrize("url", ["http://[::1/mcp", "http:///mcp", "http://host:99999/mcp"])
async def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(RequestFailed, match="not a valid web address"):
        async with open_streamable(HttpServer(url=url)) as wire:
            await call(wire)


async def _json(request: Request, caller: Caller) -> None:
    await caller.respond(result(request, ok=True))


async def _refusal(request: Request, caller: Caller) -> None:
    await caller.respond(error(-32602, "no", request.message["id"]))


async def _neither(request: Request, caller: Caller) -> None:
    await caller.respond({"jsonrpc": "2.0", "id": request.message["id"]})


async def _events(request: Request, caller: Caller) -> None:
    await caller.begin_events()
    await caller.event(result(request, ok=True))
    await caller.end_events()


async def _late_events(request: Request, caller: Caller) -> None:
    await caller.begin_events()
    await caller.event(note("notifications/message", level="info", data="wait"))
    await anyio.sleep(0.05)
    await _late_end(request, caller)


async def _late_end(request: Request, caller: Caller) -> None:
    await caller.event(result(request, ok=True))
    await caller.end_events()


async def _failure(_: Request, caller: Caller) -> None:
    await caller.respond(b"busy", status=503, content_type="text/plain")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(_json, "result", id="JSON"),
        pytest.param(_events, "result", id="events"),
        pytest.param(_late_events, "result", id="events that come later"),
        pytest.param(_refusal, "RpcError", id="an error"),
        pytest.param(_neither, "AnswerInvalid", id="neither result nor error"),
        pytest.param(_failure, "RequestFailed", id="a status"),
    ],
)
async def test_a_request_without_a_task_is_sent_once_however_it_is_answered(answer, outcome):
    async def handle(request: Request, caller: Caller) -> None:
        await (zoo.polite if len(server.requests) == 1 else answer)(request, caller)

    async with wired(handle, "new") as (server, wire):
        await call(wire)  # leaves an idle connection
        news = asyncio.Event()
        request = make_request("tools/call", {"name": "t"}, 5.0)
        is_begun = wire.begin(request, news.set)
        with anyio.fail_after(PATIENCE):
            await news.wait()
        try:
            await wire.request(request)
        except (WireFault, RpcError) as exc:
            ended = type(exc).__name__
        else:
            ended = "result"

    assert (is_begun, ended, len(server.requests)) == (True, outcome, 2)
