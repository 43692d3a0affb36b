"""Our gateway behind somebody else's HTTP server: uvicorn or aiohttp.

Everything but HTTP is what `multitap serve --http` runs: the same loop, hub, sessions and checks.
What the adapters leave out favours the others: limits on heads and bodies, on memory and on
requests at a time, fair turns, event streams, and calls that end when their client leaves.
"""

import asyncio
import gc
import sys
from pathlib import Path

import uvicorn
from aiohttp import web

from multitap.cli.options import CommonOptions
from multitap.cli.serve.gateway import from_files
from multitap.cli.signals import run_async
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront
from multitap.gateway.gateway import open_gateway
from multitap.http.server.peer import Peer
from multitap.http.server.request import HttpRequest, RequestHead
from multitap.tasks import Tasks

HOST = "127.0.0.1"
KEEP_ALIVE = 60


class KeptResponse:
    """A `ResponseWriter` that keeps a response for the server that has to send it."""

    def __init__(self, tasks):
        self._sent = b""
        self.tasks = tasks

    def write(self, head, parts=(), *, joined=True):  # noqa: ARG002 - it is always joined
        self._sent += b"".join((head, *parts))

    async def drain(self):
        pass

    def parse(self):
        """Its status, headers and body."""
        head, _, body = self._sent.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = [tuple(line.split(b": ", 1)) for line in lines]
        return int(first.split()[1]), headers, body


class OtherFront:
    """Answers the requests that another HTTP server has read.

    Args:
        front: Ours.
        tasks: Owns what goes on after an answer.
    """

    def __init__(self, front, tasks):
        self._front = front
        self._tasks = tasks
        self._peer = Peer()
        self._peer.address = HOST
        self._heads = {}

    async def answer(self, method, url, pairs, body):
        """Status, headers and body."""
        key = method, url, *pairs
        head = self._heads.get(key)
        if head is None:  # remembered, as our own server does
            head = self._heads[key] = RequestHead(method, url, [*pairs], peer=self._peer)
            if (denied := self._front.admit(head)) is not None:
                raise RuntimeError(denied.words)
        response = KeptResponse(self._tasks)
        http_request = HttpRequest(writer=response, head=head, body=body)
        to_do = (head.handler or self._front.handle)(http_request)
        if to_do is not None:
            await to_do
        return response.parse()


def asgi(front):
    async def app(scope, receive, send):
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        url = scope["raw_path"]
        if scope["query_string"]:
            url += b"?" + scope["query_string"]
        pairs = [(name, value) for name, value in scope["headers"]]
        status, headers, body = await front.answer(scope["method"].encode(), url, pairs, body)
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
        pairs = [(name.lower(), value) for name, value in request.raw_headers]
        url, body = request.path_qs.encode(), await request.read()
        status, headers, body = await front.answer(request.method.encode(), url, pairs, body)
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
    async with open_gateway(served.open, host=served.host) as gateway, Tasks() as tasks:
        front = OtherFront(HttpFront(gateway, Access(HOST)), tasks)
        await SERVERS[kind](front, port)


def main(kind, port, config):
    gc.collect()  # as `multitap serve` does
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    run_async(lambda: serve(kind, int(port), config), fast=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
