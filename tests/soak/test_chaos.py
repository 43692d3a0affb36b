"""Everything at once, for as long as you like: every call answered, and nothing grows."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from tests.processes import descendants
from tests.soak.chaos import World

MINUTES = float(os.environ.get("MINUTES", "60"))
RATE = float(os.environ.get("RATE", "20"))
"""Calls per second."""
PAUSE = 1.0
"""Seconds between two bad things, on average."""
MEMORY = 64 * 1024 * 1024
"""Bytes that the gateway may have more at the end than at the start."""
PEAK = 256 * 1024 * 1024
DESCRIPTORS = 16
"""Descriptors that it may have more at the end."""
WARM = 200
"""Calls before which nothing is measured."""


class Gauge:
    """The first, the highest and the last of many measurements."""

    def __init__(self, measure):
        self._measure = measure
        self.first = self.highest = self.last = measure()

    def look(self):
        self.last = self._measure()
        self.highest = max(self.highest, self.last)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_every_call_is_answered_and_nothing_grows(tmp_path, figures):
    world = World(tmp_path, seed=os.environ.get("SEED", "1"))
    async with world.serving():
        await world.warm_up(WARM)
        memory, descriptors = Gauge(world.memory), Gauge(world.descriptors)
        async with anyio.create_task_group() as calls:
            with anyio.move_on_after(MINUTES * 60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(world.traffic, calls, RATE)
                    tasks.start_soon(world.chaos, calls, PAUSE)
                    while True:
                        assert world.process.poll() is None, world.said()[-2000:]
                        memory.look()
                        descriptors.look()
                        await anyio.sleep(1)
        world.configure()
        with anyio.move_on_after(60):  # until restarts and reloads have come to an end
            while descriptors.last > descriptors.first + DESCRIPTORS:
                await anyio.sleep(1)
                descriptors.look()
        memory.look()
        started = descendants(world.process.pid)
        world.process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(10):
            while world.process.poll() is None:
                await anyio.sleep(0.05)
        left = [pid for pid in started if Path(f"/proc/{pid}").exists()]
    figures(
        minutes=MINUTES,
        calls=world.calls,
        **{f"ended {name}": times for name, times in world.outcomes.most_common()},
        wrong=len(world.wrong),
        unanswered=len(world.unanswered),
        unresolved_tasks=len(world.unresolved),
        tasks_run_twice=len(world.run_twice()),
        failures_of_the_steady_servers=len(world.steady_failures),
        **{f"did {name}": times for name, times in world.actions.items()},
        **_shown("memory_MiB", memory, 1 << 20),
        **_shown("descriptors", descriptors, 1),
        exit_code=world.process.returncode,
    )

    assert (world.wrong, world.unanswered, world.steady_failures) == ([], [], [])
    assert (world.unresolved, world.run_twice()) == ([], [])
    assert world.outcomes["task: completed"]
    assert world.outcomes.total() == world.calls
    assert memory.last - memory.first <= MEMORY
    assert memory.highest - memory.first <= PEAK
    assert descriptors.last - descriptors.first <= DESCRIPTORS
    assert (world.process.returncode, left) == (0, [])


def _shown(name, gauge, unit):
    return {
        f"{name}_start": gauge.first // unit,
        f"{name}_peak": gauge.highest // unit,
        f"{name}_end": gauge.last // unit,
    }
