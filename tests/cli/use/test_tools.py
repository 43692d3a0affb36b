"""What is listed, and how it is chosen."""

import re
import shlex
import sys

import pytest

from multitap.cli.use.listing import ago
from tests.cli.conftest import zoo
from tests.terminals import terminal
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command


def names(ended):
    header, *lines = ended.lines
    assert header.split() == ["TOOL", "DESCRIPTION"]
    return [line.split()[0] for line in lines]


def test_tools_are_listed_with_the_first_line_of_their_description(multitap, configure):
    configure(zoo="good")

    ended = multitap("tools")

    assert ended.code == 0
    assert ended.lines[1].split(maxsplit=1) == ["zoo_echo", "Gives the text back"]
    assert len(names(ended)) == 26


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("TWO numbers", ["zoo_add"]),
        ("ECHO", ["zoo_echo"]),
        ("zoo_?o*", ["zoo_nonce", "zoo_count", "zoo_log", "zoo_roots", "zoo_touch"]),
        ("add*", []),
    ],
)
def test_a_pattern_is_a_part_of_name_or_description_or_a_glob_of_the_name(
    multitap, configure, pattern, found
):
    configure(zoo="good")

    ended = multitap("tools", pattern)

    assert (names(ended) if ended.out else []) == found


@pytest.mark.parametrize(
    "line", ["tools nosuch", "tokens nosuch", "tools [a-", "tools nosuch --json"]
)
def test_a_pattern_without_a_match_is_reported(multitap, configure, line):
    configure(zoo="good")

    ended = multitap(line)

    assert ended.code == 1
    assert ended.err.startswith(f"nothing matches {line.split()[1]!r}\n")


def test_only_the_server_that_is_asked_for_is_started(multitap, configure, tmp_path):
    ledger = Ledger(tmp_path)
    configure(one="good", two=zoo("good", env=ledger.env))

    ended = multitap("tools echo --server one")

    assert names(ended) == ["one_echo"]
    assert not ledger.starts


def test_a_misspelt_server_gets_a_suggestion(multitap, configure):
    configure(github="good")

    ended = multitap("tools --server gihtub")

    assert ended.code == 2
    assert ended.err == (
        "error: no server named 'gihtub'\n"
        "hint: did you mean `github`? `multitap status` lists all servers\n"
    )


def test_a_server_that_is_down_is_said_to_be_so(multitap, configure):
    configure(good="good", bad="exit_at_start")

    everything = multitap("tools echo")
    alone = multitap("tools --server bad")

    assert (everything.code, names(everything)) == (0, ["good_echo"])
    assert everything.err.startswith("bad is not listed: it exited with code 1")
    assert (alone.code, alone.out) == (4, "")
    assert alone.err.startswith("error: bad: it exited with code 1")


def test_tools_of_a_lazy_server_come_from_the_last_time(multitap, configure, tmp_path):
    ledger = Ledger(tmp_path)
    configure(lazy=zoo("good", start="lazy", env=ledger.env))

    unknown = multitap("tools echo")
    multitap("doctor lazy")
    known = multitap("tools echo")

    assert unknown.out == ""
    assert "hint: `multitap doctor lazy` starts it once" in unknown.err
    assert names(known) == ["lazy_echo"]
    assert len(ledger.starts) == 1


def test_a_schema_is_shown_in_full(multitap, configure):
    configure(zoo="good")

    ended = multitap("tools zoo_add --schema")

    assert ended.lines[:3] == ["zoo_add", "Adds two numbers", "{"]
    assert '"required": [' in ended.out


def test_json_says_what_the_server_said(multitap, configure):
    configure(zoo="good")

    (tool,) = multitap("tools zoo_add --json").json

    assert (tool["name"], tool["server"], tool["tool"]) == ("zoo_add", "zoo", "add")
    assert tool["inputSchema"]["properties"] == {"a": {"type": "number"}, "b": {"type": "number"}}
    assert tool["annotations"] == {"readOnlyHint": True}


def test_a_hidden_tool_is_not_listed(multitap, configure):
    configure(zoo=zoo("good", filter={"deny": ["echo"]}))

    assert multitap("tools echo").out == ""


@pytest.fixture
def impatient(monkeypatch):
    """Commands as a script runs them, which does not say how long to wait."""
    monkeypatch.delenv("MULTITAP_WAIT")


def test_what_was_listed_before_is_listed_at_once_with_its_age(
    multitap, configure, tmp_path, impatient
):
    ledger = Ledger(tmp_path)
    configure(zoo=zoo("good", env=ledger.env))
    multitap("tools --wait 60")

    tools, tokens, live = multitap("tools"), multitap("tokens"), multitap("tools --wait 60")

    assert names(tools) == names(live)
    assert tools.err == "as of just now; `--wait 1m` asks the servers again\n"
    assert tokens.code == 0
    assert "as of" not in live.err
    assert len(ledger.starts) == 2


def test_a_server_that_was_changed_is_asked_again(multitap, configure, tmp_path, impatient):
    ledger = Ledger(tmp_path)
    configure(zoo=zoo("good", env=ledger.env))
    multitap("tools --wait 60")
    configure(zoo=zoo("good", env={**ledger.env, "OTHER": "1"}))

    ended = multitap("tools echo")

    assert names(ended) == ["zoo_echo"]
    assert len(ledger.starts) == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (5, "just now"),
        (61, "1 minute ago"),
        (3 * 3600 + 5, "3 hours ago"),
        (90000, "1 day ago"),
    ],
)
def test_an_age_is_shown_in_words(seconds, words):
    assert ago(seconds) == words


def test_a_download_is_not_ended_and_begun_again(multitap, home, configure, tmp_path, impatient):
    ledger = Ledger(tmp_path)
    downloads = home / "npx"
    server = shlex.join(command("good"))
    downloads.write_text(f"#!/bin/sh\nsleep 7\nexec {server}\n")
    downloads.chmod(0o755)
    configure(slow={"command": str(downloads), "args": ["-y", "pkg"], "env": ledger.env})

    ended = multitap("tools echo")

    assert names(ended) == ["slow_echo"]
    assert len(ledger.starts) == 1


def test_at_a_terminal_commands_wait_and_ctrl_c_shows_what_there_is(home, configure, monkeypatch):
    monkeypatch.delenv("MULTITAP_WAIT")
    configure(quick="good", slow=zoo("never_init"))
    program = [sys.executable, "-m", "multitap", "status", "--no-live"]

    with terminal(program, NO_COLOR="1") as person:
        person.reads("quick +ready")
        person.reads(r"slow +starting, [6-9] s")
        person.press("\x03")
        code, written = person.ends()

    assert code == 4
    assert re.search(r"quick +connected", written)
    assert re.search(r"slow +connecting .*it is still starting", written)
