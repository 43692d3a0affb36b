"""What keeps a running gateway from working fully."""

import logging
import os
import re
import resource
import time
from collections.abc import Iterable, Iterator

import anyio

from multitap.events import LinkState, ServerSnapshot
from multitap.hub.hub import Hub
from multitap.upstream.backoff import PROVED
from multitap.upstream.link import Link

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two checks."""
SHORT = 0.9
"""The share of the allowed open files above which the process is short of them."""

_OPEN = "/proc/self/fd"
_NUMBER = re.compile(r"\d+")


def reasons(hub: Hub) -> tuple[str, ...]:
    """What is degraded, in words; empty if nothing is."""
    return tuple(_reasons(hub))


def failing_servers(hub: Hub, servers: Iterable[ServerSnapshot]) -> Iterator[str]:
    """The servers of these that keep failing, in words."""
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
    told: set[str] = set()
    while True:
        for reason in reasons(hub):
            kind = _NUMBER.sub("#", reason)  # the same reason with another number
            if kind not in told:
                told.add(kind)
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
