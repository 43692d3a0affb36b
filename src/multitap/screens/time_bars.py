"""Durations as text: a bar of phases, and a sparkline."""

from collections.abc import Mapping, Sequence

from multitap.errors import counted
from multitap.hub.metrics import Stats
from multitap.records import dataclass

_SPARKS = "▁▂▃▄▅▆▇█"
_PHASES = (("queue", "░"), ("connect", "▒"), ("server", "█"), ("encode", "▓"))


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of a call went, in seconds."""

    queue: float
    connect: float
    server: float
    encode: float

    @classmethod
    def of(cls, total: float, queue: float, connect: float, encode: float) -> "Phases":
        """The server's time: the rest of the total."""
        return cls(queue, connect, max(0.0, total - queue - connect - encode), encode)

    @property
    def words(self) -> str:
        """The duration of each phase with its bar character; phases without time are left out."""
        shown = ((f"{block} {name}", getattr(self, name)) for name, block in _PHASES)
        return " | ".join(f"{name} {duration(seconds)}" for name, seconds in shown if seconds)


def bar(phases: Phases, longest: float, width: int) -> str:
    """The phases side by side, on a scale on which `longest` fills the width."""
    if longest <= 0:
        return ""
    drawn, upto, text = 0.0, 0, ""
    for name, block in _PHASES:
        drawn += getattr(phases, name)
        end = min(width, round(drawn / longest * width))
        text += block * (end - upto)
        upto = max(upto, end)
    return text or "▏"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A sparkline of the last values, scaled to the largest; a gap for missing ones."""
    shown = values[-width:]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    top = max(known) or 1.0
    return "".join(
        " " if value is None else _SPARKS[min(7, int(value / top * 7.999))] for value in shown
    )


def duration(seconds: float | None) -> str:
    """A duration with about three digits."""
    if seconds is None:
        return "-"
    if seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:.0f} min"  # noqa: PLR2004


def stats_words(servers: Mapping[str, Stats]) -> str:
    """Calls, errors and times of each server, a line each."""
    return "\n".join(
        f"{name}: {counted(stats.calls, 'call')}, {counted(stats.errors, 'error')}, "
        f"p50 {duration(stats.p50)}, p95 {duration(stats.p95)}, p99 {duration(stats.p99)}"
        for name, stats in sorted(servers.items())
    )
