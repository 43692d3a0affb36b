"""The conformance suite at work, and what it finds."""

import json
import os
import re
import shlex
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.conformance import client

OLD, NEW = "2025-11-25", "2026-07-28"
VERDICT = re.compile(r"^([✓✗]) (\S+): (\d+) passed, \d+ failed", re.MULTILINE)
PASSED_ALONE = re.compile(
    r"^Passed: (\d+)/\1, 0 failed, 0 warnings$(?!\n\n.* OVERALL: FAILED)", re.MULTILINE
)
PATIENCE = 120
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Score:
    """What the suite thinks of one scenario."""

    passed: int
    complaints: tuple[str, ...] = ()


async def run_server_suite(kit, url, spec_version, results):
    """The score of the server at `url` in each scenario of `spec_version`; in all, if None."""
    version = () if spec_version is None else ("--spec-version", spec_version)
    options = ("server", "--url", url, *version)
    scores = _scores(await _run(kit, results, *options, "--suite", "all"), results)
    return await _with_second_tries(kit, results, options, scores)


async def run_client_suite(kit, spec_version, results):
    """The score of our client in each scenario of `spec_version`; of all and extensions, if None.

    The suite starts a program for each, all at the same time. That program only hands its
    arguments over: to load our client fifty times would take minutes.
    """
    version = ("--timeout", f"{1000 * PATIENCE}")
    if spec_version is not None:
        version = ("--spec-version", spec_version, *version)
    async with _clients(results) as command:
        options = ("client", "--command", command, *version)
        said = await _run(kit, results, *options, "--suite", "all")
        return await _with_second_tries(kit, results, options, _scores(said, results))


def failed(scores):
    """What the suite complains about, by scenario."""
    return {name: score.complaints for name, score in scores.items() if score.complaints}


async def _with_second_tries(kit, results, options, scores):
    """The same after those that failed ran alone.

    Some watch the clock, such as half a second for the first line of a stream, and may have had to
    wait for others.
    """
    for name in failed(scores):
        alone = await _run(kit, results / "alone", *options, "--scenario", name)
        if (verdict := PASSED_ALONE.search(alone)) is not None:
            scores[name] = Score(int(verdict[1]))
    return scores


@asynccontextmanager
async def _clients(folder):
    """The command that is one of our clients, a few of which work at the same time."""
    socket, relay = folder / "socket", Path(__file__).with_name("relay.py")
    turn = anyio.Semaphore(AT_ONCE)

    async def serve(stream):
        async with stream, turn:
            asked = json.loads(await stream.receive(1 << 20))
            try:
                await client.run(**asked)
            except Exception as exc:  # noqa: BLE001 - boundary: the suite shows it with its checks
                await stream.send(f"{type(exc).__name__}: {exc}".encode())

    async with (
        await anyio.create_unix_listener(socket) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        yield shlex.join([sys.executable, "-IS", str(relay), str(socket)])
        tasks.cancel_scope.cancel()


async def _run(kit, results, *arguments):
    command = [*kit.suite, *arguments, "--output-dir", str(results)]
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(command, check=False, env={**os.environ, "NO_COLOR": "1"})
    return (done.stdout + done.stderr).decode()


def _scores(said, results):
    return {
        name: Score(int(passed), () if mark == "✓" else _complaints(results, name))
        for mark, name, passed in VERDICT.findall(said)
    }


def _complaints(results, scenario):
    folder = next(results.glob(f"**/*{scenario}-20*"))  # what follows is the time
    found = tuple(
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in json.loads((folder / "checks.json").read_text())
        if check["status"] in {"FAILURE", "WARNING"}
    )
    said = folder / "stderr.txt"
    return found + tuple(said.read_text().splitlines()[-1:] if said.exists() else ())
