"""When a call has to be over."""

import pytest

from multitap import CallContext
from multitap.hub.routes import limits


@pytest.mark.parametrize(
    ("configured", "own", "at", "latest"),
    [
        pytest.param((30.0, 300.0), {}, 130.0, 400.0, id="configured"),
        pytest.param((None, 300.0), {}, 400.0, 400.0, id="hard limit only"),
        pytest.param((30.0, 10.0), {}, 130.0, 130.0, id="hard limit below the other"),
        pytest.param((30.0, 300.0), {"timeout": 5.0}, 105.0, 400.0, id="shorter for a caller"),
        pytest.param((30.0, 300.0), {"timeout": 500.0}, 600.0, 600.0, id="longer for a caller"),
        pytest.param((30.0, 300.0), {"hard_timeout": 60.0}, 130.0, 160.0, id="hard for a caller"),
    ],
)
def test_the_deadline_of_a_call_follows_from_the_callers_limits_then_the_configured_ones(
    configured, own, at, latest
):
    deadline = limits(*configured, is_chosen=True).deadline(CallContext(**own), since=100.0)

    assert (deadline.at, deadline.latest) == (at, latest)


@pytest.mark.parametrize(
    ("timeout", "own", "latest"),
    [
        pytest.param(3.0, {}, 130.0, id="ten times a short timeout"),
        pytest.param(100.0, {}, 700.0, id="600 s at most"),
        pytest.param(900.0, {}, 1000.0, id="never less than the timeout"),
        pytest.param(30.0, {"timeout": 2.0}, 120.0, id="ten times the caller's"),
        pytest.param(3.0, {"timeout": 90.0}, 700.0, id="600 s at most for a caller"),
        pytest.param(3.0, {"hard_timeout": 400.0}, 500.0, id="what the caller says"),
    ],
)
def test_progress_extends_a_call_to_ten_times_its_timeout(timeout, own, latest):
    deadline = limits(timeout, 600.0, is_chosen=False).deadline(CallContext(**own), since=100.0)

    assert deadline.latest == latest
