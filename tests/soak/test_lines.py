"""A million lines that are almost messages, through the whole way from a pipe to a call."""

import os
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.config import Limits
from multitap.errors import MultitapError
from tests.test_zoo import memory
from tests.waiting import PATIENCE
from tests.zoo.modes import command

LINES = int(os.environ.get("LINES_OF_FUZZ", "1000000"))
BATCH = 1000
WORKERS = 4
"""Calls at once: a spoilt line that could be the answer to a single one fails it, as it should."""
GROWTH = 64 * 1024 * 1024
PROGRAM = str(Path(__file__).with_name("fuzzer.py"))


async def _fuzz(hub, seed):
    """How a call ends whose answer comes after so many other lines."""
    try:
        result = await hub.call("fuzzer_fuzz", {"seed": seed, "count": BATCH})
    except MultitapError as exc:
        return type(exc).__name__
    if not result.success:
        return "failed"
    return "answered" if result.text == str(seed) else "wrong"


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_no_line_keeps_a_call_from_its_own_answer(tmp_path, figures):
    program, *args = command("good")
    fuzzer = StdioServer(
        command=sys.executable,
        args=("-I", "-S", PROGRAM),
        timeout=20,
        limits=Limits(junk=1 << 40),  # it would be stopped before it is through
    )
    servers = {"fuzzer": fuzzer, "good": StdioServer(command=program, args=tuple(args))}
    outcomes = Counter()
    seeds = iter(range(LINES // BATCH))
    async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
        await hub.settled()
        before = memory()

        async def ask():
            for seed in seeds:
                with anyio.fail_after(PATIENCE):
                    outcomes[await _fuzz(hub, seed)] += 1
                    good = await hub.call("good_nonce", {"n": seed})
                assert good.text == str(seed)

        async with anyio.create_task_group() as tasks:
            for _ in range(WORKERS):
                tasks.start_soon(ask)
        after = memory()
        starts = hub.snapshot().server("fuzzer").starts
    figures(
        lines=LINES,
        **outcomes,
        starts=starts,
        memory_start_MiB=before >> 20,
        memory_end_MiB=after >> 20,
    )

    assert not outcomes["wrong"]
    assert outcomes["answered"] > LINES / BATCH / 2
    assert after - before < GROWTH
