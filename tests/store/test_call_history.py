"""Calls added up over time, as plots show them."""

import time

from multitap.events import Outcome
from multitap.store import CallRecord, open_store
from multitap.store.queries import MOST_SPANS, POINTS


def call(at, tool="add", outcome=Outcome.OK, seconds=0.5):
    return CallRecord(at, "calc", tool, seconds, outcome)


def counted(history):
    return {
        one.tool: (sum(step.calls for step in one.steps), sum(step.errors for step in one.steps))
        for one in history.tools
    }


async def test_calls_and_errors_are_added_up_once_however_often_one_asks(tmp_path):
    now = time.time()
    async with open_store(tmp_path) as store:
        for age in (1, 100, 899, 2000):
            store.log_call(call(now - age))
        store.log_call(call(now - 100, outcome=Outcome.TIMEOUT, seconds=2.0))
        store.log_call(call(now - 50, "sub", Outcome.REFUSED, 9.0))
        first = await store.history(900)
        store.log_call(call(time.time()))
        again = await store.history(900)
        third = await store.history(900)

    assert counted(first)["sub"] == (1, 0)
    assert counted(again)["add"][0] == counted(first)["add"][0] + 1
    assert counted(third) == counted(again)
    assert counted(again)["add"][1] == 1
    assert again.step == 900 / POINTS
    assert all(0 <= step.step < POINTS for one in again.tools for step in one.steps)
    (refused,) = (one for one in again.tools if one.tool == "sub")
    assert refused.steps[0].slowest == 0
    slow = max(step.slowest for one in again.tools for step in one.steps)
    assert slow == 2.0


async def test_spans_of_every_length_are_answered_and_few_are_kept(tmp_path):
    async with open_store(tmp_path) as store:
        store.log_call(call(time.time()))
        for span in (0, -5, 1e12, *range(60, 60 * (MOST_SPANS + 4), 60)):
            assert counted(await store.history(span)) == {"add": (1, 0)}


async def test_the_mean_is_that_of_all_calls_of_a_step_whenever_they_were_counted(tmp_path):
    at = time.time()
    async with open_store(tmp_path) as store:
        store.log_call(call(at, seconds=1.0))
        await store.history(86_400)
        store.log_call(call(at, seconds=2.0))
        store.log_call(call(at, seconds=6.0))
        store.log_call(call(at, outcome=Outcome.CANCELLED, seconds=100.0))
        ((found,),) = [one.steps for one in (await store.history(86_400)).tools]

    assert (found.calls, found.mean, found.slowest) == (4, 3.0, 6.0)
