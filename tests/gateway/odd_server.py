"""The zoo's honest server with tools that go wrong, on pipes or on a socket that it is given.

`odd_server.py ERA [DESCRIPTOR]`: with a descriptor, Streamable HTTP on that listening socket.
"""

import asyncio
import hashlib
import json
import os
import socket
import sys

if not __package__:  # run as a script, isolated from everything that is not the standard library
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../.."))  # noqa: PTH100 - pathlib is slow

from tests.zoo.honest import SUBSCRIPTION, Honest
from tests.zoo.tools import DESTRUCTIVE, IDEMPOTENT, READ_ONLY, STRING, tool

REFUSED = -32050
"""The code of an error of its own."""


@tool("Tells the length of a text and its digest", READ_ONLY, text=STRING)
def weigh(_server, request, text):
    request.text(f"{len(text)} {hashlib.sha256(text.encode()).hexdigest()[:16]}")


@tool("Answers with an error of the protocol", READ_ONLY)
def refuse(_server, request):
    request.fail(REFUSED, "not today", {"why": ["asked", "for"]})


@tool("Answers with what is no result", READ_ONLY)
def garble(server, request):
    server.forget(request)
    server.say({"jsonrpc": "2.0", "id": request.id, "result": ["no", "object"]})


@tool("Answers with blocks of which one is of no use", READ_ONLY)
def crumble(_server, request):
    good = {"type": "text", "text": "the rest"}
    request.answer({"content": [None, {"type": "text"}, good]})


@tool("Works for half a minute", READ_ONLY)
def slumber(_server, request):
    request.later(30, request.text, "slept")


def _die_once(server, request, key):
    """End the process, but only once for each key."""
    if not server.recorded(f"died-{key}"):
        server.record(f"died-{key}", os.getpid())
        server.exit(7)
    request.text("alive")


@tool("Dies in the first call, may be repeated", IDEMPOTENT, key=STRING)
def die_hinted(server, request, key):
    _die_once(server, request, key)


@tool("Dies in the first call, must not be repeated", DESTRUCTIVE, key=STRING)
def die(server, request, key):
    _die_once(server, request, key)


@tool("Answers, and ends as soon as there is more to read, without reading it", DESTRUCTIVE)
def last_words(server, request):
    request.text("bye")
    server.leave_unread()


@tool("Answers, and ends", DESTRUCTIVE)
def leave(server, request):
    request.text("bye")
    server.after(0, server.exit, 0)


@tool("Tells what its client declared", READ_ONLY)
def declared(_server, request):
    request.value(request.capabilities)


@tool("Runs as a task only", READ_ONLY)
def long_job(_server, request):
    request.text("done")


long_job.definition["execution"] = {"taskSupport": "required"}


ODD = (
    declared,
    long_job,
    weigh,
    refuse,
    garble,
    crumble,
    slumber,
    die_hinted,
    die,
    last_words,
    leave,
)


class Odd(Honest):
    def __init__(self, options):
        super().__init__(options)
        self.tools |= {one.name: one for one in ODD}
        self.leaving = False

    def told(self, method, params):
        if method == "notifications/cancelled" and params["requestId"] in self.requests:
            self.record("given_up", self.requests[params["requestId"]].method)
        super().told(method, params)

    def leave_unread(self):
        self.leaving = True

    def read(self):
        if self.leaving:
            self.exit(0)
        super().read()


class Web(Odd):
    """The same for many connections: what is said goes to the request that it belongs to."""

    def __init__(self, options):
        super().__init__(options)
        self.current = None
        """The connection whose request is being worked on."""
        self.standing = None
        """The stream for what belongs to no request."""
        self.carriers = {}
        """By the id of the request that each has."""

    @property
    def session(self):
        return str(os.getpid())

    def after(self, seconds, action, *arguments):
        loop, current = asyncio.get_running_loop(), self.current
        loop.call_later(seconds, lambda: self.within(current, action, *arguments))

    def within(self, current, action, *arguments):
        before, self.current = self.current, current
        try:
            action(*arguments)
        finally:
            self.current = before

    def say(self, message):
        if "method" not in message:
            if carrier := self.carriers.pop(message["id"], None):
                carrier.finish(message)
            return
        subscription = message.get("params", {}).get("_meta", {}).get(SUBSCRIPTION)
        if carrier := self.carriers.get(subscription) or self.current or self.standing:
            carrier.tell(message)

    def leave_unread(self):
        self.after(0, self.exit, 0)  # what comes later stays with the socket, for the next process

    def end_session(self):
        for key in tuple(self.requests):
            self.told("notifications/cancelled", {"requestId": key})

    def gone(self, carrier):
        """A connection is closed; in the stateless era that cancels its request."""
        if self.standing is carrier:
            self.standing = None
        for key, one in tuple(self.carriers.items()):
            if one is carrier:
                del self.carriers[key]
                if self.era == "stateless":
                    self.told("notifications/cancelled", {"requestId": key})

    async def serve(self, descriptor):
        self.record("starts", f"{os.getpid()} 0 odd")
        listener = socket.socket(fileno=descriptor)
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), sock=listener
        )
        await server.serve_forever()


class Connection(asyncio.Protocol):
    """One request at a time, answered with JSON, or with events where there is more to tell."""

    def __init__(self, server):
        self._server = server
        self._buffer = bytearray()
        self._streams = False
        self._busy = False

    def connection_made(self, transport):
        self._transport = transport

    def connection_lost(self, exc):
        self._server.gone(self)

    def data_received(self, data):
        self._buffer += data
        while not self._busy and (request := self._request()) is not None:
            self._busy = True
            self._take(*request)

    def _request(self):
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", 0))
        if len(self._buffer) < end + 4 + length:
            return None
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        return first.split()[0], headers, body

    def _take(self, method, headers, body):
        server = self._server
        known = headers.get("mcp-session-id", server.session)
        if server.era == "handshake" and known != server.session:
            self._respond("404 Not Found")
            return
        if method == "GET" and server.era == "handshake":
            server.standing = self
            self._begin()
            return
        if method == "DELETE" and server.era == "handshake":
            server.end_session()
            self._respond("200 OK")
            return
        if method != "POST":
            self._respond("405 Method Not Allowed")
            return
        message = json.loads(body)
        if "id" in message and "method" in message:
            server.carriers[message["id"]] = self
            server.within(self, server.line, body)
        else:
            server.within(self, server.line, body)
            self._respond("202 Accepted")

    def tell(self, message):
        if not self._streams:
            self._begin()
        event = b"data: " + self._server.encode(message) + b"\n\n"
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def finish(self, message):
        if self._streams:
            self.tell(message)
            self._transport.write(b"0\r\n\r\n")
            self._next()
        else:
            self._respond("200 OK", self._server.encode(message))

    def _begin(self):
        self._streams = True
        self._head("200 OK", "text/event-stream", "Transfer-Encoding: chunked")

    def _respond(self, status, body=b""):
        self._head(status, "application/json", f"Content-Length: {len(body)}")
        self._transport.write(body)
        self._next()

    def _head(self, status, kind, more):
        session = self._server.session
        extra = f"Mcp-Session-Id: {session}\r\n" if self._server.era == "handshake" else ""
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}\r\n{extra}\r\n"
        self._transport.write(head.encode())

    def _next(self):
        self._busy = self._streams = False
        self.data_received(b"")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(Web({"era": sys.argv[1]}).serve(int(sys.argv[2])))
    else:
        Odd({"era": sys.argv[1]}).main()
