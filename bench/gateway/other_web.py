"""Our gateway behind somebody else's HTTP server: uvicorn or aiohttp.

Everything but HTTP is what `multitap serve --http` runs: the same loop, hub, sessions and checks.
What the adapters leave out is in favour of the others: limits on heads and bodies, on memory and
on requests at a time, fair turns, and calls that end when their client leaves.
"""

import asyncio
import gc
import sys
from pathlib import Path

import uvicorn
from aiohttp import web

from multitap.cli.gateways.serve_command import from_files
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.gateway.fronts.http_front import HttpFront
from multitap.gateway.gateway import open_gateway
from multitap.http.server.access import Access
from multitap.http.server.http_request import JSON, HttpRequest

HOST = "127.0.0.1"
KEEP_ALIVE = 60
EVENTS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class OtherVisit(HttpRequest):
    """A request whose answer is kept for whoever has to send it.

    Args:
        start: Begins a response that is a stream; returns what writes to it.
        method: What the client wants.
        url: From where.
        pairs: Its headers.
    """

    __slots__ = ("_answered", "_start", "_write", "reply")

    def __init__(self, start, method, url, pairs):
        super().__init__(self, method, url, pairs, dict(pairs), holder=HOST)
        self._answered = asyncio.Event()
        self._start = start
        self.reply = None
        """Status, headers and body; no body where it is a stream."""

    def respond(self, status, parts=(), *, kind=JSON, extra=None):
        headers = [(b"x-content-type-options", b"nosniff"), (b"content-type", kind)]
        self.reply = status, headers + (extra or []), b"".join(parts)
        self.responded = True

    def stream(self, extra=None):
        self.reply = 200, [*EVENTS, *(extra or [])], None
        self.responded = True

    async def write(self, data):
        if self._start is not None:
            start, self._start = self._start, None
            self._write = await start(*self.reply[:2])
        await self._write(data)

    def end(self):
        pass  # who sends it sees that it is over

    def on_finished(self, _http_request):
        self._answered.set()

    async def answer(self, front, read):
        """Have it answered; `read` waits for its body."""
        denied = front.admit(self)
        if denied is not None:
            self.say(denied.status, denied.words, extra=[*denied.extra])
            return
        body = await read()
        if self.keeps_body:
            self.body = body
        to_do = front.handle(self)
        if to_do is not None:
            await to_do
        elif self.on_leave is not None:
            await self._answered.wait()


def asgi(front):
    async def app(scope, receive, send):
        async def start(status, headers):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            return write

        async def write(data):
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async def read():
            message = await receive()
            body = message["body"]
            while message.get("more_body"):
                message = await receive()
                body += message["body"]
            return body

        url = scope["raw_path"]
        if scope["query_string"]:
            url += b"?" + scope["query_string"]
        http_request = OtherVisit(start, scope["method"].encode(), url, scope["headers"])
        await http_request.answer(front, read)
        status, headers, body = http_request.reply
        if body is None:
            await send({"type": "http.response.body", "body": b""})
            return
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def on_uvicorn(front, port):
    config = uvicorn.Config(
        asgi(front),
        host=HOST,
        port=port,
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    await uvicorn.Server(config).serve()


def handler(front):
    async def handle(request):
        response = None

        async def start(status, headers):
            nonlocal response
            response = web.StreamResponse(status=status, headers=_texts(headers))
            await response.prepare(request)
            return response.write

        pairs = [(name.lower(), value) for name, value in request.raw_headers]
        http_request = OtherVisit(start, request.method.encode(), request.path_qs.encode(), pairs)
        await http_request.answer(front, request.read)
        status, headers, body = http_request.reply
        if body is None:
            return response
        return web.Response(status=status, headers=_texts(headers), body=body)

    return handle


def _texts(headers):
    return {name.decode(): value.decode() for name, value in headers}


async def on_aiohttp(front, port):
    server = web.Server(handler(front), access_log=None, keepalive_timeout=KEEP_ALIVE)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await runner.cleanup()


SERVERS = {"uvicorn": on_uvicorn, "aiohttp": on_aiohttp}


async def serve(kind, port, config):
    served = from_files(CommonOptions(files=(Path(config),)))
    async with open_gateway(served.open, host=served.host) as gateway:
        await SERVERS[kind](HttpFront(gateway, Access(HOST)), port)


def main(kind, port, config):
    gc.collect()  # as `multitap serve` does
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    run_async(lambda: serve(kind, int(port), config), fast=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
