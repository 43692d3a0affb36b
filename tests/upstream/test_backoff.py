from random import Random

from hypothesis import given
from hypothesis import strategies as st

from multitap.upstream.backoff import BURST, CEILING, PAUSE, PROVED, Restarts


def crash(restarts, now):
    restarts.on_started(now)
    return restarts.on_lost(now, healthy_for=0.0)


def test_the_first_restart_of_a_server_that_was_up_comes_at_once():
    assert crash(Restarts(), 0.0) == 0.0


def test_a_server_that_never_came_up_is_not_tried_again_at_once():
    assert 0 < Restarts(Random(1)).on_lost(0.0, healthy_for=None) <= 1.0


@given(st.integers())
def test_waits_stay_below_a_growing_ceiling(seed):
    restarts = Restarts(Random(seed))
    now, waits = 0.0, []
    for _ in range(12):
        now += 1000  # far enough apart not to trip the breaker
        waits.append(crash(restarts, now))

    assert waits[0] == 0
    assert all(0 <= wait <= min(2**n, CEILING) for n, wait in enumerate(waits[1:]))


def test_a_crash_loop_gets_six_starts_and_then_a_pause():
    restarts = Restarts()
    waits = [crash(restarts, float(n)) for n in range(BURST + 1)]

    assert waits[-1] == PAUSE
    assert max(waits[:-1]) < PAUSE


def test_after_the_pause_one_more_start_decides():
    restarts = Restarts()
    for n in range(BURST + 1):
        crash(restarts, float(n))

    assert crash(restarts, 70.0) == 2 * PAUSE


def test_a_minute_of_health_clears_the_past():
    restarts = Restarts()
    for n in range(BURST):
        crash(restarts, float(n))
    restarts.on_started(10.0)

    assert restarts.on_lost(10.0 + PROVED, healthy_for=PROVED) == 0.0


def test_less_than_a_minute_of_health_does_not():
    restarts = Restarts(Random(1))
    for n in range(BURST):
        crash(restarts, float(n))
    restarts.on_started(10.0)

    assert restarts.on_lost(15.0, healthy_for=5.0) == PAUSE
