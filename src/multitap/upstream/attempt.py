"""One connection attempt: how far it got, and how long each phase took."""

import asyncio
from dataclasses import field

from multitap.events import Phase
from multitap.records import dataclass
from multitap.upstream.backoff import Restarts
from multitap.upstream.breaker import Breaker
from multitap.upstream.signals import Latch
from multitap.wire.wire import Evidence, Wire


def now() -> float:
    """The time of the loop's clock, which tests may advance."""
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Attempt:
    restarts: Restarts = field(default_factory=Restarts)
    """The history of earlier attempts."""
    is_first: bool = False
    """Whether it directly follows the loss of a server that was up."""
    is_ordered: bool = False
    """Whether a person requested it."""
    breaker: Breaker | None = None
    """Shares its outcome with other replicas."""
    phase: Phase = Phase.SPAWN
    wire: Wire | None = None
    connected_at: float | None = None
    stopped: bool = False
    """Whether the process was stopped by a signal when the attempt ended."""
    timings: dict[str, float] = field(default_factory=dict[str, float])
    superseded: Latch = field(default_factory=Latch)
    """Set when another attempt is requested, whatever the outcome of this one."""
    _mark: float = 0.0

    async def wait_admitted(self, breaker: Breaker | None) -> None:
        """Wait until the shared breaker admits it.

        Raises:
            Paused: All replicas have to wait.
        """
        # once per attempt: another approach belongs to the same one
        if breaker is not None and self.breaker is None:
            await breaker.admit(self.restarts, is_first=self.is_first, is_ordered=self.is_ordered)
            self.breaker = breaker

    def begin(self) -> None:
        self.phase, self._mark = Phase.SPAWN, now()

    def on_reached(self, phase: Phase) -> None:
        time = now()
        self.timings[self.phase.value] = time - self._mark
        self.phase, self._mark = phase, time

    @property
    def healthy_for(self) -> float | None:
        """Seconds since it connected; None if it never did."""
        return None if self.connected_at is None else now() - self.connected_at

    def evidence(self) -> Evidence:
        # read each time: exit code and last output arrive after the wire has closed
        return self.wire.evidence() if self.wire else Evidence()
