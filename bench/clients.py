"""The clients that are compared: the hub, the SDK's, and one that does nothing but ask."""

import asyncio
import itertools
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import anyio
import httptools
import msgspec
from mcp import Client, StdioServerParameters

from multitap import Settings, StdioServer, open_hub

SERVERS = Path(__file__).parent / "servers"
LONGEST_LINE = 2**26


class Answer(msgspec.Struct):
    id: int
    result: msgspec.Raw


class Content(msgspec.Struct):
    text: str


class Result(msgspec.Struct):
    content: list[Content]


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Answer).decode
decode_result = msgspec.json.Decoder(Result).decode


def pipe_command(era="handshake", tools=2):
    """A server without site-packages: it is up in a few hundredths of a second."""
    return [sys.executable, "-S", "-E", str(SERVERS / "pipe_server.py"), era, str(tools)]


def pipe_config(era="handshake", tools=2, **options):
    command, *args = pipe_command(era, tools)
    return StdioServer(command=command, args=tuple(args), **options)


@asynccontextmanager
async def web_server(era="handshake", *more):
    """The address of a running HTTP server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SERVERS / "web_server.py"), era, *more),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        with anyio.fail_after(10):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.stdin.close()
        with anyio.CancelScope(shield=True):
            await process.wait()


def hub_client(config, tool="echo", arguments=None):
    @asynccontextmanager
    async def opened():
        with TemporaryDirectory() as state:
            settings = Settings(servers={"bench": config}, state_dir=Path(state))
            async with open_hub(settings) as hub:
                await hub.settled()

                async def call():
                    return (await hub.call(f"bench_{tool}", arguments or {})).text

                yield call

    return opened


def sdk_client(server, tool="echo", arguments=None):
    """`server` is an address or a command."""
    if not isinstance(server, str):
        server = StdioServerParameters(command=server[0], args=server[1:])

    @asynccontextmanager
    async def opened():
        async with Client(server) as client:

            async def call():
                return (await client.call_tool(tool, arguments or {})).content[0].text

            yield call

    return opened


def bare_pipe(command, tool="echo", arguments=None):
    """Pipes and msgspec: no limits, no timeouts, no care."""

    @asynccontextmanager
    async def opened():
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )
        waiting = {}
        ids = itertools.count()

        async def read():
            while line := await process.stdout.readline():
                answer = decode(line)
                waiting.pop(answer.id).set_result(answer.result)

        async def call():
            number = next(ids)
            waiting[number] = future = asyncio.get_running_loop().create_future()
            process.stdin.write(encode(_request(number, tool, arguments)) + b"\n")
            return decode_result(await future).content[0].text

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            yield call
            process.stdin.close()
            await process.wait()

    return opened


class _Connection(asyncio.Protocol):
    """To a server at a URL; one request at a time."""

    def connection_made(self, transport):
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._body = []

    def data_received(self, data):
        self._parser.feed_data(data)

    def on_body(self, data):
        self._body.append(data)

    def on_message_complete(self):
        body, self._body = b"".join(self._body), []
        self.waiting.set_result(body)


def bare_web(url, tool="echo", arguments=None):
    """Sockets, httptools and msgspec: no limits, no timeouts, no care."""

    @asynccontextmanager
    async def opened():
        ids = itertools.count()
        idle = []
        loop = asyncio.get_running_loop()
        at = urlsplit(url)
        head = (
            f"POST {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nContent-Length: "
        ).encode()

        async def call():
            body = encode(_request(next(ids), tool, arguments))
            if idle:
                connection = idle.pop()
            else:
                _, connection = await loop.create_connection(_Connection, at.hostname, at.port)
            connection.waiting = loop.create_future()
            connection.transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
            answer = decode(await connection.waiting)
            idle.append(connection)
            return decode_result(answer.result).content[0].text

        yield call
        for connection in idle:
            connection.transport.close()

    return opened


def _request(number, tool, arguments):
    params = {"name": tool, "arguments": arguments or {}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
