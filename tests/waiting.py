"""Waiting for facts of which a test hears nothing and can only look."""

import time

import anyio

PATIENCE = 150.0
"""Seconds that only what really hangs takes, however busy the machine is."""


async def until(holds):
    """Wait until `holds()` is true; returns what it found."""
    with anyio.fail_after(PATIENCE):
        while not (found := holds()):
            await anyio.sleep(0.005)
    return found


async def until_told(ask):
    """The same for what others have to be asked: `await ask()`."""
    with anyio.fail_after(PATIENCE):
        while not (found := await ask()):
            await anyio.sleep(0.02)
    return found


def wait_for(holds, patience=PATIENCE):
    """The same for a test that does not await; returns what it found."""
    deadline = time.monotonic() + patience
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
