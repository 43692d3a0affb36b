"""Clients and servers of the TypeScript SDK, of both eras, and the reference server, through us."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp.server.subscriptions import ResourceUpdated

from multitap import Settings
from multitap.config import StdioServer
from tests.conformance.kit import NODE, PATIENCE, locked
from tests.gateway import task_server
from tests.gateway.talking import Talker, gate, served_cells
from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures

PROGRAMS = Path(__file__).with_name("typescript")
PACKAGES = (
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/server@2.4.0",
    "@modelcontextprotocol/server-everything@2026.8.31",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(PATIENCE + 120),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]


@pytest.fixture(scope="module")
def packages(pytestconfig):
    """The folder with the packages, and with our programs beside them."""
    home = pytestconfig.cache.mkdir("typescript")
    with locked(home / "lock"):
        if not (home / "node_modules").exists():
            _install(home)
        for program in PROGRAMS.iterdir():
            shutil.copy(program, home)
    return home


def _install(home):
    npm = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    unfinished = home / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    done = subprocess.run(
        [_node(), npm, "install", "--prefix", unfinished, *quiet, *PACKAGES],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"the packages cannot be fetched: {done.stderr.strip()[-300:]}")
    (unfinished / "node_modules").rename(home / "node_modules")


def _node():
    return str(NODE / "bin" / "node")


@pytest.fixture(scope="module")
async def url(packages, tmp_path_factory):
    """A gateway before servers of both SDKs and both eras, and the reference server."""
    everything = packages / "node_modules" / "@modelcontextprotocol" / "server-everything"
    with served_cells() as servers:
        for era in ("old", "new"):
            servers[f"ts{era}"] = StdioServer(
                command=_node(), args=(str(packages / "server.mjs"), era)
            )
        servers["everything"] = StdioServer(
            command=_node(), args=(str(everything / "dist" / "index.js"), "stdio")
        )
        settings = Settings(state_dir=tmp_path_factory.mktemp("state"), servers=servers)
        async with gate(settings) as opened:
            yield opened.url


@pytest.fixture(scope="module", params=["old", "new"])
async def report(request, packages, url):
    """What a client of the TypeScript SDK says of all servers."""
    command = [_node(), str(packages / "client.mjs"), request.param, url]
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [*command, "old", "new", "tsold", "tsnew"], check=False, stdin=subprocess.DEVNULL
        )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("server", ["old", "new"])
async def test_a_typescript_client_uses_a_python_server(report, server):
    assert report["reports"][server] == {
        "sum": {"sum": 5},
        "count": "counted",
        "progress": [1, 2, 3],
        "ask": "accept {'name': 'Ada'}",
        "sample": "m: said",
        "roots": "['file:///home/me']",
        "read": f"it is {server}://watched",
        "updated": f"{server}://watched",
    }


@pytest.mark.parametrize("server", ["tsold", "tsnew"])
async def test_a_typescript_client_uses_a_typescript_server(report, server):
    assert report["reports"][server] == {
        "sum": {"sum": 5},
        "count": "counted",
        "progress": [1, 2, 3],
        "ask": "accept Ada",
        "sample": "said",
        "roots": "file:///home/me",
    }


@pytest.mark.parametrize("server", ["tsold", "tsnew"])
@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_python_client_uses_a_typescript_server(url, era, server):
    async with Talker(era, url) as talker:

        async def text(tool):
            result = await talker.client.call_tool(f"{server}_{tool}", {})
            return result.content[0].text

        assert await text("ask") == "accept Ada 1"
        assert await text("sample") == "said"
        assert await text("roots") == "file:///home/me"


@pytest.mark.parametrize("era", ["old", "new"])
async def test_the_reference_server_does_all_it_can(url, era):
    told = []

    async def progressed(progress, *_):
        told.append(progress)

    async with Talker(era, url) as talker:

        async def call(tool, arguments=None, **more):
            with anyio.fail_after(30):
                name = f"everything_{tool}"
                return await talker.client.call_tool(name, arguments or {}, **more)

        image = await call("get-tiny-image")
        sampled = await call("trigger-sampling-request", {"prompt": "say", "maxTokens": 5})
        elicited = await call("trigger-elicitation-request")
        steps = {"duration": 0.3, "steps": 3}
        await call("trigger-long-running-operation", steps, progress_callback=progressed)

        assert any(isinstance(one, types.ImageContent) for one in image.content)
        assert "said" in sampled.content[0].text
        assert "Ada" in str(elicited.content)
        assert told == [1, 2, 3]


@pytest.mark.parametrize("era", ["old", "new"])
async def test_the_reference_server_tells_of_updates(url, era):
    uri = "demo://resource/dynamic/text/1"
    async with Talker(era, url) as talker:
        toggle = "everything_toggle-subscriber-updates"
        if era == "new":
            async with talker.client.listen(resource_subscriptions=[uri]) as stream:
                await talker.client.call_tool(toggle, {})
                with anyio.fail_after(30):
                    updated = (await anext(aiter(stream))).uri
        else:
            await talker.client.subscribe_resource(uri)
            await talker.client.call_tool(toggle, {})
            updated = (await talker.heard("notifications/resources/updated")).params.uri
        await talker.client.call_tool(toggle, {})

    assert ResourceUpdated(uri=str(updated)) == ResourceUpdated(uri=uri)


async def test_a_tool_may_take_longer_than_its_client_waits_for_news(packages, tmp_path):
    """A tool of ten minutes, on another scale: the client gives up after 20 seconds of silence."""
    servers = {
        era: StdioServer(command=sys.executable, args=(task_server.__file__, era))
        for era in ("old", "new")
    }
    async with gate(Settings(state_dir=tmp_path, servers=servers)) as opened:
        command = [_node(), str(packages / "patient.mjs"), opened.url, "45"]
        with anyio.fail_after(90):
            done = await anyio.run_process(
                [*command, "old_long_job", "new_long_job"], check=False, stdin=subprocess.DEVNULL
            )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    answers = json.loads(done.stdout)

    assert [answer["text"] for answer in answers] == ["at last", "at last"]
    assert all(answer["steps"] >= 3 for answer in answers)
