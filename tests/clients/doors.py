"""The ways into our gateway that a client can be given, and what it says there."""

import json
import re
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import SocketListener

from multitap.errors import ungrouped
from tests.clients.running import PATIENCE, started
from tests.waiting import until
from tests.zoo.modes import command as zoo

OLD, NEW = "2025-11-25", "2026-07-28"
ONCE = ["sh", "-c", 'mkdir "$0.$PPID" && exec "$@"']
"""Starts a program for whoever has not started it yet."""
KEPT = ["sh", "-c", 'tee "$0" | exec "$@"']
"""Starts a program, and keeps in a file what it is told."""


@dataclass
class Door:
    """One way in: a command for clients that start us, or the address where we are."""

    heard: Path
    """The file that has all that clients said here."""
    command: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def version(self):
        """The protocol version that was spoken last."""
        return re.findall(r'[pP]rotocolVersion"\s*:\s*"([^"]+)', self.text)[-1]

    @property
    def text(self):
        return self.heard.read_text()


@asynccontextmanager
async def open_door(kind, folder, servers=None):
    """A gateway before servers: by name, the command line of each.

    If none are given there are two, of which `doomed` cannot be started again.
    """
    serve, heard = [*multitap(folder, servers or _two(folder)), "serve"], folder / "heard"
    if kind == "stdio":
        yield Door(heard, command=[*KEPT, str(heard), *serve, "--alone"])
        return
    place = folder / "gateway"
    place.mkdir()
    async with started([*serve, "--http", "0"], place) as process:
        with anyio.fail_after(PATIENCE):
            port = await _port(process, place / "stderr")
        async with _relay(port, heard) as own:
            yield Door(heard, url=f"http://127.0.0.1:{own}/mcp")


def _two(folder):
    mark = folder / "started by"
    return {"keeper": zoo("good"), "doomed": [*ONCE, str(mark), *zoo("good_legacy")]}


def multitap(folder, servers):
    """Our command line for servers, with a state of its own, whoever runs it."""
    config = folder / "servers.json"
    told = {name: {"command": program, "args": args} for name, (program, *args) in servers.items()}
    config.write_text(json.dumps({"mcpServers": told}))
    state = f"XDG_STATE_HOME={folder / 'state'}"
    return ["env", state, sys.executable, "-m", "multitap", "-c", str(config)]


async def _port(process, log):
    def found():
        assert process.returncode is None, log.read_text()
        return re.search(r"http://[^/]+:(\d+)/mcp", log.read_text())

    return int((await until(found))[1])


@asynccontextmanager
async def _relay(port, heard):
    """A port of its own for all that goes to another one, and a file of it."""
    with heard.open("wb", buffering=0) as file:

        async def carry(source, target, scope, keep=lambda _: None):
            try:
                async for data in source:
                    keep(data)
                    await target.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # one of them is gone
            scope.cancel()

        async def serve(client):
            server = await anyio.connect_tcp("127.0.0.1", port)
            async with client, server, anyio.create_task_group() as tasks:
                tasks.start_soon(carry, client, server, tasks.cancel_scope, file.write)
                tasks.start_soon(carry, server, client, tasks.cancel_scope)

        listening = socket.create_server(("127.0.0.1", 0))
        own = listening.getsockname()[1]
        async with await SocketListener.from_socket(listening) as listener, _tasks() as tasks:
            tasks.start_soon(listener.serve, serve)
            yield own


@asynccontextmanager
async def _tasks():
    """Tasks that end with the block; whatever is wrong in it leaves as it is."""
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
