"""A gateway that does nothing but forward: the least that Python can do.

HTTP in; one server over pipes or HTTP out; nothing is looked at but the id of each message.
"""

import asyncio
import sys
from collections import deque
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

CONNECTIONS = 64
"""To a server that is reached by HTTP; opened beforehand, more calls than that wait."""
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"


class Request(msgspec.Struct):
    method: msgspec.Raw
    id: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()


class Answer(msgspec.Struct):
    id: int
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


decode_request = msgspec.json.Decoder(Request).decode
decode_answer = msgspec.json.Decoder(Answer).decode


class Front(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, forward):
        self._forward = forward
        self._parser = httptools.HttpRequestParser(self)
        self._body = []
        self.mcp_headers = []

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._parser.feed_data(data)

    def on_header(self, name, value):
        if name[:4].lower() == b"mcp-":
            self.mcp_headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, data):
        self._body.append(data)

    def on_message_complete(self):
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._forward(decode_request(body), self)
        self.mcp_headers = []

    def answer(self, number, answer):
        body = memoryview(answer.result)
        kind = b"result"
        if not body:
            body, kind = memoryview(answer.error), b"error"
        head = b'{"jsonrpc":"2.0","id":%b,"%b":' % (number, kind)
        self._transport.writelines(
            (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(head) + len(body) + 1, head),
                body,
                b"}",
            )
        )

    def accept(self):
        self._transport.write(ACCEPTED)


class Calls:
    """Requests under way, by the id that the server sees."""

    def __init__(self):
        self._waiting = {}
        self._last = 0

    def sent(self, request, front):
        """The encoded request under an id of ours."""
        method, number, params = map(memoryview, (request.method, request.id, request.params))
        if params:
            params = b',"params":%b' % params
        if not number:
            front.accept()
            return b'{"jsonrpc":"2.0","method":%b%b}' % (method, params)
        self._last += 1
        self._waiting[self._last] = front, bytes(number)
        return b'{"jsonrpc":"2.0","id":%d,"method":%b%b}' % (self._last, method, params)

    def answered(self, message):
        answer = decode_answer(message)
        front, number = self._waiting.pop(answer.id)
        front.answer(number, answer)


class Pipes(asyncio.SubprocessProtocol):
    """One server over its pipes."""

    def __init__(self):
        self._calls = Calls()
        self._rest = []

    def connection_made(self, transport):
        self._stdin = transport.get_pipe_transport(0)

    def forward(self, request, front):
        self._stdin.write(self._calls.sent(request, front) + b"\n")

    def pipe_data_received(self, _fd, data):
        if b"\n" not in data:
            self._rest.append(data)
            return
        *lines, rest = data.split(b"\n")
        if self._rest:
            lines[0] = b"".join((*self._rest, lines[0]))
        self._rest = [rest] if rest else []
        for line in lines:
            self._calls.answered(line)


class Connection(asyncio.Protocol):
    """One connection to a server; at most one call is under way on it."""

    def __init__(self, web):
        self._web = web
        self._body = []
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self._parser.feed_data(data)

    def on_body(self, data):
        self._body.append(data)

    def on_message_complete(self):
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._web.free(self, body)


class Web:
    """One server by HTTP."""

    def __init__(self, host, path):
        self._calls = Calls()
        self._idle = []
        self._queued = deque()
        self._head = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\nContent-Length: "
            % (path.encode(), host.encode())
        )

    async def connect(self, host, port):
        loop = asyncio.get_running_loop()
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_connection(lambda: Connection(self), host, port)
            self._idle.append(connection)

    def forward(self, request, front):
        body = self._calls.sent(request, front)
        message = b"%b%d\r\n%b\r\n%b" % (
            self._head,
            len(body),
            b"".join(front.mcp_headers),
            body,
        )
        if self._idle:
            self._idle.pop().transport.write(message)
        else:
            self._queued.append(message)

    def free(self, connection, body):
        if self._queued:
            connection.transport.write(self._queued.popleft())
        else:
            self._idle.append(connection)
        if body:
            self._calls.answered(body)


async def main(port, *server):
    loop = asyncio.get_running_loop()
    if server[0].startswith("http:"):
        url = urlsplit(server[0])
        upstream = Web(url.netloc, url.path)
        await upstream.connect(url.hostname, url.port)
    else:
        _, upstream = await loop.subprocess_exec(Pipes, *server, stderr=None)
    listening = await loop.create_server(lambda: Front(upstream.forward), "127.0.0.1", int(port))
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
