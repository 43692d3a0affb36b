"""Property names that a provider accepts."""

import re
from collections.abc import Iterable, Mapping
from itertools import count

_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_LONGEST = 64


def rename_properties(names: Iterable[str], taken: re.Pattern[str]) -> Mapping[str, str]:
    """New names for properties of one object that the provider would refuse."""
    own = tuple(names)
    # valid names are kept, whatever precedes them
    used = {name for name in own if taken.fullmatch(name)}
    given: dict[str, str] = {}
    for name in own:
        if name not in used and name not in given:
            given[name] = _free(_fitting(name), used | set(given.values()))
    return given


def _fitting(name: str) -> str:
    plain = _FOREIGN.sub("_", name)[:_LONGEST] or "_"
    return plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}"[:_LONGEST]


def _free(name: str, used: set[str]) -> str:
    if name not in used:
        return name
    numbered = (f"{name[: _LONGEST - 6]}_{number}" for number in count(2))
    return next(one for one in numbered if one not in used)
