"""Gateways in this process, and clients that answer what they are asked and keep what they hear."""

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import product

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from multitap import open_hub
from multitap.config import HttpServer, StdioServer
from multitap.gateway.fronts.access import Access, AnonymousAccess
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.fronts.sessions import SessionLimits
from multitap.gateway.gateway import Gateway, open_gateway
from multitap.gateway.parked_calls import TTL
from multitap.http.server.server import bind
from tests.gateway import cells
from tests.waiting import PATIENCE
from tests.wire.sdk_web import served
from tests.zoo import modes

MODES = {"old": "legacy", "new": "2026-07-28"}
CELLS = [*product(("http", "stdio"), ("old", "new"), ("old", "new"))]
"""Transport, era of the client, era of the server."""
ROOT = types.Root(uri="file:///home/me")
ALL_OF_IT = types.SamplingCapability(
    tools=types.SamplingToolsCapability(), context=types.SamplingContextCapability()
)


def rest(cell):
    """The marks of cells for `make wide`: pipes within an era, which HTTP and pipes between eras
    show each day.
    """
    transport, client, server = cell
    return (pytest.mark.wide,) if transport == "stdio" and client == server else ()


@dataclass(frozen=True)
class Gate:
    """A gateway over HTTP."""

    gateway: Gateway
    front: HttpFront
    url: str

    @property
    def hub(self):
        return self.gateway.hub


@asynccontextmanager
async def gate(
    settings,
    *,
    tokens=(),
    patience=TTL,
    limits=SessionLimits(),
    replica=None,
    sources=None,
    resources=None,
):
    """A running gateway whose servers have settled; `resources` makes its resource server."""

    def opens(handlers):
        return open_hub(settings, handlers=handlers)

    async with open_gateway(opens, patience=patience, replica=replica) as gateway:
        with anyio.fail_after(PATIENCE):
            await gateway.hub.settled()
        keys = None if sources is None else sources.keys
        unnamed = None if resources is None else AnonymousAccess.REFUSED
        access = Access("127.0.0.1", tokens, keys=keys, unnamed=unnamed)
        resource_server = None if resources is None else resources(gateway)
        front = HttpFront(
            gateway, access, sources=sources, limits=limits, resource_server=resource_server
        )
        async with serve_http(front, bind("127.0.0.1", 0)) as url:
            yield Gate(gateway, front, url)


@contextmanager
def served_cells():
    """A server of each era over HTTP, by its era: a thread costs less than a program."""
    with (
        served(cells.build("old").streamable_http_app()) as old,
        served(cells.build("new").streamable_http_app()) as new,
    ):
        yield {"old": HttpServer(url=f"{old}/mcp"), "new": HttpServer(url=f"{new}/mcp")}


def zoo(mode="good", *options, **fields):
    """The configuration of a server of the zoo."""
    command, *args = modes.command(mode, *options)
    return StdioServer(command=command, args=tuple(args), **fields)


@asynccontextmanager
async def _authorized(url, token):
    async with (
        httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"}, timeout=httpx2.Timeout(60)
        ) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


class Talker:
    """A client of one era.

    Args:
        era: Which one.
        target: An address, or a transport.
        able: Whether it can be asked anything at all.
        token: Its bearer token.
        name: What it answers when it is asked for one.
        model: What its model is called.
        root: What it answers when it is asked for its roots.
    """

    def __init__(self, era, target, *, able=True, token=None, name="Ada", model="m", root=ROOT):
        self.era = era
        self.name = name
        self.model = model
        self.root = root
        self.asked = []
        self.logs = []
        self.told = []
        self.sent_away = None
        self._stirred = anyio.Event()
        if token is not None:
            target = _authorized(target, token)
        abilities = {
            "elicitation_callback": self._elicit,
            "sampling_callback": self._sample,
            "sampling_capabilities": ALL_OF_IT,
            "list_roots_callback": self._roots,
        }
        self.client = Client(
            target,
            mode=MODES[era],
            logging_callback=self._log,
            message_handler=self._message,
            cache=None,
            **(abilities if able else {}),
        )

    async def __aenter__(self):
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *exc):
        await self.client.__aexit__(*exc)

    async def heard(self, method):
        """The first notification of its kind."""
        with anyio.fail_after(PATIENCE):
            while not (found := self.hearsay(method)):
                self._stirred = anyio.Event()
                await self._stirred.wait()
        return found[0]

    def hearsay(self, method):
        return [one for one in self.told if getattr(one, "method", None) == method]

    def forget(self):
        self.sent_away = None
        for kept in (self.asked, self.logs, self.told):
            kept.clear()

    async def _elicit(self, _, params):
        self.asked.append(params)
        if params.mode == "url":
            if self.sent_away is not None:
                await self.sent_away()
            return types.ElicitResult(action="accept")
        return types.ElicitResult(
            action="accept", content={"name": f"{self.name} {len(self.asked)}"}
        )

    async def _sample(self, _, params):
        self.asked.append(params)
        if params.tools:
            use = types.ToolUseContent(id="1", name=params.tools[0].name, input={"a": 1, "b": 2})
            return types.CreateMessageResultWithTools(
                role="assistant", content=[use], model="m", stop_reason="toolUse"
            )
        said = types.TextContent(text="said")
        return types.CreateMessageResult(role="assistant", content=said, model=self.model)

    async def _roots(self, _):
        self.asked.append("roots")
        return types.ListRootsResult(roots=[self.root])

    async def _log(self, params):
        self.logs.append((params.level, params.logger, params.data))

    async def _message(self, message):
        self.told.append(message)
        self._stirred.set()
