"""A server of the zoo on its pipes, without a hub."""

from contextlib import asynccontextmanager

import msgspec

from multitap.config import StdioServer
from multitap.wire.process import open_spawner
from multitap.wire.stdio import open_stdio
from tests.waiting import PATIENCE
from tests.wire.asking import ask as ask_on
from tests.zoo.modes import command

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@asynccontextmanager
async def zoo(mode, *options, log=None, env=None, handshake=True, **settings):
    program, *args = command(mode, *options)
    config = StdioServer(command=program, args=tuple(args), env=env or {}, **settings)
    async with open_spawner() as spawner, open_stdio("zoo", config, spawner, log=log) as wire:
        if handshake:
            await shake_hands(wire)
        yield wire


async def shake_hands(wire):
    await ask_on(wire, "initialize", INITIALIZE, timeout=PATIENCE)
    await wire.notify("notifications/initialized", None)
    wire.establish(INITIALIZE["protocolVersion"], stateless=False)


async def tool(wire, name, timeout=PATIENCE, **arguments):
    result = await ask_on(
        wire, "tools/call", {"name": name, "arguments": arguments}, timeout=timeout
    )
    return msgspec.json.decode(result)


async def one_call():
    async with zoo("good") as wire:
        assert await tool(wire, "echo", text="x")
