"""What the files say, what is in force, and why."""

import json
import os
import tomllib

import pytest

from multitap.config import json_schema


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def layered(home, tmp_path, monkeypatch):
    """The same server in one file and, amended, in another."""
    below = tmp_path / "config" / "multitap" / "multitap.toml"
    monkeypatch.setenv("MULTITAP_CONFIG", f"{below}{os.pathsep}multitap.toml")
    write(
        below,
        '[servers.files]\ncommand = "npx"\nargs = ["--token", "s3cret-token"]\ntimeout = 30\n'
        'env = { KEY = "correct-horse", REF = "${HOME}" }\n',
    )
    write(
        home / "multitap.toml",
        "result_cap = 8000\n[servers.files]\ntimeout = 45\n"
        '[servers.api]\nurl = "https://me:pw@example.com/mcp?key=abc"\n'
        'headers = { Authorization = "Bearer abcdefgh" }\n',
    )


@pytest.mark.usefixtures("layered")
def test_a_good_configuration_passes_the_check(multitap, home):
    ended = multitap("config check")

    assert (ended.code, ended.out) == (0, "")
    assert f"read {home}/multitap.toml (multitap)\n2 of 2 servers can be used\n" in ended.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[servers.a]\ncomand = 'x'\n", "multitap.toml:2:1: warning: `servers.a.comand`"),
        ("[servers.a\n", "multitap.toml:1:11: error: not valid TOML"),
        ("[servers.a]\ncommand = 'x'\ntimeot = 3\n", "hint: did you mean `timeout`?"),
    ],
)
def test_problems_are_printed_with_their_place_and_end_it_with_3(multitap, home, text, problem):
    write(home / "multitap.toml", text)

    ended = multitap("config check")

    assert ended.code == 3
    assert problem in ended.out


def test_a_server_without_its_secret_does_not_count_as_usable(multitap, home):
    (home / "multitap.toml").write_text(
        '[servers.a]\ncommand = "true"\nenv = {KEY = "${NOBODY_SETS_THIS}"}\n'
        '[servers.b]\ncommand = "true"\n'
    )

    ended = multitap("--config multitap.toml config check")

    assert ended.code == 0
    assert "a cannot start here: " in ended.err
    assert "1 of 2 servers can be used\n" in ended.err


def test_remarks_do_not_fail_the_check(multitap, home):
    write(home / "multitap.toml", "[servers.gone]\nenabled = false\n")

    ended = multitap("config check")

    assert ended.code == 0
    assert "note: " in ended.out


def test_the_check_as_json(multitap, home):
    write(home / "mcp.json", '{"mcpServers": {"a": {"comand": "x"}, "b": {"command": "y"}}}')

    found = multitap("config check --json -c mcp.json").json

    assert found["servers"] == ["b"]
    assert found["sources"][0]["path"] == str(home / "mcp.json")
    error = found["problems"][-1]
    assert (error["severity"], error["server"], error["line"]) == ("error", "a", 1)


def test_a_named_file_that_is_not_there_is_an_error(multitap):
    ended = multitap("--config nowhere.json config check")

    assert ended.code == 3
    assert "nowhere.json: error: there is no such file" in ended.out


def test_an_unknown_dialect_is_an_error(multitap, home):
    write(home / "mcp.json", "{}")

    ended = multitap("config check -c mcp.json --dialect cursr")

    assert ended.code == 3
    assert ended.err == "error: no client or format named 'cursr'\nhint: did you mean `cursor`?\n"


def test_the_variable_names_files_too(multitap, home, monkeypatch):
    write(home / "elsewhere.json", '{"mcpServers": {"a": {"command": "x"}}}')
    monkeypatch.setenv("MULTITAP_CONFIG", "elsewhere.json")

    assert "[servers.a]" in multitap("config show").out


@pytest.mark.usefixtures("layered")
def test_what_is_in_force_is_shown_as_one_file_without_secrets(multitap):
    ended = multitap("config show")

    shown = tomllib.loads(ended.out)
    assert ended.code == 0
    assert shown["result_cap"] == 8000
    files, api = shown["servers"]["files"], shown["servers"]["api"]
    assert (files["command"], files["timeout"]) == ("npx", 45.0)
    assert files["args"] == ["--token", "********"]
    assert files["env"] == {"KEY": "********", "REF": "${HOME}"}
    assert api["url"] == "https://********@example.com/mcp?key=********"
    assert api["headers"] == {"Authorization": "********"}
    assert multitap("config show --json").json == shown


def test_the_key_of_a_model_is_not_shown(multitap, tmp_path):
    file = tmp_path / "models.toml"
    file.write_text("[model]\nname = 'm'\napi_key = 'hunter2'\n[agents.a.model]\nname = 'n'\n")

    for command in ("show", "show --json", "explain", "explain --json"):
        shown = multitap(f"--config {file} config {command}")
        assert "********" in shown.out
        assert "hunter2" not in shown.out


@pytest.mark.usefixtures("layered")
def test_one_server_can_be_shown_alone(multitap):
    assert tomllib.loads(multitap("config show api").out).keys() == {"servers"}
    assert multitap("config show apii").code == 2


def test_names_of_all_kinds_survive_as_toml(multitap, home):
    names = ["plain", "two words", 'quo"te', "üñï", "a.b"]
    entries = {name: {"command": "x", "env": {"A": "1"}} for name in names}
    write(home / "mcp.json", json.dumps({"mcpServers": entries}))

    assert [*tomllib.loads(multitap("config show -c mcp.json").out)["servers"]] == names


@pytest.mark.usefixtures("layered")
def test_each_value_is_explained_by_its_place_and_what_it_overrode(multitap, tmp_path):
    lines = [line.split() for line in multitap("config explain files").lines]

    user = f"{tmp_path}/config/multitap/multitap.toml"
    assert ["command", '"npx"', f"{user}:2:11"] in lines
    timeout = lines.index(["timeout", "45.0", "multitap.toml:3:11"])
    assert lines[timeout + 1] == ["overrides", "30.0", f"{user}:4:11"]
    assert ["env.KEY", '"********"', f"{user}:5:15"] in lines
    assert ["retry", '"hinted"', "default"] in lines


@pytest.mark.usefixtures("layered")
def test_an_entry_that_was_replaced_as_a_whole_is_shown_too(multitap, home):
    write(home / "multitap.toml", '[servers.files]\ncommand = "other"\n')

    ended = multitap("config explain files")

    assert "not in effect, because a later file redefines the server:\n" in ended.out
    assert "s3cret-token" not in ended.out
    dropped = {value["key"] for value in multitap("config explain files --json").json["dropped"]}
    assert dropped == {"args", "timeout", "env.KEY", "env.REF"}


@pytest.mark.usefixtures("layered")
def test_the_hub_s_own_values_are_explained_without_a_name(multitap):
    assert "result_cap" in multitap("config explain").out


@pytest.mark.usefixtures("layered")
def test_an_unknown_server_cannot_be_explained(multitap):
    ended = multitap("config explain fils")

    assert ended.code == 2
    assert "hint: did you mean `files`?" in ended.err


def test_a_broken_server_is_explained_with_its_problems(multitap, home):
    write(home / "multitap.toml", "[servers.a]\ntimeout = -1\ncommand = 'x'\n")

    ended = multitap("config explain a")

    assert "timeout" in ended.out
    assert "expected more than 0" in ended.err


def test_the_schema_is_printed(multitap):
    assert json.loads(multitap("config schema").out) == json_schema()


@pytest.mark.usefixtures("layered")
def test_reload_checks_the_files_and_says_that_nobody_serves(multitap, home):
    good = multitap("reload")
    write(home / "multitap.toml", "[servers")
    broken = multitap("reload")

    assert good.code == 4
    assert good.err.startswith("error: no gateway is serving this configuration\nhint: ")
    assert broken.code == 3
    assert "not valid TOML" in broken.err
