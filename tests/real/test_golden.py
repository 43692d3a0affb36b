"""Real servers answer through the gateway what they answer directly, sense and nonsense alike."""

import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.floods.gateway import free_port, until_listening
from tests.real.conftest import fetch, program

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(240)]

PREFIX = "@modelcontextprotocol/server-"
NPM = (f"{PREFIX}everything", f"{PREFIX}filesystem", f"{PREFIX}memory")
PYTHON = ("mcp-server-time", "mcp-server-git")
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


@pytest.fixture(scope="module", autouse=True)
def fetched():
    npx, uvx = program("npx"), program("uvx")
    commands = [[npx, "-y", "-p", name, "-c", "true"] for name in NPM]
    commands += [[uvx, "--from", name, "python", "-c", ""] for name in PYTHON]
    for command, reason in zip(commands, fetch(commands), strict=True):
        if reason is not None:
            pytest.skip(f"{command[3]} can not be fetched: {reason}")


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "place"
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


def on_pipes(command, args, env=None):
    whole = {**os.environ, **(env or {})}
    return Client(
        stdio_client(StdioServerParameters(command=command, args=args, env=whole)), mode="legacy"
    )


async def answers(calls):
    """What each call comes to, as plain data; its words only, where the protocol refuses it."""
    told = []
    for client, tool, arguments in calls:
        try:
            with anyio.fail_after(60):
                result = await client.call_tool(tool, arguments)
            told.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        except MCPError as exc:
            told.append({"error": exc.error.code})
    return told


async def asked_directly(place, tmp_path):
    async with AsyncExitStack() as stack:
        clients = {}
        for name, entry in servers(place, str(tmp_path / "direct.jsonl")).items():
            client = on_pipes(entry["command"], entry["args"], entry.get("env"))
            clients[name] = await stack.enter_async_context(client)
        calls = [(clients[name], tool, given) for name, tool, given in golden(place)]
        return await answers(calls)


async def asked_of(client, place):
    """The same through a gateway that may still be starting its servers."""
    return await answers([(client, f"{name}_{tool}", given) for name, tool, given in golden(place)])


@asynccontextmanager
async def gateway(way, place, tmp_path):
    """A client of one gateway for all of them."""
    file = tmp_path / f"{way}.json"
    file.write_text(json.dumps({"mcpServers": servers(place, str(tmp_path / f"{way}.jsonl"))}))
    args = ["-m", "multitap", "-c", str(file), "serve"]
    state = {"XDG_STATE_HOME": str(tmp_path / f"{way}-state")}
    if way == "stdio":
        async with on_pipes(sys.executable, args, state) as client:
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
        async with Client(f"http://127.0.0.1:{port}/mcp", mode="legacy") as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_real_servers_answer_the_same_through_the_gateway(way, place, tmp_path):
    direct = await asked_directly(place, tmp_path)

    async with gateway(way, place, tmp_path) as client:
        through = await asked_of(client, place)

    for call, one, other in zip(golden(place), direct, through, strict=True):
        assert other == one, call
