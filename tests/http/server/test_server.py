"""HTTP connections: what is decided when, in which order, at what cost, and what is left."""

import asyncio
import gc
import json
import socket
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field

import anyio
import msgspec
import pytest

from multitap.http.server.connection import ServerConnection
from multitap.http.server.connections import HttpLimits
from multitap.http.server.request import HttpRequest, Rejected, RequestHead
from multitap.http.server.server import bind, open_http_server
from multitap.limits import TURN_SECONDS
from tests.gateway.hostile.raw import PATIENCE, dial, http
from tests.waiting import until

MEGABYTE = 2**20
SMALL = HttpLimits(body=8 * MEGABYTE, memory=12 * MEGABYTE, linger=0.5)


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class App:
    """Keeps bodies and answers with their length; what is asked for at `/later` when told to."""

    http_requests: list = field(default_factory=list)
    connections: "weakref.WeakSet[ServerConnection]" = field(default_factory=weakref.WeakSet)
    parts: weakref.WeakSet = field(default_factory=weakref.WeakSet)
    later: asyncio.Event = field(default_factory=asyncio.Event)
    admitted: int = 0
    longest: int = 0
    """Bytes of the longest body, as known when its request is admitted."""
    on_stall: Callable[[], None] = lambda: None
    work: float = 0.0
    """Seconds that each answer takes."""

    def admit(self, head: RequestHead):
        self.admitted += 1
        self.longest = max(self.longest, head.length)
        reader = sys._getframe(1).f_locals["self"]  # who asks
        self.connections.add(reader._responder._connection)
        self.parts |= {reader, reader._responder}
        if head.path == b"/no":
            return Rejected(401, "no", ((b"www-authenticate", b"Bearer"),))
        head.keeps_body = head.path != b"/unread"
        head.fits_any_length = True
        return None

    def handle(self, http_request: HttpRequest):
        ends = time.perf_counter() + self.work
        while time.perf_counter() < ends:
            pass
        match http_request.head.path:
            case b"/later":
                return self._answer_later(http_request)
            case b"/stream":
                return self._stream(http_request)
            case b"/never":
                return self._never(http_request)
            case b"/stall":
                self.on_stall()
                self._answer(http_request)
                return None
            case _:
                self._answer(http_request)
                return None

    def _answer(self, http_request):
        told = {"path": http_request.head.path.decode(), "size": len(http_request.body)}
        http_request.respond(200, (json.dumps(told).encode(),))

    async def _never(self, http_request):
        await asyncio.Event().wait()

    async def _answer_later(self, http_request):
        await self.later.wait()
        self._answer(http_request)

    async def _stream(self, http_request):
        http_request.stream()
        await http_request.write(b"data: 1\n\n")
        await self.later.wait()
        await http_request.write(b"data: 2\n\n")
        http_request.end()


@asynccontextmanager
async def serving(limits=SMALL, app=None):
    app = app or App()
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with open_http_server(app, listener, limits):
        yield app, port


async def forever(send, data):
    while True:
        await send(data)


def chunked(path, *chunks, trailer=b""):
    head = http(path=path, content_length=None, transfer_encoding="chunked")
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + framed + b"0\r\n" + trailer + b"\r\n"


async def test_whatever_the_cuts_each_request_is_answered_once_and_in_order():
    asked = b"".join(
        (
            http(path="/a", body=b"x" * 10),
            chunked("/b", b"abc", b"d" * 5000, trailer=b"x: y\r\n"),
            http("GET", "/c"),
            http(path="/later", body=b"y" * 100_000),
            http("GET", "/e", connection="upgrade", upgrade="h2c"),
            http(path="/unread", body=b"z" * 20_000),
            http("GET", "/g"),
        )
    )
    expected = [
        ("/a", 10), ("/b", 5003), ("/c", 0), ("/later", 100_000), ("/e", 0), ("/unread", 0),
        ("/g", 0),
    ]  # fmt: skip
    for size in (1, 7, 1000, 4096, 4097, 30_000, len(asked)):
        async with serving() as (app, port), dial(port) as line, anyio.create_task_group() as tasks:
            app.later.set()

            async def send(line=line, size=size):
                step = size if size > 1 else 997
                for start in range(0, len(asked), step):
                    await line.send(asked[start : start + step])
                    if size > 1:
                        await anyio.lowlevel.checkpoint()

            tasks.start_soon(send)
            told = [json.loads((await line.response()).body) for _ in expected]

        assert [(one["path"], one["size"]) for one in told] == expected


async def test_a_refusal_waits_for_the_answers_before_it_and_ends_the_connection():
    async with serving() as (app, port), dial(port) as line:
        await line.send(http("GET", "/later") + http(path="/no", body=b"x" * 1000))
        await line.send(http("GET", "/never-seen") * 10)
        await until(lambda: app.admitted == 2)
        app.later.set()

        assert json.loads((await line.response()).body)["path"] == "/later"
        refused = await line.response()
        assert (refused.status, refused.headers["connection"]) == (401, "close")
        assert await line.closed() == b""
        assert app.admitted == 2


async def test_of_the_body_of_a_refused_client_nothing_is_kept():
    async with serving() as (app, port), dial(port) as line:
        await line.send(http(path="/no", content_length=5 * MEGABYTE))
        response = await line.response()
        (connection,) = app.connections
        await line.send(b"x" * 4 * MEGABYTE)
        await until(lambda: connection.reader.droppable <= 2 * MEGABYTE)

        assert response.status == 401
        assert not connection.reader.unparsed
        assert not connection.reader._body
        assert not connection.weight
        assert await line.closed() == b""


async def test_who_sends_on_after_its_last_request_still_reads_the_answer():
    async with serving() as (app, port), dial(port) as line:
        await line.send(http("GET", "/later", connection="close") + http("GET", "/a") * 5000)
        await until(lambda: app.admitted)
        app.later.set()
        response = await line.response()

        assert json.loads(response.body)["path"] == "/later"
        assert response.headers["connection"] == "close"
        assert await line.closed() == b""
        assert app.admitted == 1


async def test_who_sends_on_after_a_refusal_is_cut_off():
    async with serving(HttpLimits(linger=60)) as (app, port), dial(port) as line:
        with anyio.fail_after(PATIENCE):
            await line.send(http(path="/no"))
            with pytest.raises(ConnectionError):
                await forever(line.send, b"x" * MEGABYTE)
        await until(lambda: not app.connections)


async def test_a_body_that_nobody_looks_at_is_not_kept():
    async with serving() as (app, port), dial(port) as line:
        await line.send(http(path="/unread", content_length=5 * MEGABYTE) + b"x" * 4 * MEGABYTE)
        await until(lambda: app.connections)
        (connection,) = app.connections
        await until(lambda: connection.reader._size == 4 * MEGABYTE)

        assert not connection.reader._body
        assert not connection.weight
        await line.send(b"x" * MEGABYTE)
        assert (await line.response()).status == 200


async def test_fields_are_counted_as_they_come_before_a_body_and_after_it():
    fields = b"".join(b"x-%d: y\r\n" % number for number in range(200))
    async with serving() as (_, port):
        for asked in (
            b"POST /a HTTP/1.1\r\n" + fields,
            chunked("/a", b"x")[:-2] + fields,
            b"POST /a HTTP/1.1\r\nx: " + b"y" * 70_000,
            chunked("/a", b"x")[:-2] + b"x: " + b"y" * 70_000,
            http(path="/a", content_length=None, transfer_encoding="chunked")
            + b"1;"
            + b"x" * 70_000,
        ):
            async with dial(port) as line:
                assert (await line.asks(asked)).status == 431, asked[-20:]
                assert await line.closed() == b""


async def test_go_on_is_said_to_who_is_let_in_and_in_nobody_s_answer():
    waits = http(path="/a", content_length=3, expect="100-continue")
    async with serving() as (app, port):
        async with dial(port) as line:
            await line.send(waits)
            assert (await line.head())[0] == 100
            assert (await line.asks(b"abc")).status == 200
        async with dial(port) as line:
            assert (await line.asks(waits.replace(b"/a", b"/no"))).status == 401
        async with dial(port) as line:
            await line.send(http("GET", "/stream") + waits)
            assert (await line.head())[0] == 200
            assert await line.chunk() == b"data: 1\n\n"
            await until(lambda: app.admitted == 4)
            app.later.set()
            assert await line.chunk() == b"data: 2\n\n"
            assert await line.chunk() == b""
            assert (await line.head())[0] == 100
            assert (await line.asks(b"abc")).status == 200
        async with dial(port) as line:
            await line.send(waits + b"abc")
            assert (await line.response()).status == 200


async def test_the_body_of_a_request_for_another_protocol_is_not_the_next_request():
    async with serving() as (app, port), dial(port) as line:
        smuggled = http("GET", "/smuggled")
        asked = http(path="/a", body=smuggled, connection="upgrade", upgrade="h2c")
        assert (await line.asks(asked)).status == 400
        assert await line.closed() == b""
        assert app.admitted == 1


async def test_unfinished_requests_share_the_memory_and_the_longest_gives_way():
    async with (
        serving() as (_, port),
        dial(port) as long,
        dial(port) as longer,
        dial(port) as small,
    ):
        await long.send(http(path="/a", content_length=5 * MEGABYTE) + b"x" * 4 * MEGABYTE)
        await longer.send(http(path="/a", content_length=8 * MEGABYTE))
        with anyio.fail_after(PATIENCE):
            for _ in range(7):
                await longer.send(b"x" * MEGABYTE)
        refused = await longer.response()
        assert (await small.asks(http(path="/a", body=b"y" * 20_000))).status == 200
        await long.send(b"x" * MEGABYTE)

        assert refused.status == 503
        assert str(SMALL.memory) in refused.body.decode()
        assert json.loads((await long.response()).body)["size"] == 5 * MEGABYTE


async def test_what_came_while_the_machine_gave_no_time_is_answered():
    request = http("POST", "/a", b"body")
    async with serving(HttpLimits(request_timeout=0.4)) as (app, port), dial(port) as other:
        with socket.create_connection(("127.0.0.1", port)) as plug:
            plug.settimeout(PATIENCE)
            plug.sendall(request[:-1])
            await until(lambda: app.admitted)

            def stand_still():
                plug.sendall(request[-1:])
                time.sleep(1)

            app.on_stall = stand_still
            await other.asks(http("GET", "/stall"))

            assert await anyio.to_thread.run_sync(plug.recv, 12) == b"HTTP/1.1 200"


async def test_when_many_connect_at_once_each_gets_an_answer():
    async with serving(HttpLimits(connections=4)) as (_, port):
        plugs = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        answers = []
        for plug in plugs:
            plug.sendall(http("GET", "/a"))
        for plug in plugs:
            with plug:
                plug.settimeout(PATIENCE)
                answers.append(await anyio.to_thread.run_sync(plug.recv, 12))

    assert {*answers} <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}


async def test_one_client_leaves_room_for_the_requests_of_others():
    limits = HttpLimits(connections=40)
    async with serving(limits) as (app, port), anyio.create_task_group() as tasks:
        refused = []

        async def hold():
            async with dial(port) as line:
                await line.send(http("GET", "/later"))
                response = await line.response()
                if response.status != 200:
                    refused.append(response)
                    await done.wait()

        done = anyio.Event()
        for _ in range(40):
            tasks.start_soon(hold)
        await until(lambda: app.admitted == 40)
        await until(lambda: len(refused) == 10)
        async with dial(port) as line:
            assert (await line.asks(http("GET", "/a"))).status == 503
        app.later.set()
        done.set()

    assert {response.status for response in refused} == {503}
    assert b"30 of the 40 requests" in refused[0].body


STAGES = {
    "idle": (http("GET", "/a"), lambda one: one.answered == 1),
    "half a head": (b"GET /a HTTP/1.1\r\nx: y", lambda one: one.reader._overhead),
    "half a body": (http(path="/a", content_length=9) + b"1234", lambda one: one.reader._size == 4),
    "half a long body": (
        http(path="/a", content_length=2 * MEGABYTE) + b"x" * MEGABYTE,
        lambda one: one.reader._size == MEGABYTE,
    ),
    "a trailer": (chunked("/a", b"x")[:-2] + b"x: y\r\n", lambda one: one.reader._size == 1),
    "a task at work": (http("GET", "/later"), lambda one: one.responder.current),
    "a callback to come": (http("GET", "/never"), lambda one: one.responder.current),
    "a stream": (http("GET", "/stream"), lambda one: one.responder.current),
    "requests that wait": (http("GET", "/later") * 40, lambda one: one.is_paused),
    "refused": (http("GET", "/no"), lambda one: one.responder.is_dismissed),
    "refused while it sends": (
        http(path="/no", content_length=MEGABYTE) + b"x" * 9,
        lambda one: one.responder.is_dismissed,
    ),
    "nonsense": (b"nonsense\r\n\r\n", lambda one: one.responder.is_dismissed),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_lost_connection_is_gone_without_the_garbage_collector(stage):
    asked, is_reached = STAGES[stage]
    async with serving() as (app, port):
        gc.collect()
        gc.disable()
        try:
            async with dial(port) as line:
                await line.send(http("GET", "/a"))
                await line.response()
                if stage != "idle":
                    await line.send(asked)
                await until(lambda: is_reached(*app.connections))
                line.reset()
                await until(lambda: not app.connections and not app.parts)
        finally:
            gc.enable()


async def test_a_repeated_request_that_waits_for_its_turn_is_not_parsed():
    async with serving(app=App(work=TURN_SECONDS)) as (app, port), AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(dial(port)) for _ in range(8)]
        for times in range(1, 6):  # more than one turn has time for
            for line in lines:
                await line.send(http("POST", "/a", b"x" * times))
            assert [(await line.response()).status for line in lines] == [200] * len(lines)

    assert app.admitted == len(lines)


async def test_the_length_of_a_body_is_known_when_its_request_is_admitted():
    async with serving() as (app, port), dial(port) as line:
        await line.asks(http("POST", "/a", b"x" * 12))

    assert app.longest == 12


async def test_heads_that_differ_in_the_length_are_decided_about_once():
    async with serving() as (app, port), dial(port) as line:
        for size in (1, 12, 345, 5 * 1024, 70_000):
            asked = http("POST", "/a", b"x" * size)
            head = len(asked) - size
            # at once, in two parts as many clients send it, and cut anywhere
            for cut in (0, head, head - 9, head + size // 2):
                await line.send(asked[:cut])
                await anyio.sleep(0.01)
                await line.send(asked[cut:])
                response = await line.response()
                assert json.loads(response.body) == {"path": "/a", "size": size}

    assert app.admitted < 10  # those cut within the head are not recognized


async def test_a_remembered_head_admits_no_longer_body_and_no_other_length():
    small = msgspec.structs.replace(SMALL, body=100)
    for length in ("101", "5 ", "+5", "5, 5", "0x5", "5\r\ncontent-length: 7", "9" * 5000):
        async with serving(small) as (_, port), dial(port) as line:
            await line.send(http("POST", "/a", b"12345"))
            assert (await line.response()).status == 200
            await line.send(http("POST", "/a", b"1" * 101, content_length=length))
            assert (await line.response()).status in ({200} if length == "5 " else {400, 413, 431})


async def test_a_flood_of_requests_lets_everybody_else_have_a_turn():
    """Between any two of our turns, a connection gets no more than a few requests answered."""
    async with serving() as (app, port), dial(port) as line, anyio.create_task_group() as tasks:
        asked = b"GET /a HTTP/1.1\r\n\r\n" * 2000
        tasks.start_soon(line.send, asked)
        await until(lambda: app.connections)
        (connection,) = app.connections
        answered, most = connection.answered, 0
        with anyio.fail_after(PATIENCE):
            while answered < 2000:
                await anyio.lowlevel.checkpoint()
                most = max(most, connection.answered - answered)
                answered = connection.answered
        tasks.cancel_scope.cancel()

    assert most <= 300


@pytest.mark.parametrize("turns", range(5))
async def test_a_client_that_connects_just_before_the_end_is_disconnected(turns):
    with socket.socket() as client, closing(bind("127.0.0.1", 0)) as listener:
        async with open_http_server(App(), listener):
            await anyio.sleep(0.01)  # it listens
            client.connect(listener.getsockname())
            for _ in range(turns):
                await asyncio.sleep(0)
        listener.close()
        for _ in range(5):
            await asyncio.sleep(0)
        client.setblocking(False)

        with anyio.fail_after(PATIENCE), suppress(ConnectionResetError):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
