"""What keeps a running gateway from working fully."""

import logging
import os
import re
import resource
from collections.abc import Iterator

import anyio

from multitap.hub.hub import Hub

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
