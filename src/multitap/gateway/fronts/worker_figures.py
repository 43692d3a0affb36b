"""Calls and clients of one worker of a gateway, and of all workers."""

from collections.abc import Iterable

import msgspec

from multitap.gateway.fronts.control_messages import ClientFigures
from multitap.hub.metrics import Metrics, MetricsRow


class WorkerFigures(msgspec.Struct, frozen=True):
    """Calls and clients of one worker since it started."""

    calls: dict[str, dict[str, MetricsRow]]
    clients: tuple[ClientFigures, ...]
    sessions: frozenset[str]
    """Their names, because two workers may serve the same session."""
    waiting: int
    private_links: int
    missing: int = 0
    """Workers that did not answer in time, and are not counted."""

    @property
    def metrics(self) -> Metrics:
        return Metrics.of(self.calls)


def together(told: Iterable[WorkerFigures], missing: int) -> WorkerFigures:
    """The figures of several workers as those of one gateway."""
    told = tuple(told)
    return WorkerFigures(
        Metrics.of(*(one.calls for one in told)).rows,
        tuple(client for one in told for client in one.clients),
        frozenset[str]().union(*(one.sessions for one in told)),
        sum(one.waiting for one in told),
        sum(one.private_links for one in told),
        missing,
    )
