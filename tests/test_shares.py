"""Whoever takes all they can get, the others get theirs."""

from hypothesis import given
from hypothesis import strategies as st

from multitap.shares import Shares


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
