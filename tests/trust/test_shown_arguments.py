"""What a person sees of a call's arguments before they decide."""

import json
import re
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.redaction import Redactor
from multitap.trust.arguments import find_places
from multitap.trust.shown_arguments import LONGEST, show_arguments, write_lines

SECRET = "hunter2hunter2"
REDACT = Redactor([SECRET])
# what is long repeats itself: drawing every character takes longer than all the rest
texts = st.builds(mul, st.text(max_size=20), st.sampled_from([1, 1, 100]))
names = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: (
        st.builds(mul, st.lists(inner, max_size=4), st.sampled_from([1, 20]))
        | st.dictionaries(names, inner, max_size=8)
    ),
    max_leaves=12,
)


def show(arguments, **more):
    return show_arguments(arguments, REDACT, **more)


def size(value):
    return len(json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"path": "/a", "text": "x" * 2500, "deep": {"a": [1, 2.5, None, True, {"b": []}]}},
        {f"name{number}": number for number in range(120)},
        {"items": [*range(500)]},
    ],
    ids=["none", "a long text", "many", "a long list"],
)
def test_what_there_is_room_for_is_shown_in_full(arguments):
    assert show(arguments) == arguments


def test_arguments_that_are_left_out_are_counted_and_named():
    arguments = {f"name{number}": "x" * 200 for number in range(51)}
    shown = show(arguments)

    *whole, (last, words) = shown.items()
    assert all(arguments[name] == text for name, text in whole[:5])
    assert last == f"… {51 - len(whole)} more arguments"
    assert re.match(r"left out \([\d,]+ characters\): name\d+, ", words)


def test_items_that_are_left_out_are_counted():
    shown = show({"paths": [f"/folder/{number}" for number in range(5000)]})["paths"]

    assert shown[:2] == ["/folder/0", "/folder/1"]
    left = int(
        re.match(r"… ([\d,]+) items left out \([\d,]+ characters\)", shown[-1])[1].replace(",", "")
    )
    assert left + len(shown) - 1 == 5000


def test_of_a_long_text_both_ends_are_shown_and_the_rest_is_counted():
    text = "begin" + "x" * 90_000 + "end"
    shown = show({"text": text})["text"]

    assert shown.startswith("begin")
    assert shown.endswith("end")
    left = int(re.search(r"… \(([\d,]+) characters left out\) …", shown)[1].replace(",", ""))
    assert left + shown.count("x") + len("beginend") == len(text)


def test_what_is_too_deep_is_counted():
    deep = {"end": [1, 2]}
    for _ in range(20):
        deep = {"in": deep}

    assert "… 1 member left out (" in json.dumps(show({"deep": deep}), ensure_ascii=False)


def test_a_long_argument_hides_none_of_those_after_it():
    shown = show({"filler": "x" * 100_000, "list": [*range(100_000)], "command": "rm -rf /"})

    assert shown["command"] == "rm -rf /"


def test_names_that_look_the_same_once_they_are_shortened_are_all_shown():
    arguments = {f"{'n' * 9000}{number}{'n' * 9000}": number for number in range(3)}
    arguments |= {"a\x00": "one", "a\x01": "two"}

    assert {"one", "two"} <= {*map(str, show(arguments).values())}
    assert len(show(arguments)) == 5


@given(st.dictionaries(names, values, max_size=12) | st.dictionaries(names, texts, max_size=60))
def test_nothing_is_left_out_without_a_word(arguments):
    shown = show(arguments)
    text = json.dumps(shown, ensure_ascii=False)

    assert len(shown) == len(arguments) or "more argument" in text
    if size(arguments) > 2 * LONGEST:
        assert "left out" in text or "***" in text
    assert len(write_lines(shown)) < 4000  # where the terminal cuts a question


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", SECRET[:7]),
        ("apiKey", ["one", "two"]),
        ("credentials", {"user": "ada", "value": "lovelace"}),
        ("pin", 1234),
        ("text", f"x{SECRET}x"),
        ("text", "x" * 5000 + SECRET + "y" * 5000 + SECRET),
        ("url", "https://ada:lovelace1815@example.com/"),
        ("note", "ghp_" + "a1" * 20),
    ],
)
def test_secrets_are_not_shown(name, value):
    text = json.dumps(show({"options": {name: value}}))

    assert "***" in text
    for secret in (SECRET, "one", "lovelace", "1234", "a1a1a1"):
        assert secret not in text.replace("0123456789", "")


def rule(**arguments):
    return PolicyRule(decision="ask", arguments=arguments)


def places(wanted, arguments):
    return find_places(wanted, StdioServer(command="x"), arguments)


def test_what_a_rule_looks_at_comes_first():
    filler = {f"name{number}": "x" * 200 for number in range(200)}
    arguments = {**filler, "to": {**filler, "path": "/etc/passwd"}}
    looked_at = rule(**{"to.path": {"matches": "etc"}})
    shown = show(arguments, first=places(looked_at, arguments))

    assert next(iter(shown)) == "to"
    assert next(iter(shown["to"].items())) == ("path", "/etc/passwd")


def test_the_item_that_made_a_rule_apply_is_shown_wherever_it_is():
    edits = [{"text": "x" * 100, "path": f"/work/{number}"} for number in range(2000)]
    edits[1234]["path"] = "/etc/passwd"
    arguments = {"edits": edits}
    looked_at = rule(**{"edits[*].path": {"matches": "^/etc"}})
    shown = show(arguments, first=places(looked_at, arguments))["edits"]

    (at,) = [at for at, item in enumerate(shown) if "passwd" in str(item)]
    assert shown[at - 1].startswith("… 1,2")
    assert shown[at + 1].startswith("… 765 items left out")


def test_every_reading_of_a_name_counts_as_looked_at():
    arguments = {"a": 1, "PATH": "/x", "path": "/y"}

    assert places(rule(path={"matches": "x"}), arguments) == [("PATH",), ("path",)]
    assert places(rule(**{"path[*]": {"matches": "x"}}), arguments) == [("PATH",), ("path",)]
    assert places(rule(none={"given": False}), arguments) == []
