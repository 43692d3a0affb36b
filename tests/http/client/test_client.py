"""The HTTP client against servers that behave well, oddly and badly."""

import asyncio
import gzip
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from yarl import URL

from multitap.errors import AnswerInvalid, RequestFailed
from multitap.http.client.client import HttpClient, http_client
from multitap.http.client.messages import UNREAD, Response
from multitap.wire.pending import PendingRequest, PendingRequests
from multitap.wire.request import make_request
from tests.http.loops import anyio_backend  # noqa: F401 - a fixture
from tests.waiting import PATIENCE, until
from tests.wire import http_zoo as zoo
from tests.wire.http_zoo import Caller, Handler, Request, WebServer, serve


@asynccontextmanager
async def served(handler: Handler, **options: Any) -> AsyncGenerator[tuple[WebServer, HttpClient]]:
    with anyio.fail_after(PATIENCE):
        async with serve(handler, **options) as server, http_client(URL(server.url)) as client:
            yield server, client


async def ask(
    client: HttpClient, url: str, method: str = "POST", body: bytes | None = b"{}", **options: Any
) -> Response:
    return await client.send(client.head(method, URL(url), {}), body, **options)


async def body_of(response: Response) -> bytes:
    pieces: list[bytes] = []
    while chunk := await response.chunk():
        pieces.append(chunk)
    return b"".join(pieces)


def saying(*pieces: bytes, close: bool = False) -> Handler:
    async def say(request: Request, caller: Caller) -> None:
        for piece in pieces:
            await caller.send(piece)
        if close:
            await caller.hang_up()

    return say


OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Length: 2\r\n\r\nhi"

WHOLE = {
    "with a length": [PLAIN],
    "head and body apart": [OK + b"Content-Length: 2\r\n\r\n", b"hi"],
    "a byte at a time": [bytes([byte]) for byte in PLAIN],
    "chunked": [OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1;x=y\r\ni\r\n0\r\n\r\n"],
    "chunked with trailers": [
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nContent-Encoding: br\r\n\r\n"
    ],
    "after news": [b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + PLAIN],
    "bare line feeds": [b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi"],
    "no reason phrase": [b"HTTP/1.1 200\r\ncontent-length:2\r\n\r\nhi"],
}


@pytest.mark.parametrize("pieces", WHOLE.values(), ids=WHOLE)
async def test_an_answer_is_understood_and_its_connection_used_again(pieces: list[bytes]):
    async with served(saying(*pieces)) as (server, client):
        for _ in range(3):
            assert await body_of(await ask(client, server.url)) == b"hi"

    assert server.connections == 1


async def test_a_connection_that_was_idle_for_too_long_is_not_used_again():
    async with serve(saying(PLAIN)) as server, HttpClient("zoo", keep_alive=0) as client:
        for _ in range(2):
            await ask(client, server.url)

    assert server.connections == 2


@pytest.mark.parametrize("status", [204, 304])
async def test_some_answers_have_no_body_whatever_they_say(status: int):
    head = b"HTTP/1.1 %d x\r\nContent-Length: 5\r\n\r\n" % status
    async with served(saying(head)) as (server, client):
        for _ in range(2):
            assert await body_of(await ask(client, server.url)) == b""

    assert server.connections == 1


CLOSING = {
    "until the end": OK + b"\r\nhi",
    "of the old version": b"HTTP/1.0 200 OK\r\n\r\nhi",
    "as announced": OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi",
}


@pytest.mark.parametrize("answer", CLOSING.values(), ids=CLOSING)
async def test_a_connection_that_ends_with_its_answer_is_not_used_again(answer: bytes):
    async with served(saying(answer, close=True)) as (server, client):
        for _ in range(2):
            assert await body_of(await ask(client, server.url)) == b"hi"

    assert server.connections == 2


@pytest.mark.parametrize("surplus", [b"HTTP/1.1 200 OK\r\n\r\n", b"H", b"garbage"])
async def test_an_answer_to_nothing_costs_the_connection_and_nothing_else(surplus: bytes):
    async with served(saying(PLAIN + surplus)) as (server, client):
        for _ in range(2):
            assert await body_of(await ask(client, server.url)) == b"hi"

    assert server.connections == 2


async def test_what_comes_on_an_idle_connection_closes_it():
    async def talkative(request: Request, caller: Caller):
        await caller.send(PLAIN)
        await answered.wait()
        await caller.send(PLAIN)

    answered = anyio.Event()
    async with serve(talkative) as server, HttpClient("zoo", keep_alive=60) as client:
        await ask(client, server.url)
        answered.set()
        await server.until(lambda: server.open == 0)
        await ask(client, server.url)

    assert server.connections == 2


async def test_a_connection_that_the_server_closed_is_not_used_again():
    async with served(saying(PLAIN, close=True)) as (server, client):
        first = await ask(client, server.url)
        await server.until(lambda: server.open == 0)
        await until(lambda: not client.head("POST", URL(server.url), {}).pool._open)
        await ask(client, server.url)

        assert first.ended
    assert server.connections == 2


async def closing_just_then(request: Request, caller: Caller) -> None:
    """Answers the first request, and closes when the second one comes."""
    if request.path == "/last":
        await caller.hang_up()
    else:
        await caller.send(PLAIN)


async def test_a_message_is_not_sent_again_when_the_server_closes_just_then():
    async with served(closing_just_then) as (server, client):
        await ask(client, server.url)
        with PendingRequest(PendingRequests(), make_request("m", None, None), 1) as pending:
            with pytest.raises(RequestFailed, match="without an answer") as failure:
                await ask(client, server.url.replace("/mcp", "/last"), pending=pending)
            assert pending.sent

    assert failure.value.sent
    assert len(server.requests) == 2


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_what_does_no_harm_is_sent_again_when_the_server_closes_just_then(method: str):
    async def once(request: Request, caller: Caller):
        await (caller.hang_up() if len(server.requests) == 2 else caller.send(PLAIN))

    async with served(once) as (server, client):
        await ask(client, server.url)
        assert await body_of(await ask(client, server.url, method, None)) == b"hi"

    assert len(server.requests) == 3


async def test_what_is_unanswered_on_a_new_connection_is_not_sent_again():
    async with served(zoo.hanging_up) as (server, client):
        with pytest.raises(RequestFailed, match="without an answer"):
            await ask(client, server.url, "GET", None)

    assert len(server.requests) == 1


async def test_an_idle_connection_is_closed_before_the_server_does():
    async with serve(saying(PLAIN)) as server, HttpClient("zoo", keep_alive=0.05) as client:
        await ask(client, server.url)
        await server.until(lambda: server.open == 0)
        await ask(client, server.url)

    assert server.connections == 2


GARBAGE = {
    "another protocol": (b"SSH-2.0-OpenSSH\r\n", "Bad status line"),
    "no status": (b"HTTP/1.1 abc OK\r\n\r\n", "status"),
    "two lengths": (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
    "two framings": (
        OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "Transfer-Encoding",
    ),
    "an upgrade": (
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        "another protocol",
    ),
    "an endless header": (OK + b"X: " + b"x" * 70_000, "65,536 bytes"),
    "endless news": (b"HTTP/1.1 102 Processing\r\n\r\n" * 4000, "65,536 bytes"),
    "many headers": (OK + b"".join(b"X%d: y\r\n" % n for n in range(300)) + b"\r\n", "too many"),
}


@pytest.mark.parametrize(("answer", "words"), GARBAGE.values(), ids=GARBAGE)
async def test_what_is_no_http_is_said_to_be_none(answer: bytes, words: str):
    async with served(saying(answer)) as (server, client):
        with pytest.raises(AnswerInvalid, match=f"not valid HTTP: .*{words}") as failure:
            await ask(client, server.url)
        await server.until(lambda: server.open == 0)

    assert failure.value.sent


BROKEN = {
    "too short": OK + b"Content-Length: 5\r\n\r\nhi",
    "without a last chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
    "no chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n",
    "endless trailers": OK
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX: "
    + b"x" * 400_000,
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_what_came_before_the_end_is_read_and_then_said_to_be_broken(answer: bytes):
    async with served(saying(answer, close=True)) as (server, client):
        response = await ask(client, server.url)
        assert await response.chunk() == b"hi"
        with pytest.raises(RequestFailed, match=r"the answer from .* broke off") as failure:
            await response.chunk()

    assert failure.value.sent


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("Deflate", raw_deflate),
    "two members": ("x-gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "identity": ("identity", bytes),
}


@pytest.mark.parametrize(("encoding", "pack"), PACKED.values(), ids=PACKED)
async def test_a_compressed_answer_is_made_plain(encoding: str, pack: Any):
    text = b"0123456789" * 50_000

    async def packed(request: Request, caller: Caller):
        await caller.respond(pack(text), content_encoding=encoding)

    async with served(packed) as (server, client):
        assert await body_of(await ask(client, server.url)) == text


async def test_a_flooding_server_has_to_wait():
    sent = 0

    async def flooding(request: Request, caller: Caller):
        nonlocal sent
        await caller.head(200, transfer_encoding="chunked")
        while True:
            await caller.chunk(b"x" * 65536)
            sent += 65536

    async with served(flooding) as (server, client):
        response = await ask(client, server.url)
        before = -1
        while sent != before:
            before = sent
            await anyio.sleep(0.1)  # what it can still send, it sends in that time
        held = response.held
        while sent == before:
            assert await response.chunk()
        response.close()
        await server.until(lambda: server.open == 0)

    assert held < 4 * UNREAD


async def test_a_bomb_takes_no_memory_until_it_is_read():
    async with served(zoo.gzip_bomb) as (server, client):
        response = await ask(client, server.url)
        tracemalloc.start()
        try:
            for _ in range(50):
                assert len(await response.chunk()) <= 64 * 1024
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        response.close()

    assert peak < 24 * 2**20  # the bomber's own pieces are of 16 MiB


async def test_headers_that_would_be_more_than_one_are_refused_before_anything_is_sent():
    async with served(zoo.polite) as (server, client):
        with pytest.raises(RequestFailed) as failure:
            client.head("POST", URL(server.url), {"X": "a\r\nEvil: 1"})
        assert not failure.value.sent

    assert not server.connections


async def deaf(request: Request, caller: Caller) -> None:
    await caller.gone()
    await caller.hang_up()


async def stalled(request: Request, caller: Caller) -> None:
    await caller.send(OK + b"Content-Length: 5\r\n\r\nhi")
    await deaf(request, caller)


@pytest.mark.parametrize("handler", [deaf, stalled], ids=["waiting", "reading"])
async def test_giving_up_leaves_no_connection_behind(handler: Handler):
    async with served(handler) as (server, client):
        with anyio.move_on_after(0.1):
            await body_of(await ask(client, server.url))
        await server.until(lambda: server.connections and server.open == 0)


async def test_giving_up_while_sending_leaves_no_connection_behind():
    gone = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await gone.wait()
        writer.transport.abort()

    async def send(pending: PendingRequest):
        with pending:
            await ask(client, url, body=b"x" * 2**25, pending=pending)

    listener = await asyncio.start_server(deaf, "127.0.0.1", limit=1024)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with listener, http_client(URL(url)) as client:
        pending = PendingRequest(PendingRequests(), make_request("m", None, None), 1)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, pending)
                await until(lambda: pending.sent)
                tasks.cancel_scope.cancel()
            await until(lambda: not client.head("POST", URL(url), {}).pool._open)
        gone.set()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_giving_up_while_connecting_leaves_nothing_behind(scheme: str):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)  # the queue is full now
            url = f"{scheme}://127.0.0.1:{address[1]}/"
            async with http_client(URL(url)) as client:
                with (
                    anyio.move_on_after(0.1) as given_up,
                    PendingRequest(PendingRequests(), make_request("m", None, None), 1) as pending,
                ):
                    await ask(client, url, pending=pending)

    assert given_up.cancelled_caught
    assert not pending.sent


async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.transport.abort()


async def test_giving_up_in_the_middle_of_a_handshake_leaves_nothing_behind():
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await mute(reader, writer)
        ended.set()

    listener = await asyncio.start_server(silent, "127.0.0.1")
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with listener, http_client(URL(url)) as client:
        with anyio.move_on_after(0.1) as given_up:
            await ask(client, url)
        with anyio.fail_after(PATIENCE):
            await ended.wait()

    assert given_up.cancelled_caught


@pytest.mark.parametrize("welcome", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["before", "after"])
async def test_giving_up_on_a_proxy_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, welcome: bytes
):
    async def slow(request: Request, caller: Caller):
        await caller.send(welcome)
        await deaf(request, caller)

    async with serve(slow) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        async with HttpClient("far") as client:
            with anyio.move_on_after(0.1) as given_up:
                await ask(client, "https://far.invalid/")
            await proxy.until(lambda: proxy.open == 0)

    assert given_up.cancelled_caught


MOODS: tuple[Callable[[bytes], list[bytes]], ...] = (
    lambda body: [OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)],
    lambda body: [OK + b"Content-Length: %d\r\n\r\n" % len(body), body],
    lambda body: [
        OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body),
        b"0\r\nX: y\r\n\r\n",
    ],
    lambda body: [OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) + PLAIN],
    lambda body: [OK + b"Content-Length: 100\r\n\r\n" + body, b""],
    lambda _: [b""],
)


async def test_all_others_get_their_own_answers_whenever_a_caller_gives_up():
    dice = Random(8414)

    async def moody(request: Request, caller: Caller):
        pieces = dice.choice(MOODS)(request.body)
        for piece in pieces:
            await caller.send(piece)
        if not pieces[-1]:
            await caller.hang_up()

    async def one(number: int):
        mine = b"message %d" % number
        with anyio.move_on_after(dice.choice([0.0, 0.0005, 0.002, 5])), suppress(RequestFailed):
            assert await body_of(await ask(client, server.url, body=mine)) == mine
            answered.append(number)

    answered: list[int] = []
    async with served(moody) as (server, client):
        for start in range(0, 600, 30):
            async with anyio.create_task_group() as tasks:
                for number in range(start, start + 30):
                    tasks.start_soon(one, number)
        pool = client.head("POST", URL(server.url), {}).pool
        await until(lambda: len(pool._open) <= len(pool._idle))

    assert answered
    assert not pool._open


async def test_closing_the_client_ends_every_wait_with_an_error():
    async def wait():
        with pytest.raises(RequestFailed, match="is closed"):
            await ask(client, server.url)

    async with serve(deaf) as server, anyio.create_task_group() as tasks:
        async with http_client(URL(server.url)) as client:
            tasks.start_soon(wait)
            await server.until(lambda: server.requests)
        await server.until(lambda: server.open == 0)


async def test_tls_is_all_the_same(tmp_path: Path):
    certified, trusting = zoo.self_signed(tmp_path)
    async with (
        serve(saying(*WHOLE["head and body apart"]), tls=certified) as server,
        HttpClient("the zoo", tls=trusting) as client,
    ):
        for _ in range(3):
            assert await body_of(await ask(client, server.url)) == b"hi"

    assert server.connections == 1


async def test_a_certificate_of_somebody_else_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    certified, trusting = zoo.self_signed(tmp_path)
    async with (
        serve(zoo.polite, tls=certified) as server,
        zoo.tunnel(server.port) as proxy,
        HttpClient("near", tls=trusting) as client,
    ):
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(RequestFailed, match="of near is not trusted: Hostname mismatch"):
            await ask(client, "https://near.invalid/")

    assert not server.requests


async def test_a_tunnel_leads_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    certified, trusting = zoo.self_signed(tmp_path)
    with anyio.fail_after(PATIENCE):
        async with (
            serve(saying(PLAIN), tls=certified) as server,
            zoo.tunnel(server.port) as proxy,
            HttpClient("far", tls=trusting) as client,
        ):
            monkeypatch.setenv("https_proxy", proxy.url.replace("//", "//me:pass@"))
            for _ in range(2):
                assert await body_of(await ask(client, "https://far.invalid/x")) == b"hi"

    (asked,) = proxy.requests
    assert (asked.method, asked.path) == ("CONNECT", "far.invalid:443")
    assert asked.headers["host"] == "far.invalid:443"
    assert asked.headers["proxy-authorization"] == "Basic bWU6cGFzcw=="
    assert [one.path for one in server.requests] == ["/x", "/x"]
    assert "proxy-authorization" not in server.requests[0].headers


async def test_the_proxy_may_want_tls_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    certified, trusting = zoo.self_signed(tmp_path)
    with anyio.fail_after(PATIENCE):
        async with (
            serve(saying(PLAIN), tls=certified) as server,
            zoo.tunnel(server.port, tls=certified) as proxy,
            HttpClient("far", tls=trusting) as client,
        ):
            monkeypatch.setenv("https_proxy", proxy.url)
            assert await body_of(await ask(client, "https://far.invalid/x")) == b"hi"


async def test_a_server_behind_a_proxy_has_to_be_trusted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    certified, _ = zoo.self_signed(tmp_path)
    async with (
        serve(saying(PLAIN), tls=certified) as server,
        zoo.tunnel(server.port) as proxy,
        HttpClient("far") as client,
    ):
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(RequestFailed, match="certificate of far is not trusted: self-signed"):
            await ask(client, "https://far.invalid/x")

    assert not server.requests


async def test_a_plain_request_goes_to_the_proxy_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    async with serve(saying(PLAIN)) as proxy, HttpClient("far") as client:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:pass@"))
        for _ in range(2):
            assert await body_of(await ask(client, "http://far.invalid:81/x?y")) == b"hi"

    assert proxy.connections == 1
    assert proxy.requests[0].path == "http://far.invalid:81/x?y"
    assert proxy.requests[0].headers["host"] == "far.invalid:81"
    assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6cGFzcw=="


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            b"HTTP/1.1 407 Who are you?\r\n\r\n",
            "the proxy refuses to connect to far: HTTP 407",
        ),
        (b"SSH-2.0\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 200 " + b"x" * 70_000, "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "in place of the server"),
        (b"", "closed the connection"),
    ],
)
async def test_a_proxy_in_the_way_is_named(
    monkeypatch: pytest.MonkeyPatch, reply: bytes, words: str
):
    async with serve(saying(reply, close=True)) as proxy, HttpClient("far") as client:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(RequestFailed, match=words) as failure:
            await ask(client, "https://far.invalid/x")

    assert not failure.value.sent


async def test_all_addresses_of_a_host_are_tried():
    async with serve(saying(PLAIN)) as server, HttpClient("here") as client:
        url = server.url.replace("127.0.0.1", "localhost")  # the other one refuses
        assert await body_of(await ask(client, url)) == b"hi"
    await asyncio.get_running_loop().shutdown_default_executor()  # it resolves names


async def test_a_context_of_tls_is_not_needed_for_what_has_none():
    refusing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with serve(saying(PLAIN)) as server, HttpClient("here", tls=refusing) as client:
        assert await body_of(await ask(client, server.url)) == b"hi"
