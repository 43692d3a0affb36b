"""What an attack is: cases made of parts, a stage to try them on, and what counts as a breach."""

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

SHRINKING = 25.0
"""Seconds to make a finding smaller; each try runs real commands."""


class Breach(Exception):
    """Something ran, left or was seen that must not; says what."""


class Void(Exception):
    """The case did not get as far as its target, so it says nothing; says why."""


@dataclass(frozen=True)
class Attack:
    """One kind of attack."""

    name: str
    cases: SearchStrategy[Any]
    stage: Callable[[], AbstractContextManager[Callable[[Any], None]]]
    """Sets up what is attacked; its value tries one case, and raises `Breach` or `Void`."""
    examples: int = 4
    """How many cases are tried on one stage."""


@dataclass
class Outcome:
    """What became of an attack."""

    attack: str
    seed: int
    tried: int = 0
    void: int = 0
    why_void: str = ""
    breach: str = ""
    parts: str = ""
    """The smallest case that was found."""


def try_attack(attack, seed, examples=None):
    """Try an attack with the cases of a seed."""
    outcome = Outcome(attack.name, seed)
    results = {}
    until = None

    def attempt(case):
        nonlocal until
        key = repr(case)
        if key not in results:
            if until is not None and time.monotonic() > until:
                return  # small enough
            outcome.tried += 1
            results[key] = _result(run, case)
        result = results[key]
        if isinstance(result, Void):
            outcome.void, outcome.why_void = outcome.void + 1, str(result)
        elif result is not None:
            if until is None:
                until = time.monotonic() + SHRINKING
            outcome.breach, outcome.parts = str(result), key
            raise result

    checked = settings(
        max_examples=examples or attack.examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[*HealthCheck],
        report_multiple_bugs=False,
    )(hypothesis.seed(seed)(hypothesis.given(attack.cases)(attempt)))
    with attack.stage() as run, suppress(Breach):  # the outcome has it
        checked()
    return outcome


def _result(run, case):
    # a case may use random numbers of the library under attack, which hypothesis counts
    state = random.getstate()
    try:
        run(case)
    except (Breach, Void) as exc:
        return exc
    except Exception as exc:  # noqa: BLE001 - what crashes or hangs is a finding, too
        return Breach(f"it crashed or hung: {type(exc).__name__}: {exc}")
    finally:
        random.setstate(state)
    return None
