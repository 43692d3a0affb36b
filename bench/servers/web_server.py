"""A Streamable HTTP server with plain JSON answers; prints its port."""

import asyncio
import sys

import httptools
import uvloop
from answers import answer, note

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 0\r\n\r\n"


class Connection(asyncio.Protocol):
    def __init__(self, era, tools, tally):
        self._era, self._tools, self._tally = era, int(tools), tally
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._parser.feed_data(data)

    def on_body(self, data):
        self._body += data

    def on_message_complete(self):
        body, self._body = self._body, b""
        if self._parser.get_method() == b"POST":
            self._transport.writelines(self._post(body))
        else:
            self._transport.write(NOT_ALLOWED)

    def _post(self, body):
        if self._tally:
            note(self._tally, body)
        reply = answer(body, era=self._era, tools=self._tools)
        return (ACCEPTED,) if reply is None else (HEAD % len(reply), reply)


async def main(era="handshake", tools="2", tally=None):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(era, tools, tally), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
