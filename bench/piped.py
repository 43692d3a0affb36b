"""A client on pipes: what it starts, with servers of its own and with those in the background."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clients import pipe_command
from bench.report import Promise, Report, micro, milli

MEMORY, FIRST_ANSWER, MESSAGE = 30.0, 100.0, 15.0
"""Megabytes, milliseconds and microseconds."""
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


async def run(*, quick: bool) -> Report:
    calls, rounds = (2_000, 5) if quick else (10_000, 15)
    rows, promises = [], []
    with TemporaryDirectory(prefix="mt-") as folder:
        home = Path(folder)
        command, *args = pipe_command()
        (home / "multitap.toml").write_text(
            f"[servers.bench]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
        )
        for name, options in (("its own servers", ("--alone",)), ("those in the background", ())):
            with _client(home, options):  # the first one starts what the others find
                first = min(_first_answer(home, options) for _ in range(rounds))
            with _client(home, options) as client:
                memory, cpu, seconds = _calls(client, calls)
            rows.append((name, milli(first), f"{memory:.1f} MB", micro(cpu), micro(seconds)))
        _stop(home)
    promises = [
        Promise("a client on pipes: memory of what it starts", MEMORY, memory, " MB"),
        Promise("a client on pipes: until its first answer", FIRST_ANSWER, first * 1e3, " ms"),
        Promise("a client on pipes: CPU of the relay for a message", MESSAGE, cpu * 5e5, " µs"),
    ]
    columns = ("a client on pipes uses", "first answer", "memory", "its CPU per call", "a call")
    return Report("Clients that start `multitap serve`", columns, rows, promises)


@contextmanager
def _client(home, options):
    process = subprocess.Popen(
        [sys.executable, "-m", "multitap", "serve", "-c", "multitap.toml", *options],
        cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        _ask(process, 0, "initialize", INITIALIZE)
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        yield process
        process.stdin.close()


def _ask(process, number, method, params):
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    while True:
        answer = json.loads(process.stdout.readline())
        if "method" not in answer:
            return answer["result"]


def _first_answer(home, options):
    started = time.perf_counter()
    with _client(home, options):
        return time.perf_counter() - started


def _calls(process, calls):
    """Megabytes, seconds of CPU and seconds on the clock, for one call."""
    (tool, *_) = (tool["name"] for tool in _ask(process, 1, "tools/list", {})["tools"])
    call = {"name": "bench_echo", "arguments": {"text": "x"}}
    assert tool.startswith("bench_")
    for number in range(100):
        _ask(process, number + 2, "tools/call", call)
    before, started = _cpu(process.pid), time.perf_counter()
    for number in range(calls):
        _ask(process, number + 200, "tools/call", call)
    seconds, cpu = time.perf_counter() - started, _cpu(process.pid) - before
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, cpu / calls, seconds / calls


def _cpu(pid):
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _stop(home):
    """End the gateway in the background."""
    for path in (home / ".local/state/multitap/gateways").glob("*-*.sock"):
        pid = path.stem.partition("-")[0]
        if pid.isdecimal():
            os.kill(int(pid), signal.SIGTERM)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.05)
