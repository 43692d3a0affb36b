"""Rules that are about no tool."""

from pathlib import Path

import pytest

from multitap.config import Settings, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.config.problems import Place
from multitap.names import ToolNames
from multitap.trust.policy import idle_rules

GITHUB = [
    ToolNames(f"github_{name}", name, "github") for name in ("delete_repo", "get_issue", "search")
]


def rule(decision, **fields):
    return PolicyRule(decision=decision, **fields).at(Place(Path("own.toml"), 3))


def warnings(*rules, own=(), **tools):
    servers = {name: StdioServer(command="x") for name in tools}
    servers["github"] = StdioServer(command="x", policy=own)
    settings = Settings(servers=servers, policy=rules)
    return [*idle_rules(settings, {"github": GITHUB, **tools})]


@pytest.mark.parametrize("glob", ["delete_repo", "github_delete_*", "*_delete_*", "Delete_*", "*"])
def test_a_rule_that_matches_a_tool_is_fine(glob):
    assert not warnings(rule("deny", tools=[glob]), own=[rule("ask", tools=[glob])])


@pytest.mark.parametrize(
    ("glob", "hint"),
    [
        ("delet_repo", "did you mean `delete_repo`?"),
        ("*_delet_*", "did you mean `*_delete_*`?"),
        ("zzz", "`multitap tools` lists all tools"),
        ("*_zzz_*", "`multitap tools` lists all tools"),
    ],
)
def test_a_rule_that_matches_none_says_what_was_probably_meant(glob, hint):
    (problem,) = warnings(rule("deny", tools=[glob]))

    assert problem.message == f"matches no tool: `{glob}`"
    assert (problem.key, problem.hint, problem.place.line) == ("policy[0]", hint, 3)


def test_an_allow_by_the_servers_own_name_says_what_is_missing():
    (problem,) = warnings(rule("allow", tools=["get_*"]))

    assert "beside `servers`" in problem.hint
    assert not warnings(rule("allow", tools=["get_*"], servers=["github"]))
    assert not warnings(own=[rule("allow", tools=["get_*"])])


def test_a_rule_may_be_about_a_server_whose_tools_are_not_known():
    assert not warnings(rule("deny", tools=["zzz"]), web=None)
    assert warnings(rule("deny", tools=["zzz"], servers=["git*"]), web=None)


def test_a_rule_about_no_server_is_idle_too():
    (problem,) = warnings(rule("deny", servers=["gihub"]), web=None)

    assert problem.message == "matches no server: `gihub`"
    assert problem.hint == "did you mean `github`?"


def test_rules_by_hints_alone_are_never_idle():
    assert not warnings(rule("ask", hints={"destructiveHint": True}))
