import json
import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from multitap.config import Layer, Scope, Search, Source, Toolbox, expand_server, load, merge, scan
from multitap.config.discover import scripts
from tests.waiting import PATIENCE

from .reading import given, said

EXAMPLES = Path(__file__).parents[2] / "examples" / "mcpservers"
CLIENT = {"name": "test", "version": "0"}
INLINE = "# /// script\n# dependencies = ['mcp']\n# ///\n"


def toolbox(*programs):
    return Toolbox(which=lambda name: f"/bin/{name}" if name in programs else None, python="/py")


def put(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def scanned(folder, *programs):
    return merge([Layer(reading) for reading in scan(folder, toolbox=toolbox(*programs))])


def argv(folder, *programs):
    [server] = scanned(folder, *programs).settings.servers.values()
    return (server.command, *server.args)


def test_c10_each_folder_with_an_entry_script_is_a_server(tmp_path):
    for name, script in {
        "a": "server.mjs",
        "b": "server.js",
        "c": "server.ts",
        "d": "server.py",
    }.items():
        put(tmp_path / name, **{script: ""})
    put(tmp_path / "no-script", index__js="")
    put(tmp_path / "node_modules", server__js="")
    put(tmp_path / ".git", server__py="")
    put(tmp_path / "__pycache__", server__py="")
    (tmp_path / "server.py").write_text("")

    result = scanned(tmp_path, "node", "bun")

    assert [*result.settings.servers] == ["a", "b", "c", "d"]
    assert all(server.cwd == tmp_path / name for name, server in result.settings.servers.items())
    assert not result.problems


@pytest.mark.parametrize(
    ("script", "programs", "expected"),
    [
        ("server.mjs", ["node", "bun"], ["bun", "run", "{}"]),
        ("server.mjs", ["node"], ["node", "{}"]),
        ("server.js", ["bun"], ["bun", "run", "{}"]),
        ("server.ts", ["node", "bun"], ["bun", "run", "{}"]),
        ("server.ts", ["node"], ["node", "--experimental-strip-types", "{}"]),
        ("server.py", ["uv"], ["/py", "{}"]),
    ],
)
def test_the_runner_is_what_is_installed(tmp_path, script, programs, expected):
    put(tmp_path / "s", **{script: ""})

    assert argv(tmp_path, *programs) == tuple(
        part.format(tmp_path / "s" / script) for part in expected
    )


def test_the_first_script_in_order_starts_the_server(tmp_path):
    put(tmp_path / "s", server__py="", server__mjs="")

    assert [path.name for path in scripts(tmp_path)] == ["server.mjs"]


def test_a_script_that_lists_what_it_needs_is_run_by_uv(tmp_path):
    put(tmp_path / "inline" / "s", server__py=f"#!/usr/bin/env python\n{INLINE}")
    put(tmp_path / "project" / "s", server__py="", pyproject__toml="")

    inline, project = (tmp_path / kind / "s" for kind in ("inline", "project"))
    assert argv(inline.parent, "uv") == ("uv", "run", "--script", str(inline / "server.py"))
    assert argv(project.parent, "uv") == (
        "uv",
        "run",
        "--project",
        str(project),
        str(project / "server.py"),
    )


def test_without_uv_such_a_script_is_tried_with_a_warning(tmp_path):
    put(tmp_path / "s", server__py=INLINE)

    result = scanned(tmp_path)

    assert result.settings.servers["s"].command == "/py"
    [problem] = result.problems
    assert (problem.severity, problem.message, problem.server) == (
        "warning",
        "uv is not installed",
        "s",
    )


def test_a_server_nothing_can_run_is_an_error_of_its_own(tmp_path):
    put(tmp_path / "a", server__mjs="")
    put(tmp_path / "b", server__py="")

    result = scanned(tmp_path)

    assert result.settings.servers.keys() == {"b"}
    [problem] = result.problems
    assert (problem.severity, problem.message, problem.server) == (
        "error",
        "node or bun is not installed",
        "a",
    )
    assert str(problem.place) == str(tmp_path / "a" / "server.mjs")


def test_c11_the_folder_s_own_configuration_amends_the_default(tmp_path):
    put(
        tmp_path / "s",
        server__py="",
        config__jsonc='{ // slow\n "timeout": 60000, "environment": {"W": "true"}, "tiemout": 1}',
    )

    result = scanned(tmp_path)

    assert given(result.settings.servers["s"]) == {
        "command": "/py",
        "args": (str(tmp_path / "s" / "server.py"),),
        "cwd": tmp_path / "s",
        "timeout": 60,
        "env": {"W": "true"},
    }
    assert said(result.problems) == [(2, 50, "tiemout", "unknown key; kept, but without effect")]


def test_a_folder_s_configuration_may_bring_its_own_command(tmp_path):
    put(
        tmp_path / "s",
        server__py="",
        config__jsonc='{"type": "local", "command": ["deno", "run", "server.ts"]}',
    )

    server = scanned(tmp_path).settings.servers["s"]

    assert (server.command, server.cwd) == ("deno", tmp_path / "s")


def test_a_server_whose_configuration_cannot_be_read_is_not_started(tmp_path):
    put(tmp_path / "s", server__py="", config__jsonc='{"enabled": false')

    result = scanned(tmp_path)

    assert not result.settings.servers
    assert [problem.place.file.name for problem in result.problems] == ["config.jsonc"]


def test_a_folder_that_is_not_there_holds_no_server(tmp_path):
    assert not scanned(tmp_path / "none").servers


def test_a_folder_that_cannot_be_read_takes_no_server_away(tmp_path):
    folder = tmp_path / "mcpservers"
    folder.symlink_to(folder)

    loaded = load(Search((Source(path=folder, folder=True),), tmp_path))

    assert not loaded.intact
    assert [(problem.message, problem.place.file) for problem in loaded.errors] == [
        ("cannot be read: Too many levels of symbolic links", folder)
    ]


def test_what_is_no_file_starts_nothing(tmp_path):
    (tmp_path / "a" / "server.py").mkdir(parents=True)
    put(tmp_path / "b")
    os.mkfifo(tmp_path / "b" / "server.py")

    assert scripts(tmp_path) == ()


def test_a_folder_s_name_is_not_taken_for_a_variable(tmp_path):
    put(tmp_path / "${HOME}", server__py="", config__jsonc="{}")

    server = expand_server(
        scanned(tmp_path).settings.servers["${HOME}"],
        Scope(env={"HOME": "/"}, folder=tmp_path, home=tmp_path),
    )

    assert server.args == (str(tmp_path / "${HOME}" / "server.py"),)
    assert server.cwd == tmp_path / "${HOME}"


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("words", "count"),
        pytest.param(
            "dice", "roll", marks=pytest.mark.skipif(not shutil.which("node"), reason="needs Node")
        ),
    ],
)
async def test_the_examples_are_found_and_answer(name, tool):
    loaded = load(Search((Source(path=EXAMPLES, folder=True),)))
    assert loaded.settings.servers.keys() == {"dice", "words"}
    assert loaded.settings.servers["words"].command == sys.executable

    scope = Scope(env={}, folder=EXAMPLES, home=EXAMPLES)
    config = expand_server(loaded.settings.servers[name], scope)
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
    async with conversation(config) as ask:
        hello = await ask("initialize", client)
        listed = await ask("tools/list", {})

    assert hello["serverInfo"]["name"] == name
    assert tool in [tool["name"] for tool in listed["tools"]]
    assert name != "dice" or "20 sides" in listed["tools"][0]["description"]


@asynccontextmanager
async def conversation(config):
    """A way to ask a server that runs as configured."""
    environment = {"PATH": os.environ["PATH"], **config.env}
    command = [config.command, *config.args]
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(command, cwd=config.cwd, env=environment) as process:
            answers = BufferedByteReceiveStream(process.stdout)

            async def ask(method, params):
                question = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
                await process.stdin.send(json.dumps(question).encode() + b"\n")
                answer = json.loads(await answers.receive_until(b"\n", 65536))
                assert answer["id"] == method
                return answer["result"]

            yield ask
            await process.stdin.aclose()
            await process.wait()
