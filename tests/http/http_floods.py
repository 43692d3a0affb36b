"""Answers over HTTP that never end, well-formed and not, from a server in a process of its own.

`python -m tests.http.http_floods` prints its address. The path says what floods and where:
`/call/KIND` answers `tools/call` with it, `/listen/KIND` the stream between requests, and
`/sse/KIND` the one stream of legacy SSE. Everything else is answered politely.
"""

import asyncio
import gzip
import json
import subprocess
import sys
import zlib
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from tests.wire.http_zoo import Caller, Handler, Json, Request, error, polite, result, serve

JSON = "application/json"
EVENTS = "text/event-stream"
_BLOCK = 64 * 1024
_BOMB = 4 * 1024 * 1024
_PATH = "/messages"
_RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "logging": {}},
        "serverInfo": {"name": "endless", "version": "1"},
    },
    "ping": {},
    "tools/list": {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "still here"}]},
}


def endless(start: bytes, unit: bytes) -> Handler:
    """Begin with `start`, and write `unit` for as long as the connection lasts."""
    block = unit * max(1, _BLOCK // len(unit))

    async def flood(request: Request, caller: Caller) -> None:
        await caller.send(start)
        while True:
            await caller.send(block)

    return flood


def head(kind: str, *lines: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", f"Content-Type: {kind}", *lines, "", "")).encode()


def plain(kind: str, unit: bytes) -> Handler:
    """A body that would end with the connection."""
    return endless(head(kind), unit)


def chunked(kind: str, unit: bytes) -> Handler:
    return endless(head(kind, "Transfer-Encoding: chunked"), unit)


def packed(kind: str, unit: bytes) -> Handler:
    """A bomb: after a full flush the same block fits any number of times."""
    packer = zlib.compressobj(wbits=31)
    begin = packer.compress(b" ") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(unit * (_BOMB // len(unit))) + packer.flush(zlib.Z_FULL_FLUSH)
    return endless(head(kind, "Content-Encoding: gzip") + begin, block)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(**message: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"jsonrpc": "2.0", **message}).encode()


def note(method: str, **params: Any) -> bytes:
    return event(method=f"notifications/{method}", params=params)


JUNK = {
    "events": b"data:x\n\n",
    "empty events": b"data\n\n",
    "other events": b"event:x\ndata:x\n\n",
    "comments": b":\n",
    "heartbeats": b": ping\n\n",
    "blank lines": b"\n",
    "carriage returns": b"\r",
    "unknown fields": b"x\n",
    "ids": b"id:1\n",
    "braces": b"data:{}\n\n",
    "broken JSON": b'data: {"jsonrpc": "2.0", "id": 1, "result": {\n\n',
    "stray answers": event(id=123456, result={}),
    "one event of tiny lines": b"data\n",
    "one event of one line": b"data: " + b"x" * 65536,
    "no text": bytes(range(128, 256)),
}
"""Useless contents of an event stream."""

MESSAGES = {
    "notifications": note("zoo", why="because it can"),
    "logs": note("message", level="error", data="and another thing"),
    "progress": note("progress", progressToken=1, progress=1),
    "lists": note("tools/list_changed"),
    "cancelled": note("cancelled", requestId=1),
    "requests": b"".join(event(id=f"q{number}", method="ping") for number in range(1000)),
}
"""Valid messages in excessive numbers."""

STREAMS = {kind: chunked(EVENTS, chunk(unit * 64)) for kind, unit in {**JUNK, **MESSAGES}.items()}
ANSWERS = {
    **STREAMS,
    "events until it closes": plain(EVENTS, b"data:x\n\n"),
    "events in tiny chunks": chunked(EVENTS, b"".join(chunk(b"%c" % one) for one in b"data:x\n\n")),
    "events under gzip": packed(EVENTS, b"data:x\n\n"),
    "comments under gzip": packed(EVENTS, b":\n"),
    "logs under gzip": packed(EVENTS, MESSAGES["logs"]),
    "spaces": plain(JSON, b" "),
    "spaces in tiny chunks": chunked(JSON, chunk(b" ")),
    "spaces under gzip": packed(JSON, b" "),
    "members of gzip": endless(head(JSON, "Content-Encoding: gzip"), gzip.compress(b"")),
    "zeros between members": endless(head(JSON, "Content-Encoding: gzip"), b"\0"),
    "the size of a chunk": chunked(JSON, b"0"),
    "chunk extensions": chunked(JSON, b"1;" + b"x" * 50_000 + b"\r\n \r\n"),
    "trailers": endless(head(JSON, "Transfer-Encoding: chunked") + b"0\r\n", b"a: b\r\n"),
    "an error page": endless(b"HTTP/1.1 500 Oh\r\n\r\n", b"sorry "),
    "another page": plain("text/html", b"<p>"),
    "headers": endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "the name of a header": endless(b"HTTP/1.1 200 OK\r\n", b"a"),
    "a status line": endless(b"HTTP/1.1 200 ", b"a"),
    "promises": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "line ends": endless(b"", b"\r\n"),
    "zeros": endless(b"", b"\0"),
    "letters": endless(b"", b"HTTP"),
}
"""What the answer to a request may be, for ever."""


def path(place: str, kind: str) -> str:
    return f"/{place}/{quote(kind)}"


def reply(request: Request) -> Json | None:
    """What any server would answer, if it is asked anything."""
    if not request.rpc or "id" not in request.message:
        return None
    if (known := _RESULTS.get(request.rpc)) is not None:
        return result(request, **known)
    return error(-32601, "no such method", request.message["id"])


def streamable(**floods: Handler) -> Handler:
    """Streamable HTTP, but for `call` or `GET`."""

    async def handle(request: Request, caller: Caller) -> None:
        kind = "call" if request.rpc == "tools/call" else request.method
        answer = reply(request)
        if kind in floods:
            await floods[kind](request, caller)
        elif answer is None:
            await polite(request, caller)
        elif request.rpc == "initialize":
            await caller.respond(answer, mcp_session_id="s-1")
        else:
            await caller.respond(answer)

    return handle


def sse(unit: bytes) -> Handler:
    """Legacy SSE that answers on its stream, between two blocks of the flood."""
    streams: list[Caller] = []
    block = unit * max(1, _BLOCK // len(unit))

    async def handle(request: Request, caller: Caller) -> None:
        if request.method == "GET":
            streams.append(caller)
            await caller.send(head(EVENTS) + b"event: endpoint\ndata: %b\n\n" % _PATH.encode())
            while True:
                await caller.send(block)
        await caller.accept()
        if (answer := reply(request)) is not None:
            await streams[-1].send(b"\n\ndata: %b\n\n" % json.dumps(answer).encode())

    return handle


def _handler() -> Handler:
    calls = {kind: streamable(call=flood) for kind, flood in ANSWERS.items()}
    listens = {kind: streamable(GET=flood) for kind, flood in STREAMS.items()}
    streams = {kind: sse(unit) for kind, unit in {**JUNK, **MESSAGES}.items()}
    places = {"call": calls, "listen": listens, "sse": streams}
    good = streamable()
    last = [good]

    async def handle(request: Request, caller: Caller) -> None:
        if request.path == _PATH:  # of the stream that was opened last
            await last[0](request, caller)
            return
        _, place, kind = unquote(request.path).split("/")
        handler = places.get(place, {}).get(kind, good)
        if place == "sse":
            last[0] = handler
        await handler(request, caller)

    return handle


@contextmanager
def flooding():
    """The address of such a server, which ends with the block."""
    command = [sys.executable, "-m", "tests.http.http_floods"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


async def main() -> None:
    async with serve(_handler()) as server:
        print(server.url.removesuffix("/mcp"), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
