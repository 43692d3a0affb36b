"""Waiting for facts of which a test hears nothing and can only look."""

import time

import anyio

PATIENCE = 50.0
"""Seconds; generous, so that a busy machine fails no test."""


async def until(holds):
    with anyio.fail_after(PATIENCE):
        while not holds():
            await anyio.sleep(0.005)


def wait_for(holds, patience=PATIENCE):
    """The same for a test that does not await; returns what it found."""
    deadline = time.monotonic() + patience
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
