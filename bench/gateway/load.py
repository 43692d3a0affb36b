"""Clients that ask one gateway or several; does what it reads from its input, line by line."""

import asyncio
import math
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import anyio
import httptools
import uvloop

from bench.gateway.dialects import DIALECTS, Wrong, decode, encode

HOST = b"127.0.0.1"
LONGEST = 120.0
"""Seconds that one order may take unless it says otherwise."""


@dataclass(slots=True)
class Reply:
    status: int
    session: bytes
    events: bool
    body: bytes


class Connection(asyncio.Protocol):
    """Kept alive; opened anew where the other side closed it between two requests."""

    def __init__(self, port):
        self._port = port
        self._transport = None
        self._waiting = None
        self.spent = 0.0
        """Seconds between requests and answers; reading them is the client's own affair."""

    async def exchange(self, path, body=b"", headers=b"", method=b"POST"):
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, HOST, self._port)
        self._waiting = loop.create_future()
        self._session, self._events, self._body = b"", False, []
        started = time.perf_counter()
        self._transport.write(
            b"%b %b HTTP/1.1\r\nHost: %b:%d\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\n%bContent-Length: %d\r\n\r\n%b"
            % (method, path.encode(), HOST, self._port, headers, len(body), body)
        )
        reply = await self._waiting
        self.spent += time.perf_counter() - started
        return reply

    def connection_made(self, transport):
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, _error):
        self._transport = None
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(ConnectionError("closed before the answer"))

    def data_received(self, data):
        self._parser.feed_data(data)

    def on_header(self, name, value):
        match name.lower():
            case b"mcp-session-id":
                self._session = value
            case b"content-type":
                self._events = value.startswith(b"text/event-stream")

    def on_body(self, data):
        self._body.append(data)

    def on_message_complete(self):
        reply = Reply(
            self._parser.get_status_code(), self._session, self._events, b"".join(self._body)
        )
        if not self._parser.should_keep_alive():
            self.close()
        if not self._waiting.done():  # nobody waits where an order took too long
            self._waiting.set_result(reply)

    def close(self):
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def abort(self):
        if self._transport is not None:
            at_once = struct.pack("ii", 1, 0)  # nor does the port wait for a minute
            line = self._transport.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.close()


class Client:
    def __init__(self, port, dialect, path):
        self._connection = Connection(port)
        self._dialect = DIALECTS[dialect](self._connection.exchange, path)
        self.open = self._dialect.open

    async def call(self, tool, arguments):
        """Seconds until the answer, which is the right one."""
        before = self._connection.spent
        text = await self._dialect.call(tool, arguments)
        if text != _expected(arguments):
            raise Wrong(f"{text[:80]!r} for {arguments}")
        return self._connection.spent - before

    async def tools(self):
        """All names, and seconds until they were here."""
        before = self._connection.spent
        names = await self._dialect.tools()
        return names, self._connection.spent - before

    async def end(self):
        """Leave in good order."""
        await self._dialect.close()
        self._connection.close()

    def vanish(self):
        """Gone without a word."""
        self._connection.abort()


class Load:
    """The clients of each gateway, by the gateway's name."""

    def __init__(self):
        self._clients = {}
        self._greeted = {}
        self._numbers = count()

    async def open(self, *, name, port, dialect, path, clients):
        opened = [Client(port, dialect, path) for _ in range(clients)]
        for client in opened:
            await client.open()
        self._clients[name] = opened
        return {}

    async def tools(self, *, name, times=1):
        client = self._clients[name][0]
        seconds = []
        for _ in range(times):
            names, taken = await client.tools()
            seconds.append(taken)
        return {"tools": names, **_spread(seconds)}

    async def calls(self, *, name, tool, calls, parallel, arguments=None, apart=0.0):
        """Calls with different arguments each, so that no cache can answer; their lengths differ.

        The clients start `apart` seconds after each other.
        """
        seconds = []

        async def work(client, pause):
            await anyio.sleep(pause)
            for _ in range(max(1, calls // parallel)):
                number = next(self._numbers)
                asked = arguments or {"text": f"ping {number} {'.' * (number % 97)}"}
                seconds.append(await client.call(tool, asked))

        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number, client in enumerate(self._clients[name][:parallel]):
                tasks.start_soon(work, client, number * apart)
        return {"calls": len(seconds), "taken": time.perf_counter() - started, **_spread(seconds)}

    async def sessions(self, *, port, dialect, path, tool, sessions, parallel, end):
        """Clients that come, call once, and leave: with a word or without."""

        async def work():
            for _ in range(sessions // parallel):
                client = Client(port, dialect, path)
                await client.open()
                await client.call(tool, {"text": f"ping {next(self._numbers)}"})
                if end:
                    await client.end()
                else:
                    client.vanish()

        async with anyio.create_task_group() as tasks:
            for _ in range(parallel):
                tasks.start_soon(work)
        return {}

    async def greet(self, *, name, port, dialect, path, sessions):
        """Open sessions one after the other, all on one connection; they stay until `leave`."""
        connection = Connection(port)
        opened = [DIALECTS[dialect](connection.exchange, path) for _ in range(sessions)]
        for session in opened:
            await session.open()
        self._greeted[name] = connection, opened
        return {"seconds": connection.spent / sessions}

    async def leave(self, *, name):
        """End what `greet` opened."""
        connection, opened = self._greeted.pop(name)
        for session in opened:
            await session.close()
        connection.close()
        return {}

    async def close(self, *, name):
        for client in self._clients.pop(name, ()):
            with suppress(OSError, Wrong):
                await client.end()
        return {}


def _expected(arguments):
    if "count" in arguments:
        return "0123456789abcdef" * (arguments["count"] // 16)
    return arguments["text"]


def _spread(seconds):
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        f"p{part}": ordered[min(last, math.ceil(part / 100 * len(ordered)) - 1)]
        for part in (50, 99)
    }


async def _obey(load, order):
    try:
        with anyio.fail_after(order.pop("longest", LONGEST)):
            return await getattr(load, order.pop("do"))(**order)
    except Exception as error:  # noqa: BLE001 - whatever a gateway does is an outcome to tell
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return {"error": f"{type(error).__name__}: {error}"}


async def main():
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    load = Load()
    while line := await reader.readline():
        reply = encode(await _obey(load, decode(line)))
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(main())
