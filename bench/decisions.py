"""What rules about arguments, and the audit log, cost a call."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report import Promise, Report
from multitap.config import Settings, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.names import ToolNames
from multitap.store.audit_log import AuditFile, AuditRecord
from multitap.trust.policy import Policy

LIMIT, AUDITED = 20.0, 10.0
ENTRIES = 2000


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
        written = _written(folder)
    rows = [(f"a rule about {name}", f"{cost:.1f} µs") for name, cost in costs.items()]
    rows.append(("an entry in the audit log, in the store's thread", f"{written:.1f} µs"))
    promises = [
        Promise("CPU of a rule about arguments, per call", LIMIT, max(costs.values()), " µs"),
        Promise("CPU of the audit log, per call", AUDITED, written, " µs"),
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


def _written(folder) -> float:
    file = AuditFile(folder)
    started = time.process_time()
    record = AuditRecord("call", 1.5, "me", "client 1.0", server="files", tool="read", outcome="ok")
    file.append([record.body() for _ in range(ENTRIES)], keep=10 * ENTRIES)
    file.close()
    return (time.process_time() - started) / ENTRIES * 1e6
