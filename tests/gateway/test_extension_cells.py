"""Tasks, pages and skills in every pair of eras, over every pair of transports.

And as a direct connection shows them.
"""

import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

import anyio
import pytest

from multitap.wire.jsonrpc import TASKS
from tests.gateway import plain_client
from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow]

HERE = Path(__file__).parent
ERAS, TRANSPORTS = ("old", "new"), ("http", "stdio")
PROGRAMS = {"tasks": "task_server.py", "pages": "app_server.py", "skills": "skill_server.py"}
UI = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
ABLE = {
    "old": {"elicitation": {"form": {}}, "extensions": UI},
    "new": {"elicitation": {"form": {}}, "extensions": {**UI, TASKS: {}}},
}
CELLS = [
    pytest.param(cell, id=f"{cell[0]} {cell[1]} client-{cell[2]} {cell[3]} server")
    for cell in product(ERAS, TRANSPORTS, ERAS, TRANSPORTS)
]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def listening(port):
    with anyio.fail_after(plain_client.PATIENCE):
        while True:
            try:
                async with await anyio.connect_tcp("127.0.0.1", port):
                    return
            except OSError:
                await anyio.sleep(0.02)


@pytest.fixture(scope="module")
async def entries():
    """The configuration of a server for each feature, era and transport."""
    entries, processes = {}, []
    try:
        for feature, era in product(PROGRAMS, ERAS):
            command = [str(HERE / PROGRAMS[feature]), era]
            command += [] if feature == "tasks" else [f"{feature}_{era}"]
            port = free_port()
            processes.append(subprocess.Popen([sys.executable, *command, str(port)]))
            entries[f"{feature}_{era}_http"] = f'url = "http://127.0.0.1:{port}/mcp"'
            words = ", ".join(f'"{word}"' for word in command)
            entries[f"{feature}_{era}_stdio"] = f'command = "{sys.executable}"\nargs = [{words}]'
            await listening(port)
        yield entries
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
async def clients(entries, tmp_path_factory):
    """A client of each era on each transport, of a gateway before all servers."""
    async with AsyncExitStack() as stack:

        def command(*options):
            home = tmp_path_factory.mktemp("home")
            config = home / "multitap.toml"
            tables = "".join(f"[servers.{name}]\n{entry}\n" for name, entry in entries.items())
            config.write_text(f'state_dir = "{home / "state"}"\n{tables}')
            run = [sys.executable, "-m", "multitap", "serve", "--config", str(config)]
            return [*run, *options]

        port = free_port()
        process = subprocess.Popen(
            command("--http", f"127.0.0.1:{port}"), stderr=subprocess.DEVNULL
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        await listening(port)
        clients = {}
        for era in ERAS:
            url = f"http://127.0.0.1:{port}/mcp"
            on_http = plain_client.on_http(era, url, ABLE[era])
            on_pipes = plain_client.on_pipes(era, command("--alone"), ABLE[era])
            clients[era, "http"] = await stack.enter_async_context(on_http)
            clients[era, "stdio"] = await stack.enter_async_context(on_pipes)
        for client in clients.values():
            await client.begin()
        yield clients


@pytest.fixture(params=CELLS)
def cell(request, clients):
    """A client, and the era and transport of its server."""
    era, transport, *server = request.param
    return clients[era, transport], "_".join(server)


async def follow(client, tool):
    """A task as it was made, its state at the end, and its result."""
    params = {"name": tool, "arguments": {"label": "x", "seconds": 0.1}}
    made = await client.result(
        "tools/call", **params, **({"task": {}} if client.era == "old" else {})
    )
    task = made["task"] if client.era == "old" else made
    with anyio.fail_after(plain_client.PATIENCE):
        while (state := await client.result("tasks/get", taskId=task["taskId"])) and (
            state["status"] != "completed"
        ):
            await anyio.sleep(0.05)
    if client.era == "new":
        return task, state, state["result"]
    return task, state, await client.result("tasks/result", taskId=task["taskId"])


async def test_a_task_ends_with_its_result(cell):
    client, server = cell
    task, _, result = await follow(client, f"tasks_{server}_slow_compute")

    assert not task["taskId"].startswith("task-")
    assert result["content"][0]["text"] == "computed x"


async def test_a_page_is_read_from_its_server_and_calls_its_tools(cell):
    client, server = cell
    listed = {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}
    uri = listed[f"pages_{server}_show"]["_meta"]["ui"]["resourceUri"]
    page = (await client.result("resources/read", uri=uri))["contents"][0]
    name = f"pages_{server.partition('_')[0]}"

    assert uri.startswith("ui://")
    assert (page["uri"], page["text"]) == (uri, f"page of {name}")
    assert await client.text("refresh") == name


async def test_a_skill_is_listed_and_read(cell):
    client, server = cell
    skills = (await client.result("skills/list"))["skills"]
    (skill,) = (one for one in skills if one["_meta"]["multitap/server"] == f"skills_{server}")
    read = await client.result("resources/read", uri=skill["uri"])

    assert skill["frontmatter"]["name"] == "refunds"
    assert read["contents"][0]["uri"] == skill["uri"]
    assert f"skills_{server.partition('_')[0]}" in read["contents"][0]["text"]


@pytest.fixture(params=ERAS)
async def pair(request, clients, entries):
    """Makes clients of the same era: of a server itself, and of the gateway before it."""
    era = request.param

    async def connect(stack, feature):
        url = entries[f"{feature}_{era}_http"].split('"')[1]
        direct = await stack.enter_async_context(plain_client.on_http(era, url, ABLE[era]))
        await direct.begin()
        return direct, clients[era, "http"], f"{feature}_{era}_http"

    async with AsyncExitStack() as stack:
        yield lambda feature: connect(stack, feature)


async def test_a_task_through_the_gateway_is_like_a_direct_one(pair):
    direct, through, server = await pair("tasks")
    expected = await follow(direct, "slow_compute")
    actual = await follow(through, f"{server}_slow_compute")
    own = {"_meta", "statusMessage"}  # ids of tasks, and words that come and go

    assert actual[2]["content"] == expected[2]["content"]
    for mine, theirs in zip(actual[:2], expected[:2], strict=True):
        assert mine.keys() - own == theirs.keys() - own


async def test_a_page_through_the_gateway_is_like_a_direct_one(pair):
    direct, through, server = await pair("pages")
    address = "ui://widget/main.html"
    listed = {tool["name"]: tool for tool in (await through.result("tools/list"))["tools"]}
    uri = listed[f"{server}_show"]["_meta"]["ui"]["resourceUri"]
    expected = (await direct.result("resources/read", uri=address))["contents"][0]
    actual = (await through.result("resources/read", uri=uri))["contents"][0]

    assert {**actual, "uri": address} == expected
    assert await through.text("refresh") == await direct.text("refresh")


async def test_skills_through_the_gateway_are_like_direct_ones(pair):
    direct, through, server = await pair("skills")
    uri = "skill://refunds/SKILL.md"
    address = f"skill://{server}/~/refunds/SKILL.md"
    expected = await direct.result("resources/read", uri=uri)
    actual = await through.result("resources/read", uri=address)

    assert actual["contents"] == [{**expected["contents"][0], "uri": address}]
    if direct.era == "new":  # the old era has no more than the resource
        entry = (await direct.result("skills/get", uri=uri))["skill"]
        skill = (await through.result("skills/get", uri=address))["skill"]

        assert skill["frontmatter"] == entry["frontmatter"]
        assert [(file["digest"], file["size"]) for file in skill["resources"]] == [
            (file["digest"], file["size"]) for file in entry["resources"]
        ]
        folders = [
            await client.result("resources/directory/read", uri=f"{start}refunds")
            for client, start in ((direct, "skill://"), (through, f"skill://{server}/~/"))
        ]
        names = [[one["name"] for one in folder["resources"]] for folder in folders]
        assert names[0] == names[1]
