"""When a call has to be over."""

import math

import pytest

from multitap.wire.request import Deadline


def test_a_sign_of_life_gives_more_time_up_to_the_hard_limit():
    deadline = Deadline.since(100, 10, 25)
    times = [deadline.at]
    for now in (105, 112, 124):
        deadline.renew(now)
        times.append(deadline.at)

    assert times == [110, 115, 122, 125]


@pytest.mark.parametrize(
    ("timeout", "hard", "now", "words"),
    [
        pytest.param(4, 600, 101, "no answer to 'm' within 4 s", id="timeout"),
        pytest.param(4, 5, 104, "'m' did not end within its hard limit of 5 s", id="hard"),
        pytest.param(4, 4, 100, "no answer to 'm' within 4 s", id="both"),
    ],
)
def test_the_limit_that_was_reached_is_named_as_it_is_configured(timeout, hard, now, words):
    deadline = Deadline.since(100, timeout, hard)
    deadline.renew(now)

    assert deadline.words("m") == words


def test_without_limits_there_is_no_end():
    deadline = Deadline.since(100, None, None)
    deadline.renew(200)

    assert deadline.at == math.inf
