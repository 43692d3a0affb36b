import os
from pathlib import Path

import pytest

from multitap.config import Surroundings, agent_core, excelmanus, kode, load, native, otter
from multitap.names import Naming
from tests.trusting import Gullible

SERVER = (
    '{{"mcpServers": {{"{name}": {{"transport": "stdio", "command": "{command}", "args": []}}}}}}'
)


@pytest.fixture
def where(tmp_path):
    for name in ("home", "project", "config"):
        (tmp_path / name).mkdir()
    return Surroundings(tmp_path / "project", tmp_path / "home", tmp_path / "config", {})


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def server(name, command):
    return SERVER.format(name=name, command=command)


def commands(search):
    servers = load(search, approval=Gullible()).settings.servers
    return {name: config.command for name, config in servers.items()}


def test_b17_b18_the_project_s_kode_file_adds_to_the_user_s(where):
    write(
        where.home / ".kode.json",
        '{"mcpServers": {"a": {"command": "h", "args": []}, "b": {"command": "h", "args": []}}}',
    )
    write(where.folder / ".kode.json", server("c", "project"))

    loaded = load(kode(where), approval=Gullible())

    assert {name: config.command for name, config in loaded.settings.servers.items()} == {
        "a": "h",
        "b": "h",
        "c": "project",
    }
    assert loaded.settings.naming is Naming.KODE
    assert not loaded.problems


def test_e2_excelmanus_takes_the_first_file_there_is(where, tmp_path):
    argument = tmp_path / "argument.json"
    variable = tmp_path / "variable.json"
    named = Surroundings(
        where.folder, where.home, where.config, {"EXCELMANUS_MCP_CONFIG": str(variable)}
    )

    assert commands(excelmanus(named, argument)) == {}
    write(where.home / ".excelmanus" / "mcp.json", server("h", "home"))
    assert commands(excelmanus(named, argument)) == {"h": "home"}
    write(where.folder / "mcp.json", server("w", "workspace"))
    assert commands(excelmanus(named, argument)) == {"w": "workspace"}
    write(argument, server("a", "argument"))
    assert commands(excelmanus(named, argument)) == {"a": "argument"}
    write(variable, server("v", "variable"))
    assert commands(excelmanus(named, argument)) == {"v": "variable"}


def test_e3_a_bad_excelmanus_file_is_an_error_and_an_empty_list(where):
    write(where.folder / "mcp.json", "{")
    write(where.home / ".excelmanus" / "mcp.json", server("h", "home"))

    loaded = load(excelmanus(where))

    assert not loaded.settings.servers
    assert len(loaded.errors) == 1
    assert not loaded.intact


def test_e2_no_file_at_all_is_no_error(where):
    loaded = load(excelmanus(where))

    assert (dict(loaded.settings.servers), loaded.problems, loaded.intact) == ({}, (), True)
    assert loaded.settings.naming is Naming.EXCELMANUS


def test_c9_c22_the_environment_s_file_wins_over_the_global_one(where):
    root = where.home / ".config" / "tong_work" / "agent-core"
    write(
        root / "tong_work.jsonc",
        '{"mcp": {"clients": {"a": {"type": "local", "command": ["x"]},'
        ' "b": {"type": "local", "command": ["y"]}}}}',
    )
    write(
        root / "environments" / "dev" / "config.jsonc",
        '{"mcp": {"clients": {"a": {"enabled": false}}, "server": {"enabled": true}}}',
    )

    loaded = load(agent_core(where, "dev"))

    assert {name: config.enabled for name, config in loaded.settings.servers.items()} == {
        "a": False,
        "b": True,
    }
    assert loaded.settings.servers["a"].cwd == root
    assert loaded.settings.serve.enabled
    assert load(agent_core(where, "dev", root=where.home)).settings.servers == {}


def test_c11_explicit_configuration_wins_over_the_folder_s(where):
    home = where.home / "root" / "environments" / "dev"
    write(home / "mcpservers" / "a" / "server.py", "")
    write(
        home / "mcpservers" / "a" / "config.jsonc", '{"timeout": 60000, "environment": {"X": "1"}}'
    )
    write(home / "config.jsonc", '{"mcp": {"a": {"enabled": false}}}')

    loaded = load(agent_core(where, "dev", root=where.home / "root"))

    config = loaded.settings.servers["a"]
    assert (config.enabled, config.timeout, config.env, config.cwd) == (
        False,
        60,
        {"X": "1"},
        home / "mcpservers" / "a",
    )
    assert {
        value.key: value.place.file.name for value in loaded.explain("a").values if value.place
    } == {
        "command": "server.py",
        "args": "server.py",
        "cwd": "server.py",
        "timeout": "config.jsonc",
        "env.X": "config.jsonc",
        "enabled": "config.jsonc",
    }


def test_otter_has_a_user_s_and_a_project_s_file(where):
    text = '[[mcp.servers]]\nname = "{0}"\ntransport = "stdio"\ncommand = "{0}"\n'
    write(where.config.parent / "otter" / "config.toml", text.format("user"))
    write(where.folder / "otter.toml", text.format("project"))

    assert commands(otter(where)) == {"user": "user", "project": "project"}


def test_ours_are_the_user_s_configuration_and_the_project_s(where):
    write(
        where.config / "multitap.toml",
        "[servers.a]\ncommand = 'user'\n[servers.b]\ncommand = 'user'\n",
    )
    write(where.folder / "multitap.toml", "[servers.a]\ncommand = 'project'\n")
    write(where.folder / "mcpservers" / "c" / "server.py", "")

    search = native(where)

    assert commands(search).keys() == {"a", "b", "c"}
    assert commands(search)["a"] == "project"
    assert [source.project for source in search.sources] == [None, None, *[where.folder] * 2]


def test_the_project_s_file_is_looked_for_up_to_the_repository_s_root(where):
    inner = where.folder / "a" / "b"
    inner.mkdir(parents=True)
    write(where.folder.parent / "multitap.toml", "[servers.outside]\ncommand = 'x'\n")
    deep = Surroundings(inner, where.home, where.config, {})
    assert commands(native(deep)) == {}

    (where.folder / ".git").mkdir()
    assert commands(native(deep)) == {}

    write(where.folder / "multitap.toml", "[servers.inside]\ncommand = 'x'\n")
    assert commands(native(deep)) == {"inside": "x"}


def test_files_that_are_named_stand_alone_and_may_be_of_any_dialect(where):
    write(where.config / "multitap.toml", "[servers.user]\ncommand = 'x'\n")
    write(where.folder / "multitap.toml", "[servers.project]\ncommand = 'x'\n")
    first = write(
        where.folder / "mcp.json", '{"mcpServers": {"a": {"command": "1"}, "b": {"command": "1"}}}'
    )
    second = write(where.folder / "goose.yaml", "extensions:\n  b: {type: stdio, cmd: two}\n")
    environment = {"MULTITAP_CONFIG": os.pathsep.join(["mcp.json", str(second)])}
    named = Surroundings(where.folder, where.home, where.config, environment)

    assert commands(native(where, [first])) == {"a": "1", "b": "1"}
    assert commands(native(named)) == {"a": "1", "b": "two"}
    assert commands(native(named, [Path("mcp.json")])) == {"a": "1", "b": "1"}


def test_a_named_file_can_have_its_dialect_named(where):
    write(where.folder / "mcp.json", '{"mcpServers": {"a": {"command": "x", "timeout": 5}}}')

    [server] = load(native(where, [Path("mcp.json")], dialect="cline")).settings.servers.values()

    assert server.timeout == 5


def test_a_named_file_that_is_missing_is_an_error(where):
    loaded = load(native(where, [Path("none.json")]))

    assert [str(problem) for problem in loaded.problems] == [
        f"{where.folder}/none.json: error: there is no such file"
    ]
    assert not loaded.intact


def test_surroundings_are_those_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)

    here = Surroundings.here()

    assert (here.folder, here.home) == (tmp_path, tmp_path)
    assert here.config.name == "multitap"
    assert Surroundings.here(tmp_path / "x").folder == tmp_path / "x"


def test_the_user_s_own_folder_is_not_taken_for_a_project(where):
    write(where.config / "multitap.toml", "state_dir = '/x'\n")

    loaded = load(native(Surroundings(where.config, where.home, where.config, {})))

    assert (loaded.settings.state_dir, loaded.problems) == (Path("/x"), ())
