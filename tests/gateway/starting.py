"""Gateways in this process whose servers are still starting."""

from contextlib import asynccontextmanager

from multitap import open_hub
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.gateway import open_gateway
from multitap.http.server.server import bind
from tests.gateway.talking import Gate


@asynccontextmanager
async def starting(settings):
    """One over HTTP that waits for nothing."""
    async with open_gateway(lambda handlers: open_hub(settings, handlers=handlers)) as gateway:
        front = HttpFront(gateway, Access("127.0.0.1"))
        async with serve_http(front, bind("127.0.0.1", 0)) as url:
            yield Gate(gateway, front, url)
