"""An environment that a file describes."""

import sys
from pathlib import Path

import anyio
import pytest

from multitap.config import Surroundings, agent_core, native
from multitap.env.configured import ConfiguredEnvironment, load_function, load_tool
from multitap.env.environment import McpClientLoadResult
from multitap.errors import ConfigError
from tests.trusting import trust
from tests.waiting import PATIENCE

TOOLS = '''
def roll(sides: int = 6) -> int:
    """Roll a die that always shows its highest number.

    Args:
        sides: How many sides it has.
    """
    return sides


def unloved(x: object()): ...
'''
SKILL = "---\nname: {name}\ndescription: How to {name}.\n---\nCarefully.\n"
CONFIG = """
state_dir = "state"

[environment]
id = "office"
display_name = "The office"
tools = ["tools.py:roll"]

[model]
name = "scripted"
api_key = "${NO_SUCH_KEY}"

[agents.player]
description = "Plays."
prompt = "player"
allow = ["roll", "read_skill"]

[agents.guest]

[profiles.games]
servers = []

[prompts.player]
file = "prompts/player.md"

[prompts.ask]
text = "What about {topic}?"
arguments = { topic = "What to ask about." }
"""
SERVER = """
[servers.sums]
command = ["PYTHON", "-m", "multitap.demo.servers.calculator"]
"""


@pytest.fixture
def file(tmp_path):
    write(tmp_path / "tools.py", TOOLS)
    write(tmp_path / "prompts" / "player.md", "You play {to win}.\n")
    write(tmp_path / "skills" / "bluff" / "SKILL.md", SKILL.format(name="bluff"))
    write(tmp_path / "skills" / "bluff" / "faces.md", "Look bored.")
    return write(tmp_path / "multitap.toml", CONFIG)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text.replace("PYTHON", sys.executable))
    return fresh.replace(path)


def names(tools):
    return {tool.name for tool in tools}


async def test_c17_everything_comes_from_the_file(file):
    write(file, CONFIG + SERVER)
    async with ConfiguredEnvironment.load(file) as office:
        sums = {"sums_add", "sums_divide", "sums_mean"}
        rolled = await office.world.execute_tool("roll", {"sides": 20}, "player")
        added = await office.world.execute_tool("sums_add", {"a": 1, "b": 2}, "guest")

        assert office.problems == ()
        assert (office.get_env_id(), office.get_env_display_name()) == ("office", "The office")
        assert names(office.get_tools()) == {"roll", "read_skill", *sums}
        assert names(office.tools_for("player").list()) == {"roll", "read_skill"}
        assert names(office.tools_for("guest", profile="games").list()) == {"roll", "read_skill"}
        assert (rolled.output, added.output) == ("20", "3.0")
        assert (await office.world.get_prompt("ask", {"topic": "tea"})).text == "What about tea?"
        assert [agent.id for agent in await office.world.list_agents()] == ["player", "guest"]
        assert office.model_for("player").name == "scripted"


async def test_a_function_says_what_its_parameters_are_for(file):
    async with ConfiguredEnvironment.load(file) as office:
        (tool,) = [tool for tool in await office.world.list_tools("player") if tool.name == "roll"]

    assert tool.description == "Roll a die that always shows its highest number."
    assert tool.input_schema["properties"]["sides"]["description"] == "How many sides it has."


async def test_skills_are_listed_read_and_described(file):
    async with ConfiguredEnvironment.load(file) as office:
        manual = await office.registry.execute("read_skill", {"name": "bluff"})
        beside = await office.registry.execute("read_skill", {"name": "bluff", "file": "faces.md"})
        prompt = office.system_prompt("player")

        assert [*office.skills] == ["bluff"]
        assert manual.text == "Carefully.\n\nFiles of this skill:\n- faces.md"
        assert beside.text == "Look bored."
        assert prompt.startswith("You play {to win}.\n\nSkills: ")
        assert prompt.endswith("- bluff: How to bluff.")
        guest = await office.world.get_agent("guest")
        assert guest.instructions.endswith("- bluff: How to bluff.")


async def test_what_is_bad_costs_only_itself_and_is_reported_with_its_place(file):
    text = (
        CONFIG.replace("[model]", 'skills = ["skills", "${NO_SUCH_FOLDER}/x"]\n[model]')
        .replace('"tools.py:roll"', '"tools.py:roll", "tools.py:gone", "nowhere.py:f"')
        .replace("player.md", "gone.md")
        .replace("[agents.guest]", '[agents.guest]\nprompt = "plyer"')
        .replace("[profiles.games]", '[profiles.games]\nprompt = "ask"')
    )
    write(file, text + '[servers.bad]\ncomand = "x"\n')
    write(file.parent / "skills" / "bad" / "SKILL.md", "no header")
    async with ConfiguredEnvironment.load(file) as office:
        problems = {problem.key: problem for problem in office.problems if problem.key}
        messages = "\n".join(map(str, office.problems))

        assert names(office.get_tools()) == {"roll", "read_skill"}
        assert (await office.world.get_prompt("ask", {"topic": "x"})).text == "What about x?"
        assert (await office.world.get_agent("player")).instructions is None

    assert "tools.py has no 'gone'" in messages
    assert "nowhere.py cannot be loaded: FileNotFoundError" in messages
    assert "skills/bad/SKILL.md" in messages
    assert "servers.bad" in messages
    assert "`NO_SUCH_FOLDER` is not set" in problems["environment.skills"].message
    assert problems["prompts.player.file"].place.file == file
    assert problems["prompts.player.file"].place.line > 0
    assert problems["agents.guest.prompt"].hint == "did you mean `player`?"
    assert "needs arguments" in problems["profiles.games.prompt"].message


async def test_two_functions_of_one_name_are_reported_and_the_first_counts(file):
    write(file, CONFIG.replace('"tools.py:roll"', '"tools.py:roll", "tools.py:roll"'))
    async with ConfiguredEnvironment.load(file) as office:
        (problem,) = office.problems

        assert "'roll' is registered already" in problem.message
        assert "roll" in names(office.get_tools())


def test_a_file_that_is_not_there_or_not_readable_is_an_error(tmp_path):
    for path, words in (
        (tmp_path / "missing.toml", "there is no such file"),
        (write(tmp_path / "bad.toml", "[["), "not valid TOML"),
    ):
        with pytest.raises(ConfigError, match=words):
            ConfiguredEnvironment.load(path)


async def test_a_changed_file_changes_agents_prompts_functions_and_servers(file):
    changed = (
        CONFIG.replace("tools.py:roll", "tools.py:flip")
        .replace("[agents.guest]", "[agents.clerk]\nmax_steps = 3")
        .replace("What about", "Why")
        + '\n[profiles.work]\ndisplay_name = "Work"\n'
        + SERVER
    )
    async with ConfiguredEnvironment.load(file) as office:
        with office.hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            write(file.parent / "tools.py", TOOLS + "\ndef flip() -> str:\n    return 'heads'\n")
            write(file, changed)
            while not {"flip", "sums_add"} <= names(office.get_tools()):
                await anext(events)
                await anyio.lowlevel.checkpoint()

        assert "roll" not in names(office.get_tools())
        assert [agent.id for agent in await office.world.list_agents()] == ["player", "clerk"]
        assert [profile.id for profile in await office.world.list_profiles()] == ["games", "work"]
        assert (await office.world.get_prompt("ask", {"topic": "x"})).text == "Why x?"


async def test_loading_clients_reads_the_files_again(file):
    async with ConfiguredEnvironment.load(file) as office:
        write(file, CONFIG + '\n[servers.local]\ncommand = "no-such-program"\n')
        with anyio.fail_after(PATIENCE):
            result = await office.load_mcp_clients()

        assert result == McpClientLoadResult(0, ("local",))


async def test_servers_and_skills_beside_the_file_are_found_in_agent_cores_layout(tmp_path):
    home = tmp_path / "environments" / "dev"
    script = "from multitap.demo.servers.calculator import server\nserver.run()\n"
    write(home / "mcpservers" / "sums" / "server.py", script)
    write(home / "skills" / "bluff" / "SKILL.md", SKILL.format(name="bluff"))
    write(
        home / "config.jsonc",
        '{"mcp": {"off": {"type": "local", "command": ["x"], "enabled": false}}}',
    )
    here = Surroundings(tmp_path, tmp_path, tmp_path / "config", {})
    search = agent_core(here, "dev", root=tmp_path)

    for office in (
        ConfiguredEnvironment.load(home / "config.jsonc"),
        ConfiguredEnvironment(search),
    ):
        assert {*office.settings.servers} == {"sums", "off"}
        assert [*office.skills] == ["bluff"]


async def test_a_project_brings_no_model_and_nothing_else_unasked(file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    where = Surroundings(file.parent, file.parent / "home", file.parent / "config", {})
    before = ConfiguredEnvironment(native(where))
    refused = {problem.key for problem in before.problems}
    nothing = (before.settings.environment.tools, before.settings.agents, before.skills)
    trust(file.parent)
    office = ConfiguredEnvironment(native(where))

    assert {"model.name", "model.api_key", "state_dir"} <= refused
    assert nothing == ((), {}, {})
    assert office.settings.model is None
    assert office.settings.agents["player"].description == "Plays."
    assert office.settings.environment.id == "office"
    assert office.settings.environment.tools


def test_a_function_of_a_module_is_found():
    assert load_function("os.path:join").__name__ == "join"


def test_a_function_of_a_file_is_found_with_annotations_that_are_texts(tmp_path):
    file = tmp_path / "tools.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int\n"
        "def move(point: Point) -> int:\n    return point.x + 1\n"
    )

    assert load_tool(f"{file}:move").call({"point": {"x": 1}}) == "2"


def test_a_changed_file_is_run_again(tmp_path):
    file = tmp_path / "tools.py"
    file.write_text("def f() -> str:\n    return 'one'\n")
    before = load_function(f"{file}:f")
    file.write_text("def f() -> str:\n    return 'two'\n")

    assert (before(), load_function(f"{file}:f")()) == ("one", "two")


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("nothing", "does not name a function"),
        ("no_such_module:f", "ModuleNotFoundError"),
        ("os:no_such_function", "has no 'no_such_function'"),
        ("os:environ", "is not a function"),
        ("pathlib:Path", "is not a function"),
        ("{folder}/missing.py:f", "there is no file"),
        ("{folder}/syntax.py:f", "SyntaxError"),
        ("{folder}/failing.py:f", "RuntimeError: not today"),
        ("{folder}/exiting.py:f", "SystemExit"),
        ("{folder}/shapeless.py:f", "cannot be a tool"),
    ],
)
def test_what_cannot_be_loaded_says_why(tmp_path, reference, reason):
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "failing.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "exiting.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "shapeless.py").write_text("class X: ...\ndef f(x: X): ...\n")

    with pytest.raises(ConfigError, match=reason):
        load_tool(reference.format(folder=tmp_path))


def test_a_file_that_fails_leaves_no_module_behind(tmp_path):
    (tmp_path / "failing.py").write_text("raise RuntimeError('not today')\n")
    modules = {*sys.modules}

    with pytest.raises(ConfigError):
        load_function(f"{tmp_path}/failing.py:f")
    assert {*sys.modules} == modules
