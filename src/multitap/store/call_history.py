"""Calls, errors and times over the last minutes or hours, added up for plots."""

import time
from typing import Any

import msgspec

POINTS = 60
"""Steps in a history."""
LONGEST_SPAN = 7 * 86_400.0
MOST_ROWS = 20_000
"""Rows that are read; with more servers and tools than that the rest is left out."""

_BAD = "outcome IN ('error', 'failed', 'timeout')"
_TIMED = "outcome NOT IN ('cancelled', 'refused')"
SELECT = f"""
SELECT server, tool, CAST((at - ?) / ? AS INTEGER) AS step, count(*), sum({_BAD}),
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
    """The server's own name for it."""
    steps: tuple[HistoryStep, ...]
    """Those in which it was called."""


class CallHistory(msgspec.Struct, frozen=True):
    """All calls over time."""

    start: float
    """When the first step begins, in seconds since the epoch."""
    step: float
    """Seconds of each."""
    tools: tuple[ToolHistory, ...]


class HistoryQuery(msgspec.Struct, frozen=True):
    """Which span of time to look at."""

    start: float
    step: float

    @classmethod
    def of(cls, span: float) -> "HistoryQuery":
        """The last `span` seconds, in whole steps, so that plots do not jitter."""
        step = max(1.0, min(span, LONGEST_SPAN) / POINTS)
        end = (time.time() // step + 1) * step
        return cls(end - step * POINTS, step)

    @property
    def values(self) -> tuple[float, ...]:
        """For `SELECT`."""
        return self.start, self.step, self.start, MOST_ROWS

    def history(self, rows: list[tuple[Any, ...]]) -> CallHistory:
        """What the rows of `SELECT` say."""
        found: dict[tuple[str, str], list[HistoryStep]] = {}
        for server, tool, *counted in rows:
            found.setdefault((server, tool), []).append(HistoryStep(*counted))
        tools = (ToolHistory(*names, tuple(steps)) for names, steps in found.items())
        return CallHistory(self.start, self.step, tuple(tools))
