"""The calls of all workers of a gateway, in one count."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice

import anyio

from multitap.gateway.fronts.control_messages import AskPulse
from multitap.gateway.fronts.control_overview import Pulse
from multitap.hub.metrics import RECENT
from multitap.store.call_records import CallRecord

_CALM = 0.05  # seconds for which the last answers are reused: several screens may be open
_MOST = 200  # calls per worker and question; a screen shows no more


class WorkerCalls:
    """Counters and latest calls of all workers; asked only while a screen is open.

    Args:
        name: The name of this worker.
        own: Returns its own pulse since a given number of calls.
        ask: Asks each other worker a question; returns the answers by name.
    """

    def __init__(
        self,
        name: str,
        own: Callable[[int, int], Pulse],
        ask: Callable[[Callable[[str], AskPulse]], Awaitable[Mapping[str, Pulse]]],
    ) -> None:
        self._name = name
        self._own = own
        self._ask = ask
        self._seen: dict[str, int] = {}
        self._made = 0
        self._recent: deque[CallRecord] = deque(maxlen=RECENT)
        self._in_flight = self._revision = 0
        self._looked = float("-inf")
        self._lock = anyio.Lock()

    async def pulse(self, seen: int, most: int) -> Pulse:
        """The counters of all workers, and their latest calls after `seen`."""
        # one question at a time: two would count the same calls twice
        async with self._lock:
            if anyio.current_time() - self._looked >= _CALM:
                await self._look()
        # `seen` comes from outside, and may be from before a restart
        new = min(max(self._made - seen, 0), max(most, 0), len(self._recent))
        latest = tuple(islice(reversed(self._recent), new))[::-1]
        return Pulse(self._made, latest, self._revision, self._in_flight)

    async def _look(self) -> None:
        told = dict(await self._ask(lambda worker: AskPulse(self._seen.get(worker, 0), _MOST)))
        own = told[self._name] = self._own(self._seen.get(self._name, 0), _MOST)
        for worker, pulse in told.items():
            self._made += pulse.made - self._seen.get(worker, 0)
            self._seen[worker] = pulse.made
        fresh = (record for pulse in told.values() for record in pulse.records)
        self._recent.extend(sorted(fresh, key=lambda record: record.at))
        self._in_flight = sum(pulse.in_flight for pulse in told.values())
        self._revision, self._looked = own.revision, anyio.current_time()
