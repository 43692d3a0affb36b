"""`multitap policy` and `multitap audit`, and questions at the terminal."""

import json
from contextlib import closing

import pytest

from tests.cli.conftest import toml, zoo
from tests.cli.test_questions import Terminal

RULES = """
[[policy]]
decision = "ask"
tools = ["add"]
reason = "sums are serious"

[[servers.zoo.policy]]
decision = "deny"
tools = ["add"]
arguments.a.above = 100

[[servers.zoo.policy]]
decision = "deny"
tools = ["echo"]
"""


@pytest.fixture
def own(home, monkeypatch):
    """A configuration of the user's own, with rules."""
    lines = [f"{key} = {toml(value)}" for key, value in zoo("good").items()]
    path = home / "own.toml"
    path.write_text("\n".join(["[servers.zoo]", *lines, RULES]))
    monkeypatch.setenv("MULTITAP_CONFIG", str(path))
    return path


def test_the_decision_and_its_rule_are_explained(multitap, own):
    denied = multitap("policy explain zoo_add a=101 b=2 --json").json
    asked = multitap("policy explain zoo_add a=1 b=2")
    hidden = multitap("policy explain zoo_echo")

    assert denied["decision"] == "deny"
    assert denied["rule"].startswith("own.toml:")
    assert asked.lines[0].startswith("zoo_add: ask this call by own.toml:")
    assert hidden.lines[0].startswith("zoo_echo: deny every call by own.toml:")


def test_without_a_person_a_call_that_asks_is_refused_with_file_and_line(multitap, own):
    ended = multitap("call zoo_add a=1 b=2")

    assert ended.code == 1
    assert "needs a person's approval: sums are serious" in ended.err
    assert "own.toml:" in ended.err


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_the_person_at_the_terminal_is_asked(own, typed, code):
    with closing(Terminal("call", "zoo_add", "a=1", "b=2")) as call:
        call.wait("Call it? [y/N]: ")
        call.type(f"{typed}\n")

        assert call.end() == code
    assert all(words in call.seen for words in ("server: zoo", "tool: add", "sums are serious"))


def test_calls_are_listed_and_verified(multitap, own):
    multitap("call zoo_echo text=x")
    multitap("call zoo_add a=101 b=2")
    listed = multitap("audit")
    data = multitap("audit --json --server zoo").json
    checked = multitap("audit --verify")

    assert listed.code == 0
    assert "call: zoo add" in listed.out
    assert data[0]["decision"] == "deny"
    assert data[0]["rule"].startswith(str(own))
    assert checked.code == 0
    assert "none changed" in checked.out
    assert multitap("audit --since nonsense").code == 3


def test_a_changed_record_is_reported(multitap, own, tmp_path):
    multitap("call zoo_add a=101 b=2")
    head = tmp_path / "state" / "multitap" / "audit.head"
    head.write_text(f"7 {'0' * 64}\n")

    ended = multitap("audit --verify --json")

    assert ended.code == 1
    assert json.loads(ended.out)["problems"]


IDLE = """
[[policy]]
decision = "deny"
tools = ["zoo_ech", "*_ech"]

[[policy]]
decision = "deny"
servers = ["zo"]

[[servers.zoo.policy]]
decision = "ask"
tools = ["ad"]

[[policy]]
decision = "deny"
tools = ["zoo_echo"]
"""


def test_a_rule_that_matches_nothing_is_a_warning_everywhere(multitap, own):
    own.write_text(own.read_text().replace(RULES, IDLE))
    unknown = multitap("config check")
    status = multitap("status")
    doctor = multitap("doctor")
    explained = multitap("policy explain zoo_add")
    checked = multitap("config check")

    assert "matches no tool" not in unknown.out  # nothing has shown its tools yet
    for printed in (status.err, doctor.out, explained.err, checked.out):
        assert "`policy[0]`: matches no tool: `zoo_ech`, `*_ech`" in printed
        assert "did you mean `zoo_echo`?" in printed
        assert "`policy[1]`: matches no server: `zo`" in printed
        assert "did you mean `zoo`?" in printed
        assert "`servers.zoo.policy[0]`: matches no tool: `ad`" in printed
        assert "policy[2]" not in printed
    assert (status.code, doctor.code, explained.code, checked.code) == (0, 0, 0, 3)
    problems = multitap("status --json").json["problems"]
    assert [one["key"] for one in problems] == [
        "policy[0]",
        "policy[1]",
        "servers.zoo.policy[0]",
    ]


def test_rules_that_match_are_no_problem(multitap, own):
    multitap("status")

    assert multitap("config check").code == 0
