"""One connection attempt: how far it got, and how long each phase took."""

import asyncio
from dataclasses import field

from multitap.events import Phase
from multitap.records import dataclass
from multitap.upstream.signals import Latch
from multitap.wire.wire import Evidence, Wire


def now() -> float:
    """The loop's clock, which a test may turn."""
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Attempt:
    phase: Phase = Phase.SPAWN
    wire: Wire | None = None
    connected_at: float | None = None
    stopped: bool = False
    """Whether the process was stopped when it was given up."""
    timings: dict[str, float] = field(default_factory=dict[str, float])
    superseded: Latch = field(default_factory=Latch)
    """Set when somebody wants another attempt, whatever has come of this one."""
    _mark: float = 0.0

    def begin(self) -> None:
        self.phase, self._mark = Phase.SPAWN, now()

    def reached(self, phase: Phase) -> None:
        time = now()
        self.timings[self.phase.value] = time - self._mark
        self.phase, self._mark = phase, time

    @property
    def healthy_for(self) -> float | None:
        """Seconds since it connected; None if it never did."""
        return None if self.connected_at is None else now() - self.connected_at

    def evidence(self) -> Evidence:
        # asked each time: the exit code and the last words come in after the wire has closed
        return self.wire.evidence() if self.wire else Evidence()
