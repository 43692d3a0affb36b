"""How long the first lists wait for servers that have never been seen."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import anyio

from multitap.config import StdioServer
from multitap.hub.hub import Hub
from multitap.upstream.link import Link
from multitap.upstream.start_queue import LONGEST as SPINNING
from multitap.wire.process.cpu_usage import cpu_usage

LONGEST = 15.0
"""Seconds they wait at most for programs that use the CPU: few clients list a second time, and the
least patient ones give a server 20 seconds to start."""
EMPTY = 5.0
"""Seconds they wait at most for idle servers, if no other is up."""
PATIENCE = 1.0
"""Seconds to wait for an idle server while many are missing."""
IDLE = 0.1
"""Seconds to wait for an idle server while few are missing."""
FEW = 0.25
"""The share of all servers up to which the missing ones count as few."""
_LOOK, _GLANCE = 0.05, 0.1  # seconds between two looks while few are missing, and many


class AbsentServer(NamedTuple):
    """One server that is not up yet."""

    idle: float
    """Seconds without observed activity."""
    visible: bool
    """Whether its activity can be observed: it is a program on this machine."""


def is_ready(missing: Sequence[AbsentServer], *, servers: int) -> bool:
    """Whether to send a list now, without the missing servers.

    Args:
        missing: Those that are neither up nor failed.
        servers: How many servers there are in total.
    """
    is_few = len(missing) <= FEW * servers
    return all(
        server.idle >= (IDLE if is_few and server.visible else PATIENCE) for server in missing
    )


class _Watch:
    """Observes the activity of each server that is not up yet."""

    def __init__(self) -> None:
        self._idle: dict[Link, tuple[float, float]] = {}
        """For how long each has been idle, and the CPU time it has used."""
        self._looked = anyio.current_time()

    def look(self, links: Collection[Link], now: float, *, few: bool) -> list[AbsentServer]:
        # if we were busy ourselves, an answer may be waiting unread
        passed = min(now - self._looked, _LOOK if few else _GLANCE)
        self._looked = now
        return [self._look(link, passed) for link in links]

    def _look(self, link: Link, passed: float) -> AbsentServer:
        idle, seconds = self._idle.get(link, (0.0, 0.0))
        pid = link.pid
        if pid is None and isinstance(link.config, StdioServer):
            return AbsentServer(0.0, visible=True)  # it waits for its turn to start
        used = cpu_usage(pid) if pid is not None else None
        if used is None:
            idle += passed
        else:
            # one that spins would keep every list waiting; no start takes that long
            worked = used.seconds < SPINNING and (
                used.runnable or used.waiting or used.seconds != seconds
            )
            idle, seconds = 0.0 if worked else idle + passed, used.seconds
        self._idle[link] = idle, seconds
        return AbsentServer(idle, visible=used is not None)


async def wait_for_servers(hub: Hub) -> None:
    """Wait until the lists are complete enough to send.

    Servers that failed, or whose offers are known from this or an earlier run, are not
    waited for. Of the others, a program that uses the CPU is on its way up; one that does not
    hangs, or waits for something that may take long.
    """
    watch = _Watch()
    began = due = anyio.current_time()
    with anyio.move_on_after(LONGEST):
        while missing := [
            link
            for link in hub.links.values()
            if link.offers is None and not link.availability.first_settled.is_set()
        ]:
            up = sum(link.offers is not None for link in hub.links.values())
            now, servers = anyio.current_time(), up + len(missing)
            few = len(missing) <= FEW * servers
            # while many are missing, not at every change: a look takes time from their start
            if now >= due or few:
                due = now + _GLANCE
                seen = watch.look(missing, now, few=few)
                if is_ready(seen, servers=servers) and (up or now - began >= EMPTY):
                    return
            with anyio.move_on_after(_LOOK):
                await hub.changed.wait()
