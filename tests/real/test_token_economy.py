"""Six real servers and a profile of 4,000 tokens: what is saved, and are the facts there?"""

import json
import subprocess

import pytest
from mcp import Client

from multitap import Settings
from multitap.config import Profile, StdioServer
from multitap.telemetry.metrics import BYTES_PER_TOKEN
from tests.gateway.talking import gate
from tests.real.conftest import NPM, PYTHON, program
from tests.real.test_golden import furnish

pytestmark = [pytest.mark.wide, pytest.mark.network, pytest.mark.timeout(400)]

PEOPLE = [f"Person {number}" for number in range(60)]
LEAST = 0.70


def servers(place):
    npx, uvx = program("npx"), program("uvx")
    thinking = "@modelcontextprotocol/server-sequential-thinking"
    entries = {name.rpartition("-")[2]: (npx, "-y", name) for name in NPM}
    entries |= {name.rpartition("-")[2]: (uvx, name) for name in PYTHON}
    entries |= {"thinking": (npx, "-y", thinking)}
    entries["filesystem"] = (*entries["filesystem"], str(place))
    env = {"MEMORY_FILE_PATH": str(place / "memory.json")}
    return {
        name: StdioServer(command=command, args=args, env=env if name == "memory" else {})
        for name, (command, *args) in ((n, (c, *map(str, a))) for n, (c, *a) in entries.items())
    }


def tokens(value):
    return round(len(json.dumps(value, ensure_ascii=False).encode()) / BYTES_PER_TOKEN)


def text(result):
    return "".join(getattr(block, "text", "") for block in result.content)


def tasks(place):
    """What a model does for each of three tasks: in each mode, and the fact that it looks for."""
    note, log = {"path": f"{place}/note.txt"}, {"repo_path": str(place), "max_count": 3}
    chosen = "entities[?name == 'Person 41'].name"
    return {
        "a note": (
            "the milk",
            [("filesystem_read_text_file", note)],
            [
                ("search_tools", {"query": "read a text file", "limit": 3}),
                ("call_tool", {"name": "filesystem_read_text_file", "arguments": note}),
            ],
            [
                ("search_tools", {"query": "read a text file", "limit": 3}),
                ("run_code", {"code": f"filesystem_read_text_file(path={note['path']!r})"}),
            ],
        ),
        "people": (
            "Person 41",
            [("memory_read_graph", {})],
            [
                ("search_tools", {"query": "knowledge graph", "limit": 4}),
                ("call_tool", {"name": "memory_read_graph", "select": chosen}),
            ],
            [
                ("search_tools", {"query": "knowledge graph", "limit": 4}),
                (
                    "run_code",
                    {
                        "code": "graph = memory_read_graph()\n"
                        "[e['name'] for e in graph['entities'] if e['name'].endswith(' 41')]"
                    },
                ),
            ],
        ),
        "history": (
            "first",
            [("git_git_log", log)],
            [
                ("search_tools", {"query": "git commits", "limit": 3}),
                ("call_tool", {"name": "git_git_log", "arguments": log}),
            ],
            [
                ("search_tools", {"query": "git commits", "limit": 3}),
                ("run_code", {"code": f"git_git_log({log!r})"}),
            ],
        ),
    }


def answers(place):
    """40 calls of real servers, what to select of each, and the fact that must still be there."""
    for number in range(0, 40, 4):
        name = PEOPLE[number]
        yield "memory_read_graph", {}, f"entities[?name == '{name}'].name", name
        yield "memory_search_nodes", {"query": "Person"}, "entities[].name", name
    for number in range(8):
        name = PEOPLE[number]
        yield "memory_open_nodes", {"names": [name]}, "entities[].{name: name}", name
    for city in ("Chicago", "New York", "Los Angeles"):
        yield "everything_get-structured-content", {"location": city}, "temperature", "3"
    for zone, hour in (("Asia/Tokyo", "21:00"), ("Europe/Paris", "1"), ("Asia/Kolkata", "17:30")):
        call = {"source_timezone": "UTC", "time": "12:00", "target_timezone": zone}
        yield "time_convert_time", call, "target.datetime", hour
    yield "filesystem_directory_tree", {"path": str(place)}, None, "note.txt"
    yield "filesystem_list_directory", {"path": str(place)}, None, "note.txt"
    yield "filesystem_read_text_file", {"path": f"{place}/note.txt"}, None, "the milk"
    yield "filesystem_get_file_info", {"path": f"{place}/note.txt"}, None, "size"
    yield "git_git_log", {"repo_path": str(place), "max_count": 3}, None, "first"
    yield "git_git_status", {"repo_path": str(place)}, None, "main"


@pytest.mark.usefixtures("fetched")
async def test_tasks_take_far_fewer_tokens_and_find_their_facts(tmp_path):
    place = furnish(tmp_path / "place")
    author = ["-c", "user.email=ada@example.com", "-c", "user.name=Ada"]
    for action in (["add", "-A"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", "-C", place, *author, *action], check=True)
    small = {"token_budget": 4000}
    settings = Settings(
        servers=servers(place),
        profiles={
            "all": Profile(),
            "search": Profile(tools="search", **small),
            "code": Profile(tools="code", **small),
        },
        state_dir=tmp_path / "state",
    )
    spent, found = {}, {}
    async with gate(settings) as opened:
        assert all(link.session is not None for link in opened.hub.links.values())
        entities = [
            {"name": name, "entityType": "person", "observations": ["x"]} for name in PEOPLE
        ]
        await opened.hub.call("memory_create_entities", {"entities": entities})
        for place_of_mode, mode in enumerate(("all", "search", "code"), start=1):
            async with Client(f"{opened.url}?profile={mode}", mode="auto", cache=None) as client:
                listed = [
                    (tool.name, tool.description, tool.input_schema)
                    for tool in (await client.list_tools()).tools
                ]
                for name, task in tasks(place).items():
                    spent[name, mode] = tokens(listed)
                    for tool, arguments in task[place_of_mode]:
                        said = text(await client.call_tool(tool, arguments))
                        spent[name, mode] += tokens(arguments) + tokens(said)
                    found[name, mode] = task[0] in said
        before = after = kept = count = 0
        async with (
            Client(f"{opened.url}?profile=all", mode="auto", cache=None) as whole,
            Client(f"{opened.url}?profile=search", mode="auto", cache=None) as shaped,
        ):
            for tool, arguments, select, fact in answers(place):
                call = {"name": tool, "arguments": arguments} | (
                    {"select": select} if select else {}
                )
                first = text(await whole.call_tool(tool, arguments))
                second = text(await shaped.call_tool("call_tool", call))
                assert fact in first, (tool, first)
                before, after = before + tokens(first), after + tokens(second)
                count, kept = count + 1, kept + (fact in second)
        calls = [record for record in opened.hub.calls.latest() if record.session]

    assert all(found.values()), found
    for name in tasks(place):
        for mode in ("search", "code"):
            assert spent[name, mode] <= (1 - LEAST) * spent[name, "all"], spent
    assert (count, kept) == (40, 40)
    assert after < before
    assert {record.tool for record in calls} == {"read_text_file", "read_graph", "git_log"}
    print(f"{spent}; {count} answers: {before} tokens before, {after} after, {kept} facts kept")
