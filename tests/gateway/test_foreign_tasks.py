"""Tasks of others, at both ends: FastMCP's, those of the SDK 1.x, and ext-tasks from npm.

FastMCP has the extension of the stateless era, the SDK 1.x the dialect of the handshake era, and
ext-tasks is a client of both.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from multitap import Settings
from multitap.config import StdioServer
from tests.clients.shelf import node
from tests.conformance.kit import NotFetched, fill_once, locked, npm_install, run
from tests.gateway.talking import gate
from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures

PROGRAMS = Path(__file__).with_name("foreign")
PACKAGES = {"fastmcp": "fastmcp-tasks==4.1.2", "sdk1": "mcp==1.30.0"}
EXT_TASKS = ("@modelcontextprotocol/ext-tasks@0.2.2", "@modelcontextprotocol/client@2.4.0")

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def home(pytestconfig):
    """Where each of them has an environment of its own."""
    home = pytestconfig.cache.mkdir("foreign")
    try:
        with locked(home / "lock"):
            for name, package in PACKAGES.items():
                fill_once(home / name, lambda target, package=package: _fetch(target, package))
            fill_once(home / "ext-tasks", lambda target: npm_install(target, *EXT_TASKS))
    except NotFetched as exc:
        pytest.skip(f"they cannot be fetched: {exc}")
    # beside its packages: that is where it looks for them
    shutil.copy(PROGRAMS / "ext_tasks_client.mjs", home / "ext-tasks")
    return home


def _fetch(target, package):
    uv = Path(sys.executable).with_name("uv")
    shutil.rmtree(target)  # it wants to make the folder itself
    run(uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, target)
    run(uv, "pip", "install", "--quiet", "--python", target / "bin" / "python", package)


def python(home, name, program):
    return [str(home / name / "bin" / "python"), "-W", "ignore", str(PROGRAMS / program)]


@pytest.fixture(scope="module")
async def url(home, tmp_path_factory):
    """A gateway before a server of each dialect."""
    commands = {name: python(home, name, f"{name}_server.py") for name in PACKAGES}
    servers = {
        name: StdioServer(command=command[0], args=tuple(command[1:]))
        for name, command in commands.items()
    }
    settings = Settings(state_dir=tmp_path_factory.mktemp("state"), servers=servers)
    async with gate(settings) as opened:
        yield opened.url


@pytest.mark.parametrize("server", PACKAGES)
@pytest.mark.parametrize("client", ["fastmcp", "sdk1", "ext-tasks old", "ext-tasks new"])
async def test_tasks_work_with_clients_and_servers_of_others(home, url, client, server):
    name, _, era = client.partition(" ")
    if era:
        command = [*node(home / name / "ext_tasks_client.mjs"), era]
    else:
        command = python(home, name, f"{name}_client.py")
    with anyio.fail_after(90):
        done = await anyio.run_process(
            [*command, url, server], check=False, stdin=subprocess.DEVNULL
        )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    report = json.loads(done.stdout)[server]

    assert (report["work"], report["ask"]) == ("worked on 7", "accept Ada")
    assert report.get("wait", "cancelled") == "cancelled"
