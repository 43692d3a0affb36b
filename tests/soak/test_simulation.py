"""The simulated hub at full size: many seeds, many steps each."""

import logging
import os
from collections import Counter
from random import Random

import pytest

from tests.simulation.driver import play, random_steps

SEEDS = int(os.environ.get("SEEDS", "10000"))
STEPS = int(os.environ.get("STEPS", "200"))
PARTS = 100
"""For several processes to share."""


@pytest.fixture(autouse=True)
def _no_logs():
    """What pytest keeps of them would keep every simulated hub alive, and cost more each time."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_call_has_one_honest_outcome_and_nothing_is_left(part, figures):
    outcomes = Counter()
    seeds = range(part, SEEDS, PARTS)
    for seed in seeds:
        try:
            outcomes += play(random_steps(Random(seed), STEPS), seed).outcomes
        except BaseException as exc:
            exc.add_note(f"seed {seed}, {STEPS} steps")
            raise
    figures(seeds=len(seeds), steps=len(seeds) * STEPS, calls=outcomes.total(), **outcomes)
