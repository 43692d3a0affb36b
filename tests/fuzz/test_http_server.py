"""The HTTP server and bytes of every kind, in pieces of every size."""

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from multitap.http.server.connection import ServerConnection
from multitap.http.server.connections import Connections, HttpLimits
from multitap.http.server.request import Rejected
from multitap.tasks import Tasks
from tests.waiting import PATIENCE

EXAMPLES = int(os.environ.get("MULTITAP_EXAMPLES", "60"))
pytestmark = pytest.mark.timeout(240 + EXAMPLES // 5)
SEEDS = sorted((Path(__file__).parent / "seeds" / "http_server").iterdir())
LIMITS = HttpLimits(
    connections=8, head=2048, fields=20, body=8192, memory=64 * 1024, queued=4, linger=0.2
)
HELD = LIMITS.head + 2 * LIMITS.body + 64 * 1024
"""Bytes that one connection may hold at most: a request, one that waits, and what is unparsed."""


class App:
    """Answers with the path and the length of the body: at once, later, or in pieces."""

    def admit(self, head):
        if head.path.startswith(b"/no/"):
            return Rejected(401, "no")
        head.keeps_body = head.fits_any_length = True
        return None

    def handle(self, http_request):
        kind = http_request.head.path.split(b"/")[1]
        if kind == b"later":
            return self._later(http_request)
        if kind == b"stream":
            return self._stream(http_request)
        http_request.respond(200, (said(http_request.head.path, len(http_request.body)),))
        return None

    async def _later(self, http_request):
        await asyncio.sleep(0)
        http_request.respond(200, (said(http_request.head.path, len(http_request.body)),))

    async def _stream(self, http_request):
        http_request.stream()
        await http_request.write(http_request.head.path)
        await asyncio.sleep(0)
        await http_request.write(b" %d" % len(http_request.body))
        http_request.end()


def said(path, size):
    return b"%b %d" % (path, size)


@dataclass(frozen=True)
class Asked:
    """One request, as it is meant."""

    number: int
    kind: str
    body: bytes
    chunks: tuple[int, ...] | None
    """Where the body is cut into chunks; None: it has a length."""
    trailers: int
    expects: bool
    version: str
    closes: bool

    @property
    def path(self):
        return b"/%b/%d" % (self.kind.encode(), self.number)

    @property
    def encoded(self):
        lines = [b"POST %b HTTP/%b" % (self.path, self.version.encode()), b"Host: localhost"]
        if self.expects:
            lines.append(b"Expect: 100-continue")
        if self.closes:
            lines.append(b"Connection: close")
        elif self.version == "1.0":
            lines.append(b"Connection: keep-alive")
        if self.chunks is None:
            lines.append(b"Content-Length: %d" % len(self.body))
            return b"\r\n".join(lines) + b"\r\n\r\n" + self.body
        lines.append(b"Transfer-Encoding: chunked")
        return b"\r\n".join(lines) + b"\r\n\r\n" + b"".join(self._chunked())

    def _chunked(self):
        start = 0
        for cut in (*self.chunks, len(self.body)):
            if piece := self.body[start:cut]:
                yield b"%x;x=%d\r\n%b\r\n" % (len(piece), cut, piece)
                start = cut
        yield b"0\r\n"
        yield from (b"X-%d: y\r\n" % number for number in range(self.trailers))
        yield b"\r\n"

    @property
    def answer(self):
        if self.kind == "no":
            return 401, b"no"
        return 200, said(self.path, len(self.body))

    @property
    def is_last(self):
        """Whether nothing that comes after it is answered."""
        unframed = self.kind == "stream" and self.version == "1.0"
        return self.closes or self.kind == "no" or unframed


@st.composite
def requests(draw):
    number = draw(st.integers(0, 999))
    size = draw(st.one_of(st.integers(0, 40), st.integers(0, LIMITS.body)))
    chunks = draw(st.none() | st.lists(st.integers(0, size), max_size=6).map(sorted).map(tuple))
    version = draw(st.sampled_from(("1.1", "1.1", "1.1", "1.0")))
    return Asked(
        number=number,
        kind=draw(st.sampled_from(("now", "later", "stream", "now", "later", "no"))),
        body=b"b" * size,
        chunks=None if version == "1.0" else chunks,
        trailers=draw(st.integers(0, 5)),
        expects=draw(st.booleans()),
        version=version,
        closes=draw(st.integers(0, 5)) == 0,
    )


cuts = st.lists(st.integers(1, 9000), max_size=12)
"""The lengths of the pieces in which something is sent; the rest goes at once."""
HEAD = b"POST /now/1 HTTP/1.1\r\nHost: localhost\r\n"
fragments = st.sampled_from(
    (
        HEAD, b"GET /stream/2 HTTP/1.1\r\n\r\n", b"Content-Length: 5\r\n", b"\r\n", b"\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"0\r\n", b"x: y\r\n",
        b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\n",
        b"Upgrade: h2c\r\n", b"CONNECT a:1 HTTP/1.1\r\n", b"a" * 3000, b"\x00", b"\xff\xfe",
        b"Content-Length: 99999999999999999999\r\n", b"1;" + b"x" * 300, b" folded\r\n",
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", params=[uvloop.new_event_loop, asyncio.new_event_loop])
def runner(request):
    with asyncio.Runner(loop_factory=request.param) as runner:
        runner.run(_one_server())
        yield runner


async def _one_server():
    """Let the loop take the descriptor that it keeps in reserve from its first listener on."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()


def fuzzing(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@given(st.lists(requests(), min_size=1, max_size=8), cuts)
@fuzzing(EXAMPLES)
def test_every_request_is_answered_once_and_in_order(runner, asked, pieces):
    answered = []
    for one in asked:
        answered.append(one.answer)
        if one.is_last:
            break

    heard = runner.run(talk(b"".join(one.encoded for one in asked), pieces, len(answered)))

    assert responses(heard) == answered


@given(st.lists(fragments | st.binary(max_size=60), max_size=25).map(b"".join), cuts)
@example(HEAD + b"Content-Length: 5\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nGET /", [])
@fuzzing(EXAMPLES)
def test_nonsense_does_no_harm(runner, said, pieces):
    responses(runner.run(talk(said, pieces)))


@given(st.lists(requests(), min_size=1, max_size=4), st.data(), cuts)
@fuzzing(EXAMPLES)
def test_mistakes_do_no_harm(runner, asked, data, pieces):
    said = bytearray(b"".join(one.encoded for one in asked))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(said)))
        end = data.draw(st.integers(at, min(len(said), at + 8)))
        said[at:end] = data.draw(fragments | st.binary(max_size=4))

    responses(runner.run(talk(bytes(said), pieces)))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
@pytest.mark.parametrize("size", [1, 64, 10_000])
def test_what_once_did_harm_does_none(runner, seed, size):
    said = seed.read_bytes()

    responses(runner.run(talk(said, [size] * (len(said) // size))))


async def talk(said, pieces, wanted=None):
    """What a server answers to bytes in such pieces, once it is done with them.

    Args:
        said: The bytes.
        pieces: The lengths in which they are sent.
        wanted: How many responses to wait for; None: leave whenever it has nothing to do.
    """
    loop = asyncio.get_running_loop()
    failures = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks, Tasks() as works:
        connections = Connections(App(), works, LIMITS)
        ours, theirs = pair()
        _, connection = await loop.connect_accepted_socket(
            partial(ServerConnection, connections), theirs
        )
        heard = tasks.create_task(listen(loop, ours))
        await send(loop, ours, said, pieces, connection)
        while wanted is not None and not is_done(connection, wanted):
            await asyncio.sleep(0)
        with suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        while connection._transport is not None:
            connections._look(0.0, 1.0)
            await asyncio.sleep(0)
        await heard
    ours.close()

    assert not failures
    assert not connections._members
    assert connections.memory.total == connections.under_way.total == 0
    return heard.result()


def is_done(connection, wanted):
    is_dismissed = connection.responder.is_dismissed
    return connection._transport is None or is_dismissed or connection.answered >= wanted


def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setblocking(False)
    theirs.setblocking(False)
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


async def send(loop, ours, said, pieces, connection):
    start = 0
    with suppress(OSError):
        for size in (*pieces, len(said)):
            if start < len(said):
                await loop.sock_sendall(ours, said[start : start + size])
                start += size
            for _ in range(3):
                await asyncio.sleep(0)
            assert held(connection) <= HELD


def held(connection):
    http_requests = [*connection.responder.queue, connection.responder.current]
    bodies = sum(
        len(http_request.body) for http_request in http_requests if http_request is not None
    )
    return connection.arriving + len(connection.reader.unparsed) + bodies


async def listen(loop, ours):
    heard = bytearray()
    with suppress(OSError):
        while data := await loop.sock_recv(ours, 65536):
            heard += data
    return bytes(heard)


def responses(heard):
    """The responses in what was heard, each whole, and nothing between them."""
    found = []
    while heard:
        head, separator, heard = heard.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        assert separator
        assert status.startswith(b"HTTP/1.1 ")
        code = int(status[9:12])
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        if code == 100:
            assert not headers
            continue
        assert headers[b"x-content-type-options"] == b"nosniff"
        body, heard = body_of(headers, heard)
        found.append((code, body))
        assert not heard or headers.get(b"connection") != b"close"
    return found


def body_of(headers, heard):
    if headers.get(b"transfer-encoding") == b"chunked":
        body = b""
        while True:
            size, _, heard = heard.partition(b"\r\n")
            length = int(size, 16)
            body, ending, heard = (
                body + heard[:length],
                heard[length : length + 2],
                heard[length + 2 :],
            )
            assert ending == b"\r\n"
            if not length:
                return body, heard
    length = int(headers[b"content-length"]) if b"content-length" in headers else len(heard)
    assert len(heard) >= length
    return heard[:length], heard[length:]
