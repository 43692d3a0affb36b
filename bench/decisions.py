"""What rules about arguments, and the logs of calls, cost a call."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report import Promise, Report
from multitap.config import Settings, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.events import Outcome
from multitap.names import ToolNames
from multitap.principal import ANONYMOUS
from multitap.store.database import Archive, Troubles
from multitap.store.store import FLUSH_COUNT
from multitap.store.tables import CallRecord
from multitap.trust.policy import Policy

LIMIT, LOGGED = 20.0, 2.5


async def run(*, quick: bool) -> Report:
    calls = 300 if quick else 3000
    with TemporaryDirectory() as home:
        folder = Path(home).resolve()
        (folder / "src").mkdir()
        (folder / "src" / "file").touch()
        cases = {
            "a path within a folder": ("path", {"outside": [folder]}, f"{folder}/src/file"),
            "the host of a URL": ("url", {"host_not_in": ["a.example"]}, "https://a.example/x"),
            "a pattern": ("query", {"matches": r"(?i)drop\s+table"}, "select 1 from t"),
        }
        costs = {name: _least(_rule(folder, *case), calls) for name, case in cases.items()}
        written = _written(folder, rounds=3 if quick else 10)
    rows = [(f"a rule about {name}", f"{cost:.1f} µs") for name, cost in costs.items()]
    rows.append(("the call log and the audit log, in the store's thread", f"{written:.1f} µs"))
    promises = [
        Promise("CPU of a rule about arguments, per call", LIMIT, max(costs.values()), " µs"),
        Promise("CPU of the call log and the audit log, per call", LOGGED, written, " µs"),
    ]
    return Report("Decisions", ("what", "CPU per call"), rows, promises)


def _rule(folder, name, test, value):
    rule = PolicyRule(decision="deny", arguments={name: test})
    config = StdioServer(command="files", cwd=folder)
    guard = Policy(Settings(policy=[rule])).guard(
        ToolNames("files_read", "read", "files"), config, {}
    )
    arguments = f'{{"{name}":"{value}","more":["some",1]}}'.encode()
    return lambda: guard.decide(arguments)


def _least(decide, calls) -> float:
    return min(_taken(decide, calls) for _ in range(5)) / calls * 1e6


def _taken(decide, calls) -> float:
    started = time.process_time()
    for _ in range(calls):
        decide()
    return time.process_time() - started


def _written(folder, rounds) -> float:
    """For each of as many calls as are written at a time."""
    archive = Archive(folder, Troubles(time.monotonic))
    call = CallRecord(
        time.time(),
        server="files",
        tool="read",
        seconds=0.0004,
        outcome=Outcome.OK,
        bytes_in=143,
        bytes_out=20,
        client="client 1.0",
        encoding=1e-5,
        principal=ANONYMOUS,
        answering=3e-4,
    )
    calls = [call] * FLUSH_COUNT
    try:
        return _least(lambda: _log(archive, calls), rounds) / FLUSH_COUNT
    finally:
        archive.close()


def _log(archive, calls):
    archive.write_calls(calls)
    archive.write_audit(calls, keep=100_000)
