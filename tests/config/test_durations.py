import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config.durations import seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", 30),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("2d", 172800),
        (" 5s ", 5),
        ("0s", 0),
    ],
)
def test_a_text_says_its_own_units(text, expected):
    assert seconds(text) == expected
    assert seconds(text, bare="ms") == expected


@pytest.mark.parametrize(
    "value",
    [
        "30",
        "s",
        "",
        "1s 30",
        "-5s",
        "1e3s",
        "٣s",
        "5 s",
        "1m30",
        None,
        True,
        [],
        float("nan"),
        float("inf"),
    ],
)
def test_anything_else_is_refused(value):
    with pytest.raises(ValueError, match="expected"):
        seconds(value, bare="s")


def test_a_bare_number_has_the_unit_of_its_dialect_or_none_at_all():
    assert seconds(500, bare="ms") == 0.5
    assert seconds(500, bare="s") == 500
    with pytest.raises(ValueError, match="a duration such as"):
        seconds(500)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 999))
def test_parts_add_up(minutes, whole, thousandths):
    assert seconds(f"{minutes}m{whole}s{thousandths}ms") == pytest.approx(
        minutes * 60 + whole + thousandths / 1000
    )
