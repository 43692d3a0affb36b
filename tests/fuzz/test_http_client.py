"""The HTTP client and answers of every kind, in pieces of every size."""

import asyncio
import gzip
import json
import logging
import os
import secrets
import zlib
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from multitap.config import HttpServer
from multitap.config.models import Limits
from multitap.errors import WireFault
from multitap.http.client.messages import UNREAD
from multitap.wire.jsonrpc import RpcError
from multitap.wire.streamable import open_streamable
from tests.http.listener import Listener
from tests.waiting import PATIENCE
from tests.wire.asking import Launched
from tests.wire.asking import ask as ask_on
from tests.wire.http_zoo import read_request

EXAMPLES = int(os.environ.get("MULTITAP_EXAMPLES", "60"))
pytestmark = pytest.mark.timeout(240 + EXAMPLES // 5)
TURNS = 60
"""Turns of the loop in which an answer is understood; what is not by then is incomplete."""
LIMITS = Limits(message=100_000)
HELD = UNREAD + 512 * 1024
"""Bytes that all connections may hold: what nobody has read yet, and what is not parsed yet."""
BOMB = gzip.compress(b" " * 2**22)
FILLER = (b": ping", b"", b"retry: 5", b"event: message", b"x: y", b"id")


@dataclass(frozen=True)
class Answer:
    """One answer, as it is meant."""

    is_events: bool = False
    framing: str = "length"
    coding: str = ""
    ending: bytes = b"\r\n"
    """Of the lines of events."""
    filler: tuple[bytes, ...] = ()
    padding: int = 0
    chunks: tuple[int, ...] = ()
    """Where the body is cut into chunks."""
    trailers: int = 0
    promises: int = 0
    """How many times 100 comes before."""
    closes: bool = False

    def encoded(self, number, mark):
        result = {"mark": mark, "padding": "p" * self.padding}
        message = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}, indent=1)
        body = self._coded(self._events(message.encode()) if self.is_events else message.encode())
        lines = [b"HTTP/1.1 200 OK", b"Content-Type: %b" % self._kind]
        if self.coding:
            lines.append(b"Content-Encoding: %b" % self.coding.encode())
        if self.closes or self.framing == "close":
            lines.append(b"Connection: close")
        if self.framing == "length":
            lines.append(b"Content-Length: %d" % len(body))
        elif self.framing == "chunked":
            lines.append(b"Transfer-Encoding: chunked")
            body = b"".join(self._chunked(body))
        promise = b"HTTP/1.1 100 Continue\r\n\r\n" * self.promises
        return promise + b"\r\n".join(lines) + b"\r\n\r\n" + body

    @property
    def is_last(self):
        return self.closes or self.framing == "close"

    @property
    def _kind(self):
        return b"text/event-stream" if self.is_events else b"application/json"

    def _events(self, message):
        data = [b"data: " + line for line in message.splitlines()]
        return self.ending.join((*self.filler, b"", *data, b"", *self.filler, b""))

    def _coded(self, body):
        if self.coding == "gzip":
            return gzip.compress(body)
        return zlib.compress(body) if self.coding else body

    def _chunked(self, body):
        start = 0
        for cut in (*self.chunks, len(body)):
            if piece := body[start:cut]:
                yield b"%x;x=%d\r\n%b\r\n" % (len(piece), cut, piece)
                start = cut
        yield b"0\r\n"
        yield from (b"X-%d: y\r\n" % number for number in range(self.trailers))
        yield b"\r\n"


@dataclass(frozen=True)
class Script:
    """What a server sends: an answer with mistakes, or anything; and in which pieces."""

    said: Answer | bytes
    pieces: tuple[int, ...] = ()
    mistakes: tuple[tuple[float, int, bytes], ...] = ()
    """Where, how many bytes, and what is there instead."""
    surplus: bytes = b""

    def encoded(self, number, mark):
        if isinstance(self.said, bytes):
            said = self.said.replace(b"@ID@", b"%d" % number).replace(b"@MARK@", mark.encode())
        else:
            said = self.said.encoded(number, mark)
        changed = bytearray(said)
        for where, length, instead in self.mistakes:
            at = int(where * len(changed))
            changed[at : at + length] = instead
        return bytes(changed) + self.surplus


class Server:
    """Answers each request by the next script; closes where that was not understood."""

    def __init__(self, scripts):
        self._scripts = iter(scripts)
        self.wire = None
        """The client's."""
        self.connections = 0
        self.outcomes = {}
        """By mark."""
        self._open = set()

    async def connected(self, reader, writer):
        task = asyncio.current_task()
        self._open.add(task)
        self.connections += 1
        try:
            while (request := await read_request(reader)) is not None:
                script = next(self._scripts, None)
                if request.method != "POST" or script is None:
                    break
                mark = request.message["params"]["mark"]
                await self._send(writer, script, script.encoded(request.message["id"], mark))
                if not await self._understood(mark) or _is_last(script):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            with suppress(OSError):
                writer.close()
            self._open.discard(task)

    async def _send(self, writer, script, said):
        start = 0
        for size in (*script.pieces, len(said)):
            if start < len(said):
                if writer.is_closing():  # uvloop refuses to write then, with an error of its own
                    raise ConnectionResetError
                writer.write(said[start : start + size])
                await writer.drain()
                start += size
            for _ in range(3):
                await asyncio.sleep(0)
            assert held(self.wire) <= HELD

    async def _understood(self, mark):
        for _ in range(TURNS):
            if mark in self.outcomes:
                return True
            await asyncio.sleep(0)
        return False

    async def gone(self):
        """Wait until no connection is open."""
        while self._open:
            await asyncio.sleep(0)


def held(wire):
    connections = [one for pool in wire._origin._client._pools.values() for one in pool._open]
    answers = [one._reader.response for one in connections]
    unread = sum(one.held for one in answers if one is not None)
    return unread + sum(len(piece) for one in connections for piece in one._unparsed._pieces)


def _is_last(script):
    return isinstance(script.said, Answer) and script.said.is_last


pieces = st.lists(st.integers(1, 3000), max_size=8).map(tuple)


@st.composite
def answers(draw):
    is_events = draw(st.booleans())
    padding = draw(st.sampled_from((0, 0, 0, 50, 5000, 80_000)))
    return Answer(
        is_events=is_events,
        framing=draw(st.sampled_from(("length", "chunked", "chunked", "close"))),
        coding=draw(st.sampled_from(("", "", "gzip", "deflate"))),
        ending=draw(st.sampled_from((b"\n", b"\r\n", b"\r"))),
        filler=tuple(draw(st.lists(st.sampled_from(FILLER), max_size=3))),
        padding=padding,
        chunks=tuple(sorted(draw(st.lists(st.integers(0, padding + 100), max_size=6)))),
        trailers=draw(st.integers(0, 3)),
        promises=draw(st.integers(0, 2)),
        closes=draw(st.integers(0, 5)) == 0,
    )


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
MESSAGE = b'{"jsonrpc":"2.0","id":@ID@,"result":{"mark":"@MARK@"}}'
fragments = st.sampled_from(
    (
        HEAD, EVENTS, MESSAGE, b"\r\n", b"\r\n\r\n", b"\n\n", b"\r", b"data: ", b"data: x\n\n",
        b"data: " + MESSAGE + b"\n\n", b"event: endpoint\n", b": \n", b"id: 1\n", b"retry: 0\n",
        b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n",
        b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n", b"Content-Encoding: br\r\n", BOMB[:200], BOMB,
        b"\x1f\x8b\x08", b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n",
        b"0\r\n\r\n", b"0\r\n", b"5\r\nabcde\r\n", b"1\r\n{\r\n", b"ffffffffffffffff\r\n",
        b"1;" + b"x" * 300, b"x: y\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/1.1 202 Accepted\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not\r\n\r\n", b"HTTP/1.0 200\r\n",
        b"HTTP/1.1 404 Not Found\r\n", b"HTTP/1.1 307 There\r\nLocation: /\r\n", b"HTTP/2 200\r\n",
        b"HTTP/1.1 999 What\r\n", b"a" * 3000, b"\x00", b"\xff\xfe", b" folded\r\n",
        b'{"jsonrpc":"2.0","id":@ID@,"error":{"code":1,"message":"no"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"ping"}',
        b'{"jsonrpc":"2.0","method":"notifications/x"}',
    )
)  # fmt: skip
long = st.integers(60_000, 140_000).map(b"a".__mul__)
nonsense = st.lists(fragments | long | st.binary(max_size=60), max_size=20).map(b"".join)
"""Of any kind, and sometimes long."""
mistakes = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 8),
        fragments | st.binary(max_size=4),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", params=[uvloop.new_event_loop, asyncio.new_event_loop])
def runner(request):
    logging.getLogger("multitap").addHandler(logging.NullHandler())
    with asyncio.Runner(loop_factory=request.param) as runner:
        runner.run(ask([Script(Answer())]))  # which takes what a loop keeps for good
        yield runner


def fuzzing(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@given(st.lists(st.builds(Script, answers(), pieces), min_size=1, max_size=6), st.booleans())
@fuzzing(EXAMPLES)
def test_every_answer_is_understood(runner, scripts, launching):
    marks, server = runner.run(ask(scripts, launching=launching))

    for mark in marks:
        outcome = server.outcomes[mark]
        assert isinstance(outcome, Raw), outcome
        assert json.loads(bytes(outcome))["mark"] == mark
    if not any(script.said.is_events for script in scripts):
        fresh = [True, *(script.said.is_last for script in scripts[:-1])]
        assert server.connections == sum(fresh)


def _says_something(surplus):
    return surplus.strip(b"\r\n")  # which may stand between two answers


@given(st.builds(Script, answers(), surplus=nonsense.filter(_says_something)))
@fuzzing(EXAMPLES)
def test_a_connection_with_more_than_its_answer_is_not_used_again(runner, script):
    script = replace(script, said=replace(script.said, closes=False, is_events=False))
    marks, server = runner.run(ask([script, Script(Answer())]))

    outcome = server.outcomes[marks[1]]
    assert isinstance(outcome, Raw), outcome
    assert script.said.framing == "close" or server.connections == 2


@given(st.lists(st.builds(Script, nonsense, pieces), min_size=1, max_size=4), st.booleans())
@example([Script(HEAD + b"Content-Length: 5\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")], True)
@example([Script(EVENTS + b"Content-Encoding: gzip\r\n\r\n" + BOMB)], True)
@example([Script(HEAD + b"Content-Encoding: gzip\r\n\r\n" + BOMB * 8)], False)
@fuzzing(EXAMPLES)
def test_nonsense_does_no_harm(runner, scripts, launching):
    marks, server = runner.run(ask(scripts, launching=launching))

    apart(marks, server.outcomes)


@given(
    st.lists(st.builds(Script, answers(), pieces, mistakes), min_size=1, max_size=4), st.booleans()
)
@fuzzing(EXAMPLES)
def test_mistakes_do_no_harm(runner, scripts, launching):
    marks, server = runner.run(ask(scripts, launching=launching))

    apart(marks, server.outcomes)


def apart(marks, outcomes):
    """Each request has one outcome, in which there is nothing of another one's."""
    assert set(outcomes) == set(marks)
    for mark, outcome in outcomes.items():
        said = bytes(outcome) if isinstance(outcome, Raw) else str(outcome).encode()
        assert not [other for other in marks if other != mark and other.encode() in said]
        assert len(said) <= LIMITS.message


@asynccontextmanager
async def served(scripts):
    """A wire to such a server; nothing escapes a callback, and nothing is left."""
    loop = asyncio.get_running_loop()
    failures = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    server = Server(scripts)
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    try:
        async with asyncio.timeout(PATIENCE):
            async with open_streamable(HttpServer(url=url, limits=LIMITS)) as wire:
                server.wire = wire
                wire.attach(Listener(dict))
                wire.establish("2026-07-28", stateless=True)
                yield server, wire
            listener.close()
            await server.gone()
            await listener.wait_closed()
    finally:
        listener.close()

    assert not failures


async def ask(scripts, *, launching=False):
    """Ask once for each script; the marks of the requests, and the server."""
    marks = [secrets.token_hex(8) for _ in scripts]
    async with served(scripts) as (server, wire):
        for mark in marks:
            server.outcomes[mark] = await outcome(wire, mark, launching=launching)
    return marks, server


async def outcome(wire, mark, *, launching):
    params = {"mark": mark}
    if launching:
        return await Launched(wire, wire._tasks, "x", params, timeout=PATIENCE).get()
    try:
        return await ask_on(wire, "x", params, timeout=PATIENCE)
    except (WireFault, RpcError) as fault:
        return fault
