"""Real servers answer through the gateway what they answer directly, sense and nonsense alike."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.floods.gateway import free_port, until_listening
from tests.real.conftest import NPM, PYTHON, fetch, program
from tests.real.more_servers import real_servers
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(400)]

WAYS = ("stdio", "http")
ERAS = {"handshake": "legacy", "stateless": "auto"}
"""How the SDK's client begins in each; directly, `auto` falls back to what the server speaks."""
STARTS = ("cold", "warm")
"""A gateway that sees its servers for the first time, and one that has stored what they offer."""
MORE = (*real_servers("/nowhere"),)
TOKYO = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
ADA = {"name": "Ada", "entityType": "person", "observations": ["counts"]}


def golden(place):
    """Server, tool and arguments of calls whose answers do not depend on the time."""
    return [
        ("everything", "echo", {"message": "hi"}),
        ("everything", "echo", {"message": 5}),
        ("everything", "echo", {}),
        ("everything", "echo", {"message": "hi", "more": None}),
        ("everything", "get-sum", {"a": 2, "b": 40}),
        ("everything", "get-sum", {"a": "2", "b": 40}),
        ("everything", "get-sum", {"a": None, "b": 40}),
        ("everything", "get-tiny-image", {}),
        ("everything", "get-annotated-message", {"messageType": "error", "includeImage": True}),
        ("everything", "get-structured-content", {"location": "Chicago"}),
        ("everything", "get-resource-links", {"count": 3}),
        ("filesystem", "read_text_file", {"path": f"{place}/note.txt"}),
        ("filesystem", "read_text_file", {"path": f"{place}/note.txt", "head": "1"}),
        ("filesystem", "read_text_file", {"path": f"{place}/none.txt"}),
        ("filesystem", "read_text_file", {"path": "/etc/passwd"}),
        ("filesystem", "list_directory", {"path": str(place)}),
        ("filesystem", "directory_tree", {"path": str(place)}),
        ("memory", "create_entities", {"entities": [ADA]}),
        ("memory", "search_nodes", {"query": "Ada"}),
        ("memory", "read_graph", {}),
        ("memory", "open_nodes", {"names": "Ada"}),
        ("time", "convert_time", TOKYO),
        ("time", "convert_time", {**TOKYO, "target_timezone": "Nowhere/Land"}),
        ("time", "convert_time", {**TOKYO, "time": 12}),
        ("git", "git_status", {"repo_path": str(place)}),
        ("git", "git_log", {"repo_path": str(place), "max_count": "3"}),
        ("git", "git_status", {"repo_path": "/nowhere"}),
    ]


@pytest.fixture
def place(tmp_path):
    return furnish(tmp_path / "place")


def furnish(path):
    """A repository with one file, and nothing that was there before."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    (path / "note.txt").write_text("remember the milk\nand the bread\n")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", path], check=True)
    return path


def servers(place, memory):
    npx, uvx = program("npx"), program("uvx")
    return {
        "everything": {"command": npx, "args": ["-y", NPM[0]]},
        "filesystem": {"command": npx, "args": ["-y", NPM[1], str(place)]},
        "memory": {"command": npx, "args": ["-y", NPM[2]], "env": {"MEMORY_FILE_PATH": memory}},
        "time": {"command": uvx, "args": [PYTHON[0]]},
        "git": {"command": uvx, "args": [PYTHON[1]]},
    }


def on_pipes(command, args, env=None, *, era):
    whole = {**os.environ, **(env or {})}
    return Client(
        stdio_client(StdioServerParameters(command=command, args=args, env=whole)), mode=ERAS[era]
    )


async def answers(calls):
    """What each call comes to, as plain data; its words only, where the protocol refuses it."""
    told = []
    for client, tool, arguments in calls:
        try:
            with anyio.fail_after(PATIENCE):
                result = await client.call_tool(tool, arguments)
            told.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        except MCPError as exc:
            told.append({"error": exc.error.code})
    return told


async def asked_directly(entries, golden, *, era):
    async with AsyncExitStack() as stack:
        clients = {}
        for name, entry in entries.items():
            client = on_pipes(entry["command"], entry["args"], entry.get("env"), era=era)
            clients[name] = await stack.enter_async_context(client)
        return await answers([(clients[name], tool, given) for name, tool, given in golden])


async def asked_of(client, golden):
    """The same through a gateway that may still be starting its servers."""
    return await answers([(client, f"{name}_{tool}", given) for name, tool, given in golden])


@asynccontextmanager
async def gateway(way, entries, tmp_path, *, era):
    """A client of one gateway for all of them."""
    file = tmp_path / f"{way}.json"
    file.write_text(json.dumps({"mcpServers": entries}))
    args = ["-m", "multitap", "-c", str(file), "serve"]
    state = {"XDG_STATE_HOME": str(tmp_path / f"{way}-state")}
    if way == "stdio":
        async with on_pipes(sys.executable, [*args, "--alone"], state, era=era) as client:
            assert is_of(client, era)
            yield client
        return
    port = free_port()
    process = await anyio.open_process(
        [sys.executable, *args, "--http", f"127.0.0.1:{port}"],
        env={**os.environ, **state},
        stderr=subprocess.DEVNULL,
    )
    try:
        await until_listening(port)
        async with Client(f"http://127.0.0.1:{port}/mcp", mode=ERAS[era]) as client:
            assert is_of(client, era)
            yield client
    finally:
        process.terminate()
        await process.wait()


def is_of(client, era):
    return (client.protocol_version >= "2026") == (era == "stateless")


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize(
    ("way", "era"),
    [
        ("stdio", "handshake"),
        ("http", "stateless"),
        pytest.param("stdio", "stateless", marks=pytest.mark.wide),
        pytest.param("http", "handshake", marks=pytest.mark.wide),
    ],
)
async def test_real_servers_answer_the_same_through_the_gateway(way, era, place, tmp_path):
    calls = golden(place) * 2  # first while they may still start, then once more
    direct = await asked_directly(servers(place, str(tmp_path / "direct.jsonl")), calls, era=era)

    entries = servers(place, str(tmp_path / f"{way}.jsonl"))
    async with gateway(way, entries, tmp_path, era=era) as client:
        through = await asked_of(client, calls)

    for call, one, other in zip(calls, direct, through, strict=True):
        assert other == one, call


@pytest.mark.wide
@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("era", ERAS)
async def test_more_real_servers_answer_the_same_through_the_gateway(name, era, tmp_path):
    place = tmp_path / "place"
    real = real_servers(place)[name]
    if (reason := fetch([real.fetch])[0]) is not None:
        pytest.skip(f"{name} cannot be fetched: {reason}")
    entries, calls = {name: real.entry}, [(name, *call) for call in real.calls] * 2

    furnish(place)
    direct = await asked_directly(entries, calls, era=era)
    through = {}
    for way, start in product(WAYS, STARTS):
        furnish(place)
        async with gateway(way, entries, tmp_path, era=era) as client:
            through[way, start] = await asked_of(client, calls)

    for number, call in enumerate(calls):
        for case, answered in through.items():
            assert answered[number] == direct[number], (case, call)
