"""Calls, errors and times over the last minutes or hours, added up for plots."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

POINTS = 60
"""Steps in a history."""
LONGEST_SPAN = 7 * 86_400.0
MOST_ROWS = 20_000
"""Rows that are read; with more servers and tools than that the rest is left out."""
LATE = 2.0
"""Seconds after which no call of a step is still to be written."""
MOST_SPANS = 8
"""Spans of time whose steps are kept."""

_BAD = "outcome IN ('error', 'failed', 'timeout')"
_TIMED = "outcome NOT IN ('cancelled', 'refused')"
_SELECT = f"""
SELECT server, tool, CAST(at / ? AS INTEGER) AS step, count(*), sum({_BAD}),
    coalesce(avg(CASE WHEN {_TIMED} THEN seconds END), 0),
    coalesce(max(CASE WHEN {_TIMED} THEN seconds END), 0)
FROM calls WHERE at >= ? GROUP BY server, tool, step ORDER BY step LIMIT ?
"""  # noqa: S608 - made of our own words only


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
    """Those in which it was called."""


class CallHistory(msgspec.Struct, frozen=True):
    """All calls over time."""

    start: float
    """When the first step begins, in seconds since the epoch."""
    step: float
    """Seconds of each."""
    tools: tuple[ToolHistory, ...]


Rows = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a statement with its values."""
_Steps = dict[tuple[str, str], dict[int, tuple[Any, ...]]]
"""By server and tool, then by the number of the step since the epoch."""


class CallHistories:
    """Adds up calls, each of them once: what a step had when it was over stays as it was.

    A page asks every few seconds, and there are up to 100,000 calls.
    """

    def __init__(self) -> None:
        self._kept: dict[float, tuple[int, _Steps]] = {}
        """By the length of a step: the first step that is not over, and what was counted."""

    def read(self, span: float, rows: Rows) -> CallHistory:
        """The last `span` seconds.

        Args:
            span: How many.
            rows: Reads from the file.
        """
        step, now = max(1.0, min(span, LONGEST_SPAN) / POINTS), time.time()
        first = int(now / step) - POINTS + 1
        known, steps = self._kept.pop(step, (first, {}))
        since = max(first, known)
        for server, tool, at, *counted in rows(_SELECT, (step, since * step, MOST_ROWS)):
            steps.setdefault((server, tool), {})[at] = tuple(counted)
        # A step is final `LATE` seconds after its end: until then, calls that ended in it may still
        # wait in the backlog.
        self._kept[step] = (max(since, int((now - LATE) / step)), _within(steps, first))
        if len(self._kept) > MOST_SPANS:
            del self._kept[next(iter(self._kept))]
        tools = (
            ToolHistory(
                *names,
                tuple(HistoryStep(at - first, *counted) for at, counted in sorted(found.items())),
            )
            for names, found in self._kept[step][1].items()
        )
        return CallHistory(first * step, step, tuple(tools))


def _within(steps: _Steps, first: int) -> _Steps:
    """The steps that are not too old."""
    kept = {
        names: {at: counted for at, counted in found.items() if at >= first}
        for names, found in steps.items()
    }
    return {names: found for names, found in kept.items() if found}
