"""Programs of jq choose what they should, and reach nothing."""

import json
import threading

import pytest

from multitap.errors import BadArguments
from multitap.results.select import shape_result
from multitap.selectors import LONGEST, Selector

ISSUES = {"total": 3, "items": [{"id": number, "title": f"title {number}"} for number in range(3)]}


def shaped(program, value=ISSUES):
    raw = json.dumps({"content": [], "structuredContent": value}).encode()
    (block,) = json.loads(shape_result(raw, Selector(f"jq:{program}")))["content"]
    return block["text"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (".items | map(.id)", [0, 1, 2]),
        (".items[].title", ["title 0", "title 1", "title 2"]),
        (".total", 3),
        ("[.items[] | select(.id > 0) | {id}]", [{"id": 1}, {"id": 2}]),
    ],
)
def test_a_program_chooses(program, expected):
    assert json.loads(shaped(program)) == expected


def test_an_old_spelling_is_valid_where_warnings_are_errors():
    raw = json.dumps({"content": [], "structuredContent": {"a": 1}}).encode()

    assert b"old" in shape_result(raw, Selector("`old`"))


@pytest.mark.parametrize("program", ["", "." * (LONGEST + 1)])
def test_an_empty_or_endless_program_is_refused_before_the_call(program):
    with pytest.raises(BadArguments, match="characters"):
        Selector(f"jq:{program}")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param(".items[", "syntax error", id="a mistake"),
        pytest.param("empty", "matches nothing", id="nothing"),
        pytest.param(".items.id", "Cannot index array", id="another shape"),
        pytest.param('error("no\\nthanks")', "no", id="its own error"),
        pytest.param("halt_error", "matches nothing", id="an end"),
    ],
)
def test_a_program_that_fails_describes_the_result(program, reason):
    text = shaped(program)

    assert reason in text
    assert "items: list of 3, the first {id: number, title: string}" in text


HOSTILE = {
    "never ends": "[range(infinite)]",
    "calls itself": "def f: f; f",
    "calls itself deeper": "def f: 1 + f; f",
    "counts": "reduce range(1e12) as $i (0; . + 1)",
    "one long string": '"a" * 1e9',
    "doubles a string": "reduce range(60) as $i (tojson; . + .)",
    "doubles a list": "reduce range(60) as $i ([.]; [., .])",
    "repeats": '[repeat("x")]',
    "combines": "[range(1000)] | [., ., ., ., .] | [combinations]",
    "a long list": "[limit(1e9; repeat(0))]",
    "backtracks": '"a" * 40 + "b" | test("(a|a)*$")',
    "nests": "[" * 900 + "1" + "]" * 900,
    "nests functions": "(" * 900 + "." + ")" * 900,
    "an index": "[] | .[1e8] = 1",
    "sorts": "[range(5e6) | -.] | sort",
    "groups": "[range(3e6)] | group_by(. % 7)",
    "large numbers": "9" * 1500 + " * 1e308 | tostring",
    "odd letters": '"\\u0000\\uffff" * 1000 | explode | implode | @base32d',
    "formats": '"%s%n" * 1000 | @sh | @uri | @csv',
    "an unknown option": "input | input | $__prog_args",
}


LONG = {"calls itself", "counts", "doubles a list", "repeats", "combines", "sorts", "groups"}
"""Those that take the two seconds of processor time that there are, as "never ends" does."""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name, marks=pytest.mark.wide if name in LONG else ())
        for name, program in HOSTILE.items()
    ],
)
def test_no_program_ends_or_stops_anything_but_itself(program):
    ended, texts = threading.Event(), []

    def work():
        texts.append(shaped(program))
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    turns = 0
    while not ended.wait(0.01):
        turns += 1

    assert len(texts[0]) < 100_000
    assert turns  # of this thread, while it works


@pytest.mark.parametrize("program", ["env", "$ENV", "env | keys", "[$ENV[]] | length"])
def test_the_environment_is_empty(program, monkeypatch):
    monkeypatch.setenv("PASSWORD", "xyzzy")

    text = shaped(program)

    assert "PASSWORD" not in text
    assert "xyzzy" not in text
    assert "HOME" not in text


@pytest.mark.parametrize(
    "program",
    [
        'import "secret" as $s {{search: "{folder}"}}; $s',
        'import "secret" as s {{search: "{folder}"}}; s::secret',
        'include "secret" {{search: "{folder}"}}; secret',
        '"secret" | modulemeta',
        '"{folder}/secret" | modulemeta',
        "input_filename, get_search_list",
    ],
)
def test_no_file_can_be_read(program, tmp_path):
    (tmp_path / "secret.json").write_text('{"password": "xyzzy"}')
    (tmp_path / "secret.jq").write_text('def secret: "xyzzy";')

    assert "xyzzy" not in shaped(program.format(folder=tmp_path))
