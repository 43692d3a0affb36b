import json
from pathlib import Path

import pytest

from multitap.config import Search, Severity, Source, Surroundings, load, native
from multitap.errors import UnknownName
from tests.trusting import Gullible


@pytest.fixture
def where(tmp_path):
    return Surroundings(tmp_path, tmp_path / "home", tmp_path / "config", {})


def read(where):
    """What the file in the folder says, named by the user."""
    return load(native(where, [Path("multitap.toml")]))


def test_good_files_are_used_whatever_the_others_are(where, tmp_path):
    (tmp_path / "good.json").write_text('{"mcpServers": {"a": {"command": "x"}, "b": 5}}')
    (tmp_path / "bad.json").write_text('{\n "mcpServers": }')
    (tmp_path / "odd.json").write_text('{"theme": "dark"}')
    names = ("good.json", "bad.json", "odd.json", "none.json")

    loaded = load(native(where, [Path(name) for name in names]))

    assert loaded.settings.servers.keys() == {"a"}
    assert loaded.broken.keys() == {"b"}
    assert [
        (seen.source.path.name, seen.found, seen.dialect, seen.intact) for seen in loaded.sources
    ] == [
        ("good.json", True, "mcpservers", True),
        ("bad.json", True, None, False),
        ("odd.json", True, None, False),
        ("none.json", False, None, False),
    ]
    assert [(problem.place.file.name, problem.place.line) for problem in loaded.errors] == [
        ("good.json", 1),
        ("bad.json", 2),
        ("odd.json", 1),
        ("none.json", 0),
    ]
    assert not loaded.intact


def test_broken_servers_come_with_their_reasons(where, tmp_path):
    (tmp_path / "multitap.toml").write_text(
        "[servers.a]\ncomand = 'x'\n[servers.b]\nenabled = false\n"
    )

    loaded = load(native(where))

    assert {
        name: [reason.message for reason in reasons] for name, reasons in loaded.broken.items()
    } == {"a": ["neither `command` nor `url`"]}
    assert {problem.severity for problem in loaded.problems} == {*Severity}


def test_a_server_is_explained_down_to_its_defaults(where, tmp_path):
    (tmp_path / "multitap.toml").write_text("[servers.a]\ncommand = 'x'\nenv = { A = '1' }\n")

    loaded = read(where)
    values = {value.key: value for value in loaded.explain("a").values}

    assert (values["command"].value, values["command"].place.line) == ("x", 2)
    assert (values["env.A"].value, values["env.A"].place.line) == ("1", 3)
    assert (values["timeout"].value, values["timeout"].place) == (30, None)
    assert loaded.places("a") == {key: value.place for key, value in values.items() if value.place}


def test_the_hub_itself_is_explained_too(where, tmp_path):
    (tmp_path / "multitap.toml").write_text("result_cap = 200\n")

    values = {value.key: value for value in read(where).explain().values}

    assert (values["result_cap"].value, values["result_cap"].place.line) == (200, 1)
    assert (values["naming"].value, values["naming"].place) == ("{server}_{tool}", None)
    assert "servers" not in values


def test_a_broken_server_can_be_explained(where, tmp_path):
    (tmp_path / "multitap.toml").write_text("[servers.a]\nurl = 'ftp://x'\n")

    [value] = load(native(where)).explain("a").values

    assert (value.key, value.value) == ("url", "ftp://x")


def test_explaining_a_server_nobody_knows_hints_at_the_nearest(where, tmp_path):
    (tmp_path / "multitap.toml").write_text("[servers.github]\ncommand = 'x'\n")

    with pytest.raises(UnknownName) as caught:
        load(native(where)).explain("githb")

    assert caught.value.hint == "did you mean `github`?"


def test_a_search_of_nothing_is_an_empty_configuration():
    loaded = load(Search(()))

    assert (dict(loaded.settings.servers), loaded.problems, loaded.sources) == ({}, (), ())


def test_without_a_search_it_is_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MULTITAP_CONFIG", raising=False)
    (tmp_path / "multitap.toml").write_text("[servers.a]\ncommand = 'x'\n")

    monkeypatch.chdir(tmp_path)

    assert load(approval=Gullible()).settings.servers.keys() == {"a"}
    assert load().held.keys() == {"a"}


def test_nothing_secret_is_in_repr(where, tmp_path):
    (tmp_path / "multitap.toml").write_text(
        "[servers.a]\ncommand = 'x'\nenv = { A = 'hunter2' }\nenvv = 'hunter2'\n"
    )

    assert "hunter2" not in repr(load(native(where)))


def test_a_source_that_is_a_folder_is_an_error(tmp_path):
    loaded = load(Search((Source(path=tmp_path),)))

    assert [problem.message for problem in loaded.problems] == ["is not a file"]


def test_a_host_s_entries_for_the_folder_that_is_worked_in_are_found(where, tmp_path):
    projects = {str(tmp_path): {"mcpServers": {"here": {"command": "x", "cwd": "sub"}}}}
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": {}, "projects": projects}))

    loaded = load(native(where, [Path(".claude.json")]))

    assert loaded.settings.servers["here"].cwd == tmp_path / "sub"


def test_a_file_with_the_wrong_dialect_says_what_it_looks_like(where, tmp_path):
    (tmp_path / "mcp.json").write_text('{"servers": {"a": {"type": "stdio", "command": "x"}}}')

    [problem] = load(native(where, [Path("mcp.json")], dialect="cursor")).problems

    assert problem.message == "no servers as Cursor writes them; it looks like VS Code"


def test_s3_a_project_adds_and_replaces_servers_and_changes_none_of_the_users(where, tmp_path):
    (tmp_path / "config").mkdir()
    own = "[servers.{0}]\ncommand = '{0}'\n"
    (tmp_path / "config" / "multitap.toml").write_text("".join(map(own.format, "abc")))
    amended = "[servers.b]\nenv = { NODE_OPTIONS = '--require ./x.js' }\n"
    (tmp_path / "multitap.toml").write_text(amended + "".join(map(own.format, "cd")))
    alone = load(Search((Source(path=tmp_path / "config" / "multitap.toml"),))).settings.servers

    loaded = load(native(where), approval=Gullible())

    assert {name: one.provenance for name, one in loaded.settings.servers.items()} == {
        **dict.fromkeys("ab", "user"),
        **dict.fromkeys("cd", "project"),
    }
    assert [loaded.settings.servers[name] == alone[name] for name in "ab"] == [True] * 2
    assert [(problem.severity, problem.place.line, problem.key) for problem in loaded.problems] == [
        (Severity.WARNING, 1, "servers.b"),
    ]


def test_a_file_that_cannot_be_read_is_reported(where, tmp_path):
    (tmp_path / "mcp.json").symlink_to("mcp.json")

    [problem] = load(native(where, [Path("mcp.json")])).problems

    assert problem.message == "cannot be read: Too many levels of symbolic links"


def test_a_folder_that_is_a_file_holds_nothing(where, tmp_path):
    (tmp_path / "config").write_text("")

    assert load(native(where)).problems == ()
