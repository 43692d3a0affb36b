"""Labelled definitions: real ones of servers that were started, and poisoned ones."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
REAL = HERE.parent / "search" / "tools.json"
HELD_OUT = 0.35
"""The share of real servers that no rule was tuned with."""


@dataclass(frozen=True)
class Sample:
    """One definition, and whether it is an attack."""

    label: str
    definition: dict[str, Any]
    is_poisoned: bool


def tuned():
    """What the rules were written with in view."""
    return [*_poisoned("poisoned.json"), *_real(held_out=False)]


def held_out():
    """What no rule was tuned with, except that one false alarm was noticed in use and is fixed.

    The poisoned ones were written before the first rule, by the author of the rules. The real ones
    are of servers drawn by the digest of their names; which words are common in the whole corpus
    was counted before.
    """
    return [*_poisoned("held_out.json"), *_real(held_out=True)]


def _poisoned(file):
    for definition in msgspec.json.decode((HERE / file).read_bytes()):
        yield Sample(f"{definition['attack']}: {definition['name']}", definition, True)


def _real(*, held_out):
    for definition in msgspec.json.decode(REAL.read_bytes()):
        server = definition["server"]
        share = int.from_bytes(sha256(server.encode()).digest()[:4]) / 2**32
        if (share < HELD_OUT) == held_out:
            yield Sample(f"{server}/{definition['name']}", definition, False)
