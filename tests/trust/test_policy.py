"""Which rule decides about a call, and when it is known."""

import pytest

from multitap.config import Settings, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.config.problems import Place
from multitap.errors import BadArguments
from multitap.names import ToolNames
from multitap.trust.policy import Decision, Policy, hints_of

CALM = {"readOnlyHint": True}


def rule(decision, **fields):
    return PolicyRule(decision=decision, **fields)


def guard(*rules, shared=(), tool="write", annotations=None, **fields):
    config = StdioServer(command="files", policy=rules, **fields)
    policy = Policy(Settings(servers={"files": config}, policy=shared))
    return policy.guard(ToolNames(f"files_{tool}", tool, "files"), config, annotations or {})


def decided(found, arguments=b"{}"):
    return "allow" if found is None else found.decide(arguments).decision


def test_a_tool_without_rules_costs_nothing():
    assert guard() is None
    assert guard(rule("deny", tools=["read"])) is None


def test_the_first_rule_that_applies_decides():
    rules = (rule("allow", tools=["write"]), rule("deny"))

    assert decided(guard(*rules)) == "allow"
    assert decided(guard(*rules, tool="erase")) == "deny"


@pytest.mark.parametrize("own", Decision)
@pytest.mark.parametrize("shared", Decision)
def test_of_both_lists_the_stricter_decision_holds(own, shared):
    found = decided(guard(rule(own), shared=[rule(shared)]))

    assert found == max(own, shared, key=lambda one: one.severity)


def test_rules_choose_servers_and_tools_by_globs():
    shared = [rule("deny", servers=["git*"]), rule("ask", servers=["fil*"], tools=["w*"])]

    assert decided(guard(shared=shared)) == "ask"
    assert decided(guard(shared=shared, tool="read")) == "allow"


def test_a_tool_that_says_nothing_about_itself_counts_as_dangerous():
    assert hints_of({}) == {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": False,
        "openWorldHint": True,
    }
    assert hints_of(CALM)["destructiveHint"] is False
    assert hints_of({"destructiveHint": "no"})["destructiveHint"] is True


def test_rules_go_by_annotations():
    careful = rule("ask", hints={"destructiveHint": True})

    assert decided(guard(careful)) == "ask"
    assert guard(careful, annotations=CALM) is None


def test_a_tool_that_is_always_denied_is_known_before_any_call():
    big = {"size": {"above": 5}}

    assert guard(rule("deny")).is_closed
    assert guard(rule("deny", arguments=big), rule("deny")).is_closed
    assert not guard(rule("allow", arguments=big), rule("deny")).is_closed
    assert not guard(rule("deny", arguments=big)).is_closed
    assert guard(rule("allow", arguments=big), shared=[rule("deny")]).is_closed


def test_all_conditions_of_a_rule_have_to_hold():
    found = guard(rule("deny", arguments={"a": {"one_of": ["x"]}, "b": {"above": 3, "below": 9}}))

    assert decided(found, b'{"a":"x","b":5}') == "deny"
    assert decided(found, b'{"a":"y","b":5}') == "allow"
    assert decided(found, b'{"a":"x","b":10}') == "allow"
    assert decided(found, b'{"a":"x"}') == "allow"


CASES = [
    ({"one_of": ["x", 5, True]}, b'{"a":"x"}', True),
    ({"one_of": ["x", 5, True]}, b'{"a":5.0}', True),
    ({"one_of": ["x", 5, True]}, b'{"a":"5"}', True),
    ({"one_of": ["x", 5, True]}, b'{"a":true}', True),
    ({"one_of": ["x", 5, True]}, b'{"a":false}', False),
    ({"none_of": ["x"]}, b'{"a":"y"}', True),
    ({"none_of": ["x"]}, b'{"a":"x"}', False),
    ({"matches": "(?i)^drop "}, b'{"a":"Drop table"}', True),
    ({"matches": "(?i)^drop "}, b'{"a":"select 1"}', False),
    ({"longer_than": 3}, b'{"a":"four"}', True),
    ({"longer_than": 3}, b'{"a":[1,2,3]}', False),
    ({"longer_than": 3}, b'{"a":[1,2,3,4]}', True),
    ({"above": 10}, b'{"a":10.5}', True),
    ({"above": 10}, b'{"a":" 11 "}', True),
    ({"above": 10}, b'{"a":1e400}', True),
    ({"below": 0}, b'{"a":-1}', True),
    ({"below": 0}, b'{"a":0}', False),
    ({"given": True}, b'{"a":0}', True),
    ({"given": True}, b'{"a":null}', False),
    ({"given": False}, b"{}", True),
]


@pytest.mark.parametrize(("test", "arguments", "holds"), CASES)
def test_tests_of_arguments(test, arguments, holds):
    expected = "deny" if holds else "allow"

    assert decided(guard(rule("deny", arguments={"a": test})), arguments) == expected


def test_nested_arguments_and_items_are_found():
    found = guard(rule("deny", arguments={"edits[*].to.path": {"one_of": ["x"]}}))

    assert decided(found, b'{"edits":[{"to":{"path":"y"}},{"to":{"path":"x"}}]}') == "deny"
    assert decided(found, b'{"edits":[{"to":{"path":"y"}},{"to":null},null]}') == "allow"
    assert decided(found, b'{"edits":[]}') == "allow"


def test_one_item_is_enough_to_deny_and_all_are_needed_to_allow():
    known = {"paths[*]": {"one_of": ["x"]}}
    allows = guard(rule("allow", arguments=known), rule("deny"))
    denies = guard(rule("deny", arguments=known))

    assert decided(allows, b'{"paths":["x","x"]}') == "allow"
    assert decided(allows, b'{"paths":["x","y"]}') == "deny"
    assert decided(allows, b'{"paths":[]}') == "deny"
    assert decided(denies, b'{"paths":["y","x"]}') == "deny"


@pytest.mark.parametrize(
    "arguments", [b'{"a":{"b":1}}', b'{"a":["x"]}', b'{"A":"x"}', b'{"a":"x","A":"y"}']
)
@pytest.mark.parametrize(
    "test",
    [
        {"one_of": ["q"]},
        {"matches": "q"},
        {"above": 1},
        {"host_in": ["q.example"]},
        {"inside": ["/"]},
    ],
)
def test_what_cannot_be_judged_opens_no_door(test, arguments):
    wanted = {"a": test}

    assert decided(guard(rule("deny", arguments=wanted)), arguments) == "deny"
    assert decided(guard(rule("allow", arguments=wanted), rule("deny")), arguments) == "deny"


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"path":"/a","path":"/b"}',
        b'{"path":"/a","p\\u0061th":"/b"}',
        b'{"other":{"x":1,"x":2},"path":"/a"}',
        b'{"path":NaN}',
        b'{"path":"\xff"}',
        b"[1]",
        b'"text"',
        b"{" * 100_000,
        b'{"path":' + b"1" * 5000 + b"}",
    ],
)
def test_arguments_that_parsers_read_differently_are_refused(arguments):
    found = guard(rule("deny", arguments={"path": {"outside": ["/a"]}}))

    with pytest.raises(BadArguments):
        found.decide(arguments)


def test_arguments_that_no_rule_looks_at_are_not_decoded():
    assert decided(guard(rule("ask")), b"not JSON") == "ask"


def test_a_moved_rule_is_the_same_rule(tmp_path):
    one, other = (rule("deny").at(Place(tmp_path, line)) for line in (3, 7))

    assert one == other
    assert other.place.line == 7
    assert other.replace().place.line == 7


def test_rules_without_any_test_or_with_a_wrong_path_are_refused():
    for arguments in ({"a": {}}, {"a..b": {"given": True}}, {"a[0]": {"given": True}}):
        with pytest.raises(ValueError, match=r"needs one of|is not an argument"):
            rule("deny", arguments=arguments)
    with pytest.raises(ValueError, match="is not a host"):
        rule("deny", arguments={"url": {"host_in": ["http://a b"]}})
    with pytest.raises(ValueError, match="regular expression"):
        rule("deny", arguments={"q": {"matches": "(?<!a)b"}})
