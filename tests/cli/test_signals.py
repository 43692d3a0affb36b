"""Signals end a gateway in time, whatever its servers do."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import zoo
from tests.cli.test_app import wait_for
from tests.processes import descendants
from tests.waiting import PATIENCE
from tests.zoo.ledger import Ledger

CODES = {signal.SIGINT: 130, signal.SIGTERM: 0, signal.SIGHUP: 0}
STUCK = """
import anyio
from multitap.cli.signals import run_async

async def stuck():
    with anyio.CancelScope(shield=True):
        print("ready", flush=True)
        while True:
            pass

run_async(stuck, fast=True)
"""


LOST = """
import os, select, signal, weakref
from multitap.cli.signals import on_signal, stop

with on_signal(stop):
    freed = set()
    watched = weakref.ref(freed, lambda _: os.kill(os.getpid(), signal.{name}))
    del freed
    select.select([], [], [], 30)
"""


MAKING = """
import os, signal
from multitap.cli.signals import on_signal, stop

class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.{name})

with on_signal(stop):
    class Owner:
        field = Field()
"""

FAILING = """
import os, signal
from multitap.cli.signals import run_async

async def fail():
    os.kill(os.getpid(), signal.{name})
    raise OSError("the signal ended what it was starting")

run_async(fail)
"""

SLOW = """
import os, signal, sys, time
from multitap.cli.signals import LONGEST, on_signal

class Slow:
    def __del__(self, wait=time.sleep):
        wait(0.5)

slow = Slow()
with on_signal(lambda _: None, grace=0.3 - LONGEST):
    os.kill(os.getpid(), signal.SIGINT)
sys.exit(130)
"""


def serve(*arguments, before=(), **more):
    return subprocess.Popen(
        [*before, sys.executable, "-m", "multitap", "serve", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def ended(process, *numbers, started=()):
    """How it ends by these signals; what it has started ends with it."""
    started = descendants(process.pid) | {*started}
    with process:
        for number in numbers:
            process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    assert "Traceback" not in err, err
    return process.returncode, out


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("mode", ["good", "stubborn", "never_init", "slow_exit"])
def test_on_pipes_a_signal_is_enough(configure, tmp_path, mode, number):
    ledger = Ledger(tmp_path)
    configure(zoo=zoo(mode, env=ledger.env))
    process = serve()
    wait_for(lambda: ledger.starts)

    assert ended(process, number) == (CODES[number], "")


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("where", [(), ("--http", "0")], ids=["pipes", "http"])
def test_a_second_signal_changes_nothing(configure, tmp_path, where, number):
    ledger = Ledger(tmp_path)
    configure(zoo=zoo("stubborn", env=ledger.env))
    process = serve(*where)
    wait_for(lambda: ledger.starts)

    assert ended(process, number, number, signal.SIGTERM) == (CODES[number], "")


@pytest.mark.usefixtures("home")
def test_before_anything_is_started_it_is_the_same():
    process = serve("--demo")
    wait_for(lambda: _handles(process.pid, signal.SIGTERM))

    assert ended(process, signal.SIGTERM) == (0, "")


def test_what_was_ignored_from_the_start_stays_ignored(configure, tmp_path):
    ledger = Ledger(tmp_path)
    configure(zoo=zoo("good", env=ledger.env))
    process = serve("--http", "0", before=["nohup"])
    wait_for(lambda: ledger.starts)

    process.send_signal(signal.SIGHUP)

    assert not _handles(process.pid, signal.SIGHUP)
    assert ended(process, signal.SIGTERM) == (0, "")


def test_one_that_does_not_come_to_an_end_is_made_to():
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 143
    assert err == "error: not everything stopped in time; killing the rest\n"


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(LOST, id="in a callback"),
        pytest.param(MAKING, id="in a class that is made"),
        pytest.param(FAILING, id="in work that fails from it"),
    ],
)
def test_a_signal_counts_whatever_becomes_of_its_exception(program, number):
    source = program.format(name=number.name)
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert "ignored" not in done.stderr
    assert "OSError" not in done.stderr


def _handles(pid, number):
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_an_interpreter_that_ends_slowly_has_the_code_of_the_signal():
    done = subprocess.run([sys.executable, "-c", SLOW], timeout=PATIENCE, check=False)

    assert done.returncode == 130
