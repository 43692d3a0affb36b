"""What an expression chooses, and what no expression can do."""

import json
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.errors import BadArguments
from multitap.results.select import LARGEST, shape_result
from multitap.selectors import LONGEST, Selector, describe

ISSUES = {
    "total": 3,
    "items": [
        {
            "id": number,
            "title": f"title {number}",
            "user": {"login": "ada"},
            "labels": [{"name": "a"}],
        }
        for number in range(3)
    ],
}
# JMESPath once took what is not JSON for a string, and warns about it
pytestmark = pytest.mark.filterwarnings("ignore:deprecated string literal")
EXAMPLE = "items[].{id: id, title: title}"


def result(*texts, structured=None, **more):
    content = [{"type": "text", "text": text} for text in texts]
    members = {"content": content, **more}
    if structured is not None:
        members["structuredContent"] = structured
    return msgspec.json.encode(members)


def shaped(raw, expression):
    return json.loads(shape_result(raw, None if expression is None else Selector(expression)))


def chosen(raw, expression):
    """The value in the one text that is left."""
    (block,) = shaped(raw, expression)["content"]
    return json.loads(block["text"])


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(result(json.dumps(ISSUES, indent=2)), id="text"),
        pytest.param(result("3 issues", structured=ISSUES), id="structured"),
        pytest.param(result(structured=ISSUES), id="structured alone"),
        pytest.param(result(json.dumps(ISSUES), _meta={"a": 1}), id="with meta"),
    ],
)
def test_only_what_the_expression_names_is_left(raw):
    assert chosen(raw, EXAMPLE) == [{"id": n, "title": f"title {n}"} for n in range(3)]
    assert chosen(raw, "items[0].user.login") == "ada"
    # it would not match the tool's schema any more, and clients refuse such results
    assert "structuredContent" not in shaped(raw, EXAMPLE)


def test_blocks_of_json_are_a_list():
    assert chosen(result('{"id": 1}', '{"id": 2}'), "[].id") == [1, 2]


def test_blocks_that_are_not_text_stay():
    picture = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    raw = json.dumps({"content": [{"type": "text", "text": '{"a": 1, "b": 2}'}, picture]}).encode()

    assert shaped(raw, "a")["content"] == [{"type": "text", "text": "1"}, picture]


def test_members_that_are_not_content_stay():
    raw = result('{"a": 1}', _meta={"x": {"y": 1}}, resultType="complete", isError=False)

    assert shaped(raw, "a") == {
        "content": [{"type": "text", "text": "1"}],
        "_meta": {"x": {"y": 1}},
        "resultType": "complete",
        "isError": False,
    }


def test_a_failed_result_stays_as_it_is():
    raw = result('{"a": 1}', isError=True)

    assert shape_result(raw, Selector("b")) == raw
    assert shape_result(raw, None) == raw


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("nothing.here", "matches nothing"),
        ("length(total)", "`length` takes string or array or object, not number"),
        ("nonsense(total)", "Unknown function"),
    ],
)
def test_a_selector_that_fails_describes_the_result(expression, reason):
    outcome = shaped(result(json.dumps(ISSUES)), expression)

    (block,) = outcome["content"]
    assert reason in block["text"]
    assert "The call was made" in block["text"]  # so that nobody makes it again
    assert "items: list of 3, the first {id: number, title: string, " in block["text"]
    assert not outcome.get("isError")


def test_text_that_is_not_json_says_so():
    (block,) = shaped(result("all is well"), "a")["content"]

    assert "not JSON" in block["text"]


def test_a_result_that_is_too_large_says_so():
    (block,) = shaped(result(json.dumps(["x" * LARGEST])), "[0]")["content"]

    assert "more than 4 MB" in block["text"]


@pytest.mark.parametrize(
    "expression", ["", "x" * (LONGEST + 1), "items[", "a..b", "[?", "'", "a b", "(" * 1999]
)
def test_what_is_no_expression_is_refused_before_the_call(expression):
    with pytest.raises(BadArguments) as caught:
        Selector(expression)

    assert caught.value.path == "/select"
    assert len(str(caught.value)) < 500


def test_json_without_a_selector_loses_its_white_space_and_nothing_else():
    text = '{\n  "a": 1.00000000000000000001,\n  "b": [1, 12345678901234567890123]\n}'
    raw = result(text, "  plain\n  text", "{ not json", structured={"a": 1})

    outcome = shaped(raw, None)

    assert [block["text"] for block in outcome["content"]] == [
        '{"a":1.00000000000000000001,"b":[1,12345678901234567890123]}',
        "  plain\n  text",
        "{ not json",
    ]
    assert outcome["structuredContent"] == {"a": 1}


HOSTILE = {
    "doubles a list": "|".join(["[@,@]"] * 300),
    "doubles an object": "|".join(["{a:@,b:@}"] * 200),
    "doubles and flattens": "|".join(["[@,@][]"] * 240),
    "doubles a string": "|".join(["join('',[to_string(@),to_string(@)])"] * 50),
    "quotes a string again and again": "|".join(["to_string([@])"] * 140),
    "compares doubled lists": "[{0},{0}] | [0] == [1]".format("|".join(["[@,@]"] * 150)),
    "looks for a doubled list": "[[{0}],{0}] | contains([0],[1])".format("|".join(["[@,@]"] * 60)),
    "maps maps": "map(&map(&map(&map(&length(@),$),$),$),rows)".replace("$", "values(@)"),
    "every row with every row": "rows[].[*][].[*][].[*][].[*][].[*][]",
    "nests deeply": "[" * 600 + "@" + "]" * 600,
    "nests functions": "not_null(" * 190 + "@" + ")" * 190,
    "negates": "!" * 1900 + "@",
    "projects everything": "rows" + "[*]" * 600,
    "projects values": "*" + ".*" * 900,
    "flattens": "rows" + "[]" * 900,
    "filters everything": "rows" + "[?@]" * 50,
    "compares everything": "rows[?@==`1`||@==`2`||@==`3`||@==`4`||@==`5`]",
    "sorts": "sort(rows)",
    "sorts again and again": "|".join(["rows", *["sort(@)"] * 200]),
    "reverses": "|".join(["rows", *["reverse(@)"] * 40]),
    "merges": "|".join(["{a:@,b:@}", *["merge(@,{c:@,d:@})"] * 90]),
    "pipes": "|".join(["@"] * 999),
    "literal": "`" + "[" * 900 + "]" * 900 + "`",
}
LARGE = msgspec.json.encode(
    {
        "content": [],
        "structuredContent": {"rows": [number * 7919 % 100_003 for number in range(100_000)]},
    }
)


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_expression_takes_much_memory_or_never_ends(expression):
    ended = threading.Event()
    sizes = []

    def work():
        try:
            sizes.append(len(shape_result(LARGE, Selector(expression))))
        except BadArguments:
            sizes.append(0)
        ended.set()

    # a thread's stack is smaller than the main one, and the gateway works in threads
    threading.Thread(target=work, daemon=True).start()

    assert ended.wait(50)
    assert sizes[0] < 3 * len(LARGE)


def test_other_threads_run_while_a_selection_does():
    """Nothing holds the interpreter for long: the loop of a gateway runs on."""
    selectors = [Selector(HOSTILE[name]) for name in ("filters everything", "flattens", "reverses")]
    ended = threading.Event()

    def work():
        for selector in selectors:
            shape_result(LARGE, selector)
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    turns = 0
    while not ended.wait(0.001):
        turns += 1

    assert turns > 50


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_the_whole_value_can_be_chosen(value):
    raw = result(structured={"value": value})

    if value is not None:
        assert chosen(raw, "value") == value
    assert chosen(raw, "@") == {"value": value}


@given(json_values, st.text(max_size=60))
def test_any_text_is_refused_or_gives_a_valid_result(value, expression):
    raw = result(json.dumps(value))
    try:
        selector = Selector(expression)
    except BadArguments:
        return

    assert json.loads(shape_result(raw, selector))["content"]


@given(json_values)
def test_a_description_is_short(value):
    assert len(describe(value)) < 20_000
