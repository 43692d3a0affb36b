"""What is left of a result that is too long: valid JSON, whole rows, and a count of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.results.cutting import NOT_KEPT, Handle, cut_json, cut_text
from multitap.results.select import cut_result

HANDLE = Handle("abc")
ROWS = [{"id": number, "body": "x" * 50} for number in range(100)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner, max_size=8)
    ),
    max_leaves=60,
)


@pytest.mark.parametrize(
    ("value", "rows_of", "where"),
    [
        pytest.param(ROWS, lambda cut: cut["rows"], None, id="list"),
        pytest.param(
            {"total": 100, "items": ROWS}, lambda cut: cut["items"], "items", id="in an object"
        ),
        pytest.param(
            {"data": {"search": {"nodes": ROWS}}, "ok": True},
            lambda cut: cut["data"]["search"]["nodes"],
            "data.search.nodes",
            id="deep",
        ),
    ],
)
def test_whole_rows_are_shown_and_counted(value, rows_of, where):
    cut = json.loads(cut_json(value, 1000, HANDLE).text)
    note = cut["_cut"]

    assert rows_of(cut) == ROWS[: note["shown"]]
    assert 5 < note["shown"] < 20
    assert note["of"] == 100
    assert note.get("in") == where
    assert (note["result"], note["next"]) == ("abc", note["shown"])


def test_reading_on_shows_each_row_once():
    rows, start = [], 0
    while start is not None:
        cut = json.loads(cut_json({"items": ROWS}, 1000, HANDLE, start).text)
        rows += cut["items"]
        start = cut["_cut"].get("next")

    assert rows == ROWS


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x" * 100_000, id="a long text"),
        pytest.param({"body": "x" * 100_000}, id="a long member"),
        pytest.param([{"body": "x" * 100_000}] * 3, id="long rows"),
        pytest.param({str(number): {"a": "x" * 90} for number in range(900)}, id="many members"),
    ],
)
def test_what_has_no_short_rows_becomes_an_excerpt(value):
    piece = cut_json(value, 2000, HANDLE)
    cut = json.loads(piece.text)

    assert len(piece.text) <= 2200
    assert cut["_cut"]["of"] == len(json.dumps(value, separators=(",", ":")))
    assert cut["_cut"]["result"] == "abc"


@given(JSON, st.integers(100, 3000), st.integers(0, 5))
def test_any_value_stays_json_and_fits(value, room, start):
    piece = cut_json(value, room, HANDLE, start)
    whole = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())

    json.loads(piece.text)
    if not piece.is_cut:
        assert json.loads(piece.text) == value
    assert len(piece.text.encode()) <= max(room, 200) + 1200 or whole <= room


def test_a_text_is_cut_at_a_line_and_read_on():
    text = "\n".join(f"line {number}" for number in range(1000))
    read, start = "", 0
    while start < len(text):
        piece = cut_text(text, 500, HANDLE, start)
        shown, _, note = (
            piece.text.rpartition("\n… ") if "\n… " in piece.text else (piece.text, "", "")
        )
        read += shown
        assert not note or shown.endswith("\n")
        start += len(shown)

    assert read == text


def test_what_is_not_kept_names_no_handle():
    assert "result" not in json.loads(cut_json(ROWS, 500, NOT_KEPT).text)["_cut"]
    assert "read_result" not in cut_text("x" * 900, 500, NOT_KEPT).text


def test_huge_results_are_cut_without_being_decoded():
    raw = json.dumps({"content": [{"type": "text", "text": "line\n" * 1_000_000}]}).encode()
    first, is_cut = cut_result(raw, 1000, HANDLE)
    text = json.loads(first)["content"][0]["text"]

    assert is_cut
    assert len(text) < 1200
    assert "from 1000" in text
