"""Servers that the suite judges: the SDK's own, alone and behind our gateway."""

import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from mcp import Client

from tests.gateway import task_server as tasks
from tests.waiting import PATIENCE

EVERYTHING = Path(__file__).with_name("everything.py")
TASKS = tasks.__file__
SKILLS = Path(TASKS).with_name("skill_server.py")


@asynccontextmanager
async def everything_server(kit, folder):
    """The address of the SDK's server."""
    port = free_port()
    command = [sys.executable, EVERYTHING, str(port)]
    async with _serving(command, port, folder, PYTHONPATH=str(kit.everything_server)) as url:
        yield url


@asynccontextmanager
async def gateway(folder, **servers):
    """The address of our gateway before servers, whose names it leaves as they are."""
    port, config = free_port(), folder / "multitap.toml"
    tables = "".join(f"[servers.{name}]\n{server}\n" for name, server in servers.items())
    config.write_text(f'naming = "bare"\nstate_dir = "{folder / "state"}"\n{tables}')
    command = [sys.executable, "-m", "multitap", "serve", "--http", f"127.0.0.1:{port}"]
    async with _serving([*command, "--config", config], port, folder) as url:
        yield url


@asynccontextmanager
async def task_server(era, folder):
    """The address of a server with tasks, in the dialect of an era."""
    port = free_port()
    async with _serving([sys.executable, TASKS, era, str(port)], port, folder) as url:
        yield url


def skill_server():
    """The configuration of a server with skills."""
    return f'command = "{sys.executable}"\nargs = ["{SKILLS}", "new", "skills"]'


def over_stdio(kit):
    """The configuration by which the SDK's server is a program of the gateway."""
    env = f'{{ PYTHONPATH = "{kit.everything_server}" }}'
    return f'command = "{sys.executable}"\nargs = ["{EVERYTHING}"]\nenv = {env}'


@asynccontextmanager
async def _serving(command, port, folder, **env):
    url = f"http://localhost:{port}/mcp"
    with (folder / f"{port}.log").open("wb") as log:
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
        )
    async with process:
        try:
            with anyio.fail_after(PATIENCE):
                await _shows_tools(process, url)
            yield url
        finally:
            process.terminate()
            with anyio.fail_after(PATIENCE, shield=True):
                await process.wait()


async def _shows_tools(process, url):
    while True:
        assert process.returncode is None, f"it ended with {process.returncode}"
        try:
            async with Client(url) as client:
                if (await client.list_tools()).tools:
                    return
        except* Exception:  # noqa: BLE001 - it is not there yet
            pass
        await anyio.sleep(0.1)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
