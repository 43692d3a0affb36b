"""Which servers a gateway waits for: at first, and at its end; and which are degraded."""

import logging
import os
import re
import resource
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import anyio

from multitap.config import StdioServer
from multitap.events import LinkState, ServerSnapshot
from multitap.hub.hub import Hub
from multitap.upstream.backoff import PROVED
from multitap.upstream.link import Link
from multitap.upstream.start_queue import LONGEST as SPINNING
from multitap.wire.process import cpu_usage

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


async def wait_for_calls(hub: Hub, most: float) -> None:
    """Wait until no server works on a call, for `most` seconds at most.

    A gateway that stops is no longer ready, and goes on answering meanwhile: its load balancer
    notices, sends new calls to others, and those in progress end here.
    """
    # usually already cancelled
    with anyio.CancelScope(shield=True), anyio.move_on_after(most):
        while any(
            link.requests.slots.working or link.requests.slots.waiting
            for link in hub.links.values()
        ):
            await anyio.sleep(_LOOK)


logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two checks."""
SHORT = 0.9
"""The share of the allowed open files above which the process is short of them."""

_OPEN = "/proc/self/fd"
_NUMBER = re.compile(r"\d+")


def reasons(hub: Hub) -> tuple[str, ...]:
    """What is degraded; empty if nothing is."""
    return tuple(_reasons(hub))


def failing_servers(hub: Hub, servers: Iterable[ServerSnapshot]) -> Iterator[str]:
    """The servers of these that keep failing."""
    for server in servers:
        link = hub.links.get(server.name)
        if link is not None and _keeps_failing(link):
            # between two crashes it is connected, and has no failure
            why = f": {server.failure.message}" if server.failure else ""
            yield f"the server {server.name} keeps failing{why}"


def _keeps_failing(link: Link) -> bool:
    """Whether it was lost repeatedly, and has not proved healthy since."""
    if link.state is LinkState.NEEDS_AUTH or link.availability.is_asleep:
        return False
    age = time.time() - link.availability.since
    has_proved = link.state is LinkState.CONNECTED and age >= PROVED
    return link.restarts.is_repeated and not has_proved


async def report(hub: Hub) -> None:
    """Log each reason once, until cancelled."""
    reported: set[str] = set()
    while True:
        for reason in reasons(hub):
            kind = _NUMBER.sub("#", reason)  # the same reason with another number
            if kind not in reported:
                reported.add(kind)
                logger.warning("degraded: %s", reason)
        await anyio.sleep(INTERVAL)


def _reasons(hub: Hub) -> Iterator[str]:
    yield from hub.warnings
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and (used := _descriptors()) >= SHORT * most:
        yield f"{used} of {most} files that the process may open are in use: raise `ulimit -n`"


def _descriptors() -> int:
    try:
        return len(os.listdir(_OPEN))  # noqa: PTH208 - screens look every second, and paths cost
    except OSError:  # not Linux, or no descriptor is left for the check
        return 0
