"""Whoever takes all they can get, the others get theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis import strategies as st

from multitap.limits import Rate, RateLimit, Shares


def take_all(shares, holder):
    count = 0
    while shares.take(holder):
        count += 1
    return count


def test_each_who_takes_all_they_can_leaves_something_to_the_next():
    shares = Shares(1024, "things")

    assert [take_all(shares, holder) for holder in "abcde"] == [768, 192, 48, 12, 3]


def test_a_few_of_something_can_all_be_had():
    assert [take_all(Shares(most, "things"), "a") for most in range(6)] == [0, 1, 2, 3, 3, 4]


def test_what_is_given_back_can_be_had_again():
    shares = Shares(8, "things")
    taken = take_all(shares, "a")
    for _ in range(taken):
        shares.give("a")

    assert shares.total == 0
    assert take_all(shares, "b") == taken


def test_a_refusal_names_the_limit():
    shares = Shares(8, "things")
    take_all(shares, "a")

    assert shares.refusal("a") == "one client already has 6 of the 8 things"
    take_all(shares, "b")
    take_all(shares, "c")
    assert shares.refusal("d") == "all 8 things are in use"


@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.booleans()), max_size=60),
)
def test_there_is_never_more_than_there_is_and_a_newcomer_gets_the_first_of_what_is_free(
    most, steps
):
    shares, held = Shares(most, "things"), dict.fromkeys("abc", 0)
    for holder, amount, taking in steps:
        if taking:
            if shares.take(holder, amount):
                held[holder] += amount
        elif held[holder]:
            shares.give(holder, min(amount, held[holder]))
            held[holder] -= min(amount, held[holder])

        assert shares.total == sum(held.values()) <= most
    if shares.total < most:
        assert shares.take("d")


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
