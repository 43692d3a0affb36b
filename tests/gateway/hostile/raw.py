"""A client made of nothing but a socket, so that it can do everything wrong."""

import asyncio
import json
import socket
import struct
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio

from tests.waiting import PATIENCE

MODERN = "2026-07-28"
OLD = "2025-11-25"
_META = "io.modelcontextprotocol/"


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict
    body: bytes

    @property
    def message(self):
        """The answer, whether it came as JSON or as the last event of a stream."""
        if self.headers.get("content-type") == "text/event-stream":
            return self.events[-1]
        return json.loads(self.body)

    @property
    def events(self):
        lines = self.body.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def text(self):
        return self.message["result"]["content"][0]["text"]


class Line:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader = reader
        self._writer = writer

    async def send(self, data):
        self._writer.write(data)
        await self._writer.drain()

    async def head(self):
        """The status and the headers of the next response."""
        with anyio.fail_after(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return int(status.split()[1]), headers

    async def response(self):
        status, headers = await self.head()
        with anyio.fail_after(PATIENCE):
            if headers.get("transfer-encoding") != "chunked":
                body = await self.reader.readexactly(int(headers["content-length"]))
                return Response(status, headers, body)
            parts = []
            while part := await self.chunk():
                parts.append(part)
            return Response(status, headers, b"".join(parts))

    async def chunk(self):
        with anyio.fail_after(PATIENCE):
            size = int(await self.reader.readline(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def asks(self, data):
        """The response to a request."""
        await self.send(data)
        return await self.response()

    async def drips(self, drops, pace):
        """The response to a request of which one piece after the other is sent until it comes.

        However busy the machine is, nothing is sent to a connection that has long been closed:
        the system would drop what it had said before.
        """

        async def send():
            with suppress(ConnectionError):
                for drop in drops:
                    await self.send(drop)
                    await pace()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            response = await self.response()
            tasks.cancel_scope.cancel()
        return response

    async def closed(self):
        """Read until the other side closes, whatever it still says."""
        with anyio.fail_after(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def reset(self):
        """Vanish without a word."""
        self._writer.transport.abort()


@asynccontextmanager
async def dial(port, *, window=None):
    """A connection; `window` is how little of what it is sent it holds unread."""
    plug = socket.socket()
    try:
        plug.setblocking(False)
        if window is not None:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        # to vanish means to vanish: no lingering, no polite end
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=plug, limit=window or 2**24)
    except BaseException:  # also one who is cancelled meanwhile
        plug.close()
        raise
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


def http(method="POST", path="/mcp", body=b"", **headers):
    """A request; a header given as None is left out."""
    usual = {
        "host": "127.0.0.1",
        "accept": "application/json, text/event-stream",
        "content_type": "application/json",
        "content_length": len(body),
    }
    wanted = {name.replace("_", "-"): value for name, value in {**usual, **headers}.items()}
    lines = [f"{name}: {value}\r\n" for name, value in wanted.items() if value is not None]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + body


def message(request_id, method, **params):
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def in_session(session, said, **headers):
    """A request of the handshake era."""
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    return http(body=body, mcp_session_id=session, **headers)


def hello(**params):
    """The first request of the handshake era."""
    info = {"name": "raw", "version": "1"}
    usual = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": info}
    return json.dumps(message(0, "initialize", **{**usual, **params})).encode()


def stateless(request_id, method, *, able=None, path="/mcp", headers=None, **params):
    """A request of the stateless era."""
    meta = {f"{_META}protocolVersion": MODERN, f"{_META}clientCapabilities": able or {}}
    params["_meta"] = {**meta, **params.get("_meta", {})}
    usual = {"mcp_protocol_version": MODERN, "mcp_method": method}
    if (name := params.get("name") or params.get("uri")) is not None:
        usual["mcp_name"] = name
    body = json.dumps(message(request_id, method, **params)).encode()
    return http(path=path, body=body, **{**usual, **(headers or {})})


def call(request_id, tool, *, _meta=None, **arguments):
    """A call of a tool."""
    more = {"_meta": _meta} if _meta else {}
    server = "asks" if tool == "ask" else "counts"
    return message(request_id, "tools/call", name=f"{server}_{tool}", arguments=arguments, **more)


async def shake_hands(line, *, path="/mcp", **params):
    """The id of a new session."""
    response = await line.asks(http(path=path, body=hello(**params)))
    session = response.headers["mcp-session-id"]
    done = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    assert (await line.asks(in_session(session, done))).status == 202
    return session
