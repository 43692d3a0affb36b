"""Each server's story in one line, whatever file it is written in."""

import json
import sys

import pytest

from multitap.cli.use.status import _near
from tests.cli.conftest import zoo
from tests.zoo.ledger import Ledger


def rows(ended):
    header, *lines = ended.lines
    assert header.split() == ["SERVER", "STATE", "TOOLS", "LATENCY", "NOTE"]
    note = header.index("NOTE")
    return {line.split()[0]: (line[:note].split()[1:], line[note:]) for line in lines}


def test_all_is_well_with_a_good_server(multitap, configure):
    configure(zoo="good")

    ended = multitap("status")

    (state, tools, latency, unit), note = rows(ended)["zoo"]
    assert (ended.code, state, tools, unit, note) == (0, "connected", "26", "ms", "")
    assert latency.isdigit()
    assert ended.err == ""


def test_each_trouble_is_reported_in_one_line(multitap, configure):
    configure(
        good="good",
        crashing="exit_at_start",
        missing={"command": "no-such-program"},
        unset={"command": "x", "env": {"TOKEN": "${NO_SUCH_TOKEN}"}},
        off={"command": "x", "enabled": False},
    )

    ended = multitap("status")

    told = {name: (cells[0], note) for name, (cells, note) in rows(ended).items()}
    assert ended.code == 4
    assert told["good"] == ("connected", "")
    assert told["off"] == ("disabled", "")
    assert told["crashing"] == (
        "error",
        "it exited with code 1 during the handshake: zoo: cannot open the database",
    )
    assert told["missing"][1] == "the program 'no-such-program' is not on the PATH"
    assert "`env.TOKEN`: the variable `NO_SUCH_TOKEN` is not set" in told["unset"][1]
    assert "multitap.toml:11:" in told["unset"][1]
    assert ended.err == "hint: `multitap doctor` says what to do\n"


def test_errors_of_the_configuration_are_below_and_end_it_with_3(multitap, configure):
    configure(good="good", typo={"comand": "x"})

    ended = multitap("status")

    assert ended.code == 3
    assert rows(ended)["typo"][1].startswith("neither `command` nor `url` (")
    assert "error: `servers.typo`: neither `command` nor `url`" in ended.err
    assert "hint: did you mean `command` instead of `comand`?" in ended.err


def claude_desktop(servers):
    return "claude_desktop_config.json", json.dumps({"mcpServers": servers})


def agent_core(servers):
    entries = {
        name: {"type": "local", "environment": server.get("env", {}), **_joined(server)}
        for name, server in servers.items()
    }
    return "config.jsonc", "// local servers\n" + json.dumps({"mcp": entries})


def _joined(server):
    if "command" not in server:
        return {key: value for key, value in server.items() if key != "args"}
    return {"command": [server["command"], *server.get("args", [])]}


def otter(servers):
    lines = ["[mcp]", 'health_check_interval = "30s"']
    for name, server in servers.items():
        lines += ["[[mcp.servers]]", f"name = {json.dumps(name)}", 'transport = "stdio"']
        for key, value in server.items():
            pairs = isinstance(value, dict) and ", ".join(
                f"{inner} = {json.dumps(one)}" for inner, one in value.items()
            )
            lines.append(f"{key} = {{ {pairs} }}" if pairs else f"{key} = {json.dumps(value)}")
    return "otter.toml", "\n".join(lines)


@pytest.mark.parametrize("dialect", [claude_desktop, agent_core, otter], ids=lambda it: it.__name__)
def test_the_same_stories_whatever_file_they_are_written_in(multitap, home, dialect):
    servers = {
        "one": zoo("good"),
        "two": zoo("good_legacy"),
        "crashing": zoo("exit_at_start"),
        "unset": {"command": sys.executable, "env": {"TOKEN": "${NO_SUCH_TOKEN}"}},
        "typo": {"comand": sys.executable},
    }
    name, text = dialect(servers)
    (home / name).write_text(text)

    ended = multitap(f"--config {name} status")

    told = rows(ended)
    assert ended.code == 3
    assert [*told] == [*servers]
    assert {name: cells[0] for name, (cells, _) in told.items()} == {
        "one": "connected",
        "two": "connected",
        "crashing": "error",
        "unset": "error",
        "typo": "error",
    }
    assert "zoo: cannot open the database" in told["crashing"][1]
    assert "the variable `NO_SUCH_TOKEN` is not set" in told["unset"][1]
    assert "`command`" in told["typo"][1]


def test_a_lazy_server_is_not_started_just_to_look(multitap, configure, tmp_path):
    ledger = Ledger(tmp_path)
    configure(lazy=zoo("good", start="lazy", env=ledger.env))

    before = multitap("status")
    assert not ledger.starts
    multitap("call lazy_echo text=hi")
    started = len(ledger.starts)
    after = multitap("status")

    assert started == 1
    assert len(ledger.starts) == started
    assert rows(before)["lazy"][0][:2] == ["asleep", "-"]
    assert rows(after)["lazy"] == (["asleep", "26", "-"], "lazy: it starts on the first call")
    assert (before.code, after.code) == (0, 0)


def test_a_server_that_hangs_is_given_up_after_the_timeout(multitap, configure):
    configure(hanging="never_init", good="good")

    ended = multitap("status --timeout 1")

    assert ended.code == 4
    assert rows(ended)["good"][0][0] == "connected"
    assert "in time" in rows(ended)["hanging"][1]


def test_json_has_everything(multitap, configure):
    configure(good="good", crashing="exit_at_start", typo={"comand": "x"})

    ended = multitap("status --json")

    servers = {server["name"]: server for server in ended.json["servers"]}
    assert ended.err == ""
    assert servers["good"]["protocol_version"] == "2026-07-28"
    assert servers["good"]["latency"] > 0
    assert servers["crashing"]["failure"]["exit_code"] == 1
    assert servers["crashing"]["failure"]["phase"] == "handshake"
    assert servers["typo"]["fine"] is False
    assert [problem["severity"] for problem in ended.json["problems"]] == ["warning", "error"]


def test_without_any_configuration_it_says_where_it_looked(multitap, home):
    ended = multitap("status")

    assert (ended.code, ended.out) == (0, "")
    assert f"no servers are configured; looked in {home.parent}/config" in ended.err
    assert "`multitap add NAME -- COMMAND` adds one" in ended.err


def test_secrets_in_a_server_s_last_words_are_hidden(multitap, configure, monkeypatch):
    monkeypatch.setenv("ZOO_PASS", "correct-horse-battery")
    configure(leaky=zoo("echo_secret", env={"ZOO_SECRET": "${ZOO_PASS}"}))

    ended = multitap("status --json")

    assert ended.code == 4
    assert "correct-horse-battery" not in ended.out


def test_escape_sequences_do_not_reach_the_terminal(multitap, configure):
    configure(ansi="ansi_escapes")

    for line in ("status", "status --json", "tools", "tools --schema", "tools --json", "doctor"):
        ended = multitap(line)

        assert "\x1b" not in ended.out + ended.err, line
        assert "\x9b" not in ended.out + ended.err, line


def test_one_that_hangs_keeps_nobody_waiting(multitap, configure):
    configure(good="good", hanging="never_init")

    ended = multitap("status --wait 3")

    assert ended.code == 4
    assert rows(ended)["good"][0][0] == "connected"
    assert rows(ended)["hanging"] == (
        ["connecting", "-", "-"],
        "it is still starting; use `--wait 1m` to wait longer",
    )
    assert not ended.err


@pytest.mark.parametrize(
    "line",
    [
        "status --wait 3",
        "doctor --wait 3",
        "call crashing_echo text=hi --wait 2",
        "read zoo://text --wait 2",
    ],
)
def test_one_that_crashes_is_started_once_while_others_are_waited_for(
    multitap, configure, tmp_path, line
):
    crashing = tmp_path / "crashing"
    crashing.mkdir()
    configure(crashing=zoo("exit_at_start", env=Ledger(crashing).env), hanging="never_init")

    multitap(line)

    assert len(Ledger(crashing).starts) == 1


@pytest.mark.parametrize("name", [".mcp.json", "opencode.json", "opencode.jsonc"])
def test_a_file_of_another_host_in_this_folder_is_suggested(multitap, home, name):
    (home / name).write_text("{}")

    ended = multitap("status")

    assert f"`multitap import --project` collects {name} in `multitap.toml`" in ended.err
    assert "--config" not in ended.err  # which would trust it unseen


@pytest.mark.parametrize("line", ["status", "tools --json", "resources", "prompts", "doctor"])
def test_a_broken_file_is_not_also_an_empty_one(multitap, home, line):
    (home / "multitap.toml").write_text("[servers")

    ended = multitap(line)

    assert ended.code == 3
    assert "not valid TOML" in ended.err + ended.out
    assert "no servers are configured" not in ended.err


def test_every_broken_server_gets_a_sentence_in_time(multitap, configure):
    hanging = {f"hanging{number}": "never_init" for number in range(4)}
    crashing = {f"crashing{number}": "exit_at_start" for number in range(4)}
    missing = {f"missing{number}": {"command": "nope"} for number in range(4)}
    nowhere = {f"nowhere{number}": {"url": "http://127.0.0.1:1/mcp"} for number in range(4)}
    configure(**hanging, **crashing, **missing, **nowhere)

    ended = multitap("status --wait 3")

    told = rows(ended)
    assert ended.code == 4
    assert len(told) == 16
    assert all(note for _, note in told.values())


def test_a_lost_store_is_said(multitap, configure, tmp_path):
    configure(good="good")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "multitap").write_text("in the way")

    ended = multitap("status")

    assert "degraded: " in ended.err
    assert "nothing will be remembered after this run" in ended.err


def test_a_file_in_a_note_is_written_as_a_person_would(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home.parent))

    assert _near(f"{home}/multitap.toml:1:2: x") == "multitap.toml:1:2: x"
    assert _near(f"{home.parent}/a.toml: x") == "~/a.toml: x"
    assert _near("cannot connect to /x") == "cannot connect to /x"
