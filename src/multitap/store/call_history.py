"""Calls, errors and times over the last minutes or hours, aggregated for plots."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

POINTS = 60
"""Steps in a history."""
LONGEST_SPAN = 7 * 86_400.0
MOST_ROWS = 20_000
"""Rows that are read; further ones are ignored."""
MOST_SPANS = 8
"""Time spans whose steps are cached."""

_BAD = frozenset({"error", "failed", "timeout"})
_UNTIMED = frozenset({"cancelled", "refused"})
_NEWEST = "SELECT coalesce(max(id), 0) FROM calls"
# `+at`: by id, which keeps new calls together, not by the index of times
_SELECT = """
SELECT server, tool, CAST(at / ? AS INTEGER) AS step, outcome, count(*), sum(seconds), max(seconds)
FROM calls WHERE id > ? AND id <= ? AND +at >= ? GROUP BY server, tool, step, outcome
ORDER BY step LIMIT ?
"""


class HistoryStep(msgspec.Struct, frozen=True, array_like=True):
    """One tool's calls within one step of time."""

    step: int
    """From 0, the oldest, to `POINTS` - 1."""
    calls: int
    errors: int
    mean: float
    """Seconds."""
    slowest: float


class ToolHistory(msgspec.Struct, frozen=True):
    """One tool's calls over time."""

    server: str
    tool: str
    """By the server's own name."""
    steps: tuple[HistoryStep, ...]
    """The steps with calls."""


class CallHistory(msgspec.Struct, frozen=True):
    """All calls over time."""

    start: float
    """When the first step begins, in seconds since the epoch."""
    step: float
    """Seconds of each."""
    tools: tuple[ToolHistory, ...]


Rows = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a statement with its values."""
_Sums = tuple[int, int, int, float, float]
"""Calls, errors, timed calls, their total seconds, and those of the slowest."""
_Steps = dict[tuple[str, str], dict[int, _Sums]]
"""Sums by server and tool, then by the number of the step since the epoch."""


class CallHistories:
    """Aggregates calls incrementally, each of them once.

    A page asks every few seconds, and there are up to 100,000 calls.
    """

    def __init__(self) -> None:
        self._kept: dict[float, tuple[int, _Steps]] = {}
        """By the length of a step: the id of the last counted call, and the sums."""

    def read(self, span: float, rows: Rows) -> CallHistory:
        """The history of the last `span` seconds.

        Args:
            span: The seconds.
            rows: Runs a query.
        """
        step, now = max(1.0, min(span, LONGEST_SPAN) / POINTS), time.time()
        first = int(now / step) - POINTS + 1
        counted, steps = self._kept.pop(step, (0, {}))
        ((newest,),) = rows(_NEWEST, ())
        if newest < counted:  # all calls were removed, and ids may start again
            counted, steps = 0, {}
        wanted = (step, counted, newest, first * step, MOST_ROWS)
        for server, tool, at, outcome, calls, seconds, slowest in rows(_SELECT, wanted):
            found = steps.setdefault((server, tool), {})
            sums = _sums(outcome, calls, seconds, slowest)
            found[at] = _add(found.get(at, _NOTHING), sums)
        self._kept[step] = (newest, _within(steps, first))
        if len(self._kept) > MOST_SPANS:
            del self._kept[next(iter(self._kept))]
        tools = (
            ToolHistory(*names, tuple(_shown(at - first, one) for at, one in sorted(found.items())))
            for names, found in self._kept[step][1].items()
        )
        return CallHistory(first * step, step, tuple(tools))


_NOTHING: _Sums = (0, 0, 0, 0.0, 0.0)


def _sums(outcome: str, calls: int, seconds: float, slowest: float) -> _Sums:
    errors = calls if outcome in _BAD else 0
    # the time of a cancelled or refused call does not show the server's speed
    return (
        (calls, errors, 0, 0.0, 0.0)
        if outcome in _UNTIMED
        else (calls, errors, calls, seconds, slowest)
    )


def _add(before: _Sums, more: _Sums) -> _Sums:
    calls, errors, timed, seconds, slowest = more
    return (
        before[0] + calls,
        before[1] + errors,
        before[2] + timed,
        before[3] + seconds,
        max(before[4], slowest),
    )


def _shown(step: int, sums: _Sums) -> HistoryStep:
    calls, errors, timed, seconds, slowest = sums
    return HistoryStep(step, calls, errors, seconds / timed if timed else 0.0, slowest)


def _within(steps: _Steps, first: int) -> _Steps:
    """The steps from `first` on."""
    kept = {
        names: {at: counted for at, counted in found.items() if at >= first}
        for names, found in steps.items()
    }
    return {names: found for names, found in kept.items() if found}
