"""A random attack of each kind; `make attack` tries them for minutes."""

import pytest

from multitap.sandbox.levels import sandbox_support
from tests.attacks.redteam.attack import try_attack
from tests.attacks.redteam.campaign import ATTACKS
from tests.cluster.redis_server import PROGRAM

CONFINING = {
    "a program called docker is not confined",
    "a confined project leaves its folder",
    "a confined program changes files outside",
    "a server inherits another one's home",
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_nothing_runs_leaves_or_is_seen(name):
    if name in CONFINING and (reason := sandbox_support().reason):
        pytest.skip(reason)
    if "Redis" in name and PROGRAM is None:
        pytest.skip("there is no redis-server")

    outcome = try_attack(ATTACKS[name], seed=1, examples=1)

    assert not outcome.breach, f"{outcome.breach}\n{outcome.parts}"
    assert outcome.void < outcome.tried, outcome.why_void
