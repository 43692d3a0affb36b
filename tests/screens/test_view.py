"""Figures as all screens show them."""

import pytest

from multitap.screens.view import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.000256, "256 µs"),
        (0.0009999, "1 ms"),
        (0.00167, "1.67 ms"),
        (0.99999, "1 s"),
        (90, "2 min"),
    ],
)
def test_a_duration_has_about_three_digits(seconds, text):
    assert duration(seconds) == text
