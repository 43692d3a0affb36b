"""How many requests one client may make."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from multitap.http.server.rate_limit import Rate, RateLimit


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/min", (100, 60)),
        ("1/s", (1, 1)),
        (" 5 / H ", (5, 3600)),
        ("7/day", (7, 86400)),
        ("10/minute", (10, 60)),
    ],
)
def test_a_rate_is_a_number_in_a_span_of_time(text, rate):
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "100", "/min", "0/s", "-1/s", "1.5/s", "1/fortnight", "٣/s"])
def test_what_is_no_rate_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="100/min"):
        Rate.parse(text)


def test_all_of_a_rate_may_be_used_at_once_and_comes_back_evenly():
    limit = RateLimit(Rate(3, 60))

    assert [limit.take(1000.0) for _ in range(3)] == [0, 0, 0]
    assert limit.take(1000.0) == pytest.approx(20)
    assert limit.take(1019.0) == pytest.approx(1)
    assert limit.take(1020.0) == 0
    assert limit.take(1020.0) == pytest.approx(20)
    assert [limit.take(2000.0) for _ in range(3)] == [0, 0, 0]
    assert limit.take(2000.0) > 0


@given(
    some.integers(1, 50),
    some.floats(0.5, 100),
    some.lists(some.floats(0, 20), min_size=1, max_size=200),
)
def test_no_span_of_that_length_has_more_than_twice_the_rate(requests, seconds, pauses):
    limit, now, made = RateLimit(Rate(requests, seconds)), 0.0, []
    for pause in pauses:
        now += pause
        if not limit.take(now):
            made.append(now)

    for begin in made:
        assert sum(begin <= at < begin + seconds for at in made) <= 2 * requests
    assert made[0] == pauses[0]
