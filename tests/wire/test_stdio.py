"""Real processes, because the process boundary is the point."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
import uvloop

from multitap.config import Limits, StdioServer
from multitap.errors import AnswerInvalid, AnswerTimeout, CannotStart, WireClosed
from multitap.wire.jsonrpc import RpcError
from multitap.wire.process import open_spawner
from multitap.wire.stdio import ReadReceipt, open_stdio
from tests.processes import descendants
from tests.waiting import PATIENCE, until
from tests.wire.asking import ask as ask_on
from tests.wire.zoo_wire import shake_hands, tool, zoo
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

any_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
PIPE = 64 * 1024
"""Bytes that the kernel takes for a program that does not read."""


@pytest.fixture(scope="module", autouse=True)
def _used_uvloop():
    """The first loop of a process opens pipes that are never closed."""
    uvloop.run(anyio.sleep(0))


async def test_an_answer_comes_back_undecoded():
    async with zoo("good") as wire:
        result = await tool(wire, "echo", text="hello")

    assert result["content"] == [{"type": "text", "text": "hello"}]


async def test_a_line_over_the_limit_fails_its_call_names_the_limit_and_keeps_the_connection():
    async with zoo("good", limits=Limits(message=100_000)) as wire:
        with pytest.raises(AnswerInvalid, match=r"limits\.message"):
            await tool(wire, "big", bytes=200_000)

        assert (await tool(wire, "echo", text="still here"))["content"]


async def test_a_server_gets_only_its_own_three_descriptors():
    async with zoo("good") as wire:
        result = await tool(wire, "fds")

    assert {int(fd) for fd in result["structuredContent"]["result"]} <= {0, 1, 2, 3}


async def test_the_server_is_notified_of_a_timeout(tmp_path):
    async with zoo("good", env={"ZOO_DIR": str(tmp_path)}) as wire:
        with pytest.raises(AnswerTimeout) as caught:
            await tool(wire, "sleep", timeout=0.1, seconds=60)
        seen = await tool(wire, "cancelled")

    assert caught.value.sent
    assert len(seen["structuredContent"]["result"]) == 1


async def test_the_server_is_notified_of_a_cancelled_caller():
    async with zoo("good") as wire:
        with anyio.move_on_after(0.1):
            await tool(wire, "sleep", seconds=60)
        seen = await tool(wire, "cancelled")

    assert len(seen["structuredContent"]["result"]) == 1


async def test_progress_starts_the_time_again_up_to_the_hard_limit():
    reports = []
    async with zoo("good") as wire:
        params = {"name": "progress", "arguments": {"steps": 5, "interval": 0.1}}
        await ask_on(
            wire,
            "tools/call",
            params,
            timeout=0.3,
            on_progress=lambda *report: reports.append(report),
        )
        params = {"name": "progress", "arguments": {"steps": 100, "interval": 0.05}}
        with pytest.raises(AnswerTimeout, match="hard limit"):
            await ask_on(
                wire,
                "tools/call",
                params,
                timeout=0.3,
                hard_timeout=0.5,
                on_progress=lambda *_: None,
            )

    assert len(reports) == 5


async def test_a_write_that_blocks_is_covered_by_the_deadline():
    async with zoo("deaf") as wire:
        large = "x" * 400_000
        with pytest.raises(AnswerTimeout):
            await ask_on(wire, "ping", None, timeout=0.2)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(_expect_timeout, wire, large)
        with pytest.raises(AnswerTimeout) as caught:
            await ask_on(wire, "ping", None, timeout=0.1)

    assert not caught.value.sent


async def _expect_timeout(wire, text):
    with pytest.raises(AnswerTimeout):
        await ask_on(wire, "x", {"text": text}, timeout=0.2)


async def test_the_end_of_the_program_is_noticed_without_a_call_in_flight():
    async with zoo("good") as wire:
        os.kill(wire.evidence().pid, signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            await wire.closed.wait()
        with pytest.raises(WireClosed) as caught:
            await tool(wire, "echo", text="x")

        assert not caught.value.sent
        assert isinstance(wire.fault, WireClosed)


async def test_a_call_under_way_fails_at_once_when_the_program_ends():
    async with zoo("good") as wire:
        with anyio.fail_after(PATIENCE), pytest.raises(WireClosed) as caught:
            await tool(wire, "crash", timeout=PATIENCE)

        assert caught.value.sent


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"command": "no-such-program-anywhere"}, "not on the PATH"),
        ({"command": "./no/such/file"}, "no program"),
        ({"command": sys.executable, "cwd": "/no/such/folder"}, "working directory"),
        ({"command": __file__}, "permission denied"),
    ],
    ids=["program", "path", "cwd", "mode"],
)
async def test_what_cannot_start_says_why_and_what_to_do(config, words):
    async with open_spawner() as spawner:
        with pytest.raises(CannotStart, match=words) as caught:
            async with open_stdio("x", StdioServer(**config), spawner):
                pytest.fail("it started")

    assert caught.value.hint
    assert caught.value.missing


@pytest.mark.parametrize(
    ("head", "words", "hint"),
    [
        (b"#!/usr/bin/python3\r\npass\r\n", r"/usr/bin/python3\\r", "Unix line endings"),
        (b"#!/no/such/python -u\npass\n", "no '/no/such/python'", "install that interpreter"),
        (b"\x7fELF\x02\x01\x01" + bytes(100), "not a program", "another system or processor"),
        (b"pass\n", "not a program", "#!/usr/bin/env"),
    ],
    ids=["windows", "interpreter", "processor", "script"],
)
async def test_a_program_that_the_system_does_not_run_says_why(tmp_path, head, words, hint):
    program = tmp_path / "server"
    program.write_bytes(head)
    program.chmod(0o755)

    async with open_spawner() as spawner:
        with pytest.raises(CannotStart, match=words) as caught:
            async with open_stdio("x", StdioServer(command=str(program)), spawner):
                pytest.fail("it started")

    assert hint in caught.value.hint


async def test_a_stubborn_program_is_ended_and_its_exit_is_known():
    async with zoo("stubborn") as wire:
        await tool(wire, "echo", text="x")
    evidence = wire.evidence()

    assert evidence.exit_code == -signal.SIGKILL


async def test_fifty_stubborn_programs_end_together():
    program, *args = command("stubborn")
    config = StdioServer(command=program, args=tuple(args))
    with anyio.fail_after(PATIENCE):
        async with open_spawner() as spawner, anyio.create_task_group() as tasks:
            leave = anyio.Event()

            async def one(task_status):
                async with open_stdio("zoo", config, spawner) as wire:
                    await shake_hands(wire)
                    await tool(wire, "echo", text="x", timeout=PATIENCE)
                    task_status.started()
                    await leave.wait()

            for _ in range(50):
                await tasks.start(one)
            leave.set()
            await until(lambda: not tasks._tasks)


@pytest.mark.parametrize("how", ["spawn_child", "spawn_daemon"])
@pytest.mark.parametrize("options", [{}, {"clean": True}], ids=["tagged", "clean"])
async def test_children_and_daemons_of_a_server_end_with_the_hub(how, options):
    async with zoo("good") as wire:
        await tool(wire, how, **(options if how == "spawn_daemon" else {}))
        assert len(descendants(os.getpid())) >= 3

    assert not descendants(os.getpid())


async def test_standard_error_goes_to_the_log_and_its_tail_to_the_evidence(tmp_path):
    log = tmp_path / "logs" / "zoo.log"
    async with zoo("exit_at_start", log=log, handshake=False) as wire:
        with anyio.fail_after(PATIENCE):
            await wire.closed.wait()
    tail = wire.evidence().stderr

    stamped = log.read_text().splitlines()
    assert tail
    assert [line[len("2026-11-16 22:15:03 ") :] for line in stamped] == tail.splitlines()
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_secret_on_standard_error_is_masked(tmp_path):
    log = tmp_path / "zoo.log"
    env = {"ZOO_SECRET": "hunter2-hunter2"}
    async with zoo("prints_secret", log=log, env=env) as wire:
        with pytest.raises(RpcError):
            await tool(wire, "fault")

    assert "hunter2" not in wire.evidence().stderr
    assert "hunter2" not in log.read_text()
    assert "***" in log.read_text()


HOST = """
import sys, anyio
from tests.wire.zoo_wire import zoo, tool

async def main():
    async with zoo(sys.argv[1]) as wire:
        await tool(wire, "spawn_child")
        await tool(wire, "spawn_daemon")
        print(wire.evidence().pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("mode", ["good", "stubborn"])
async def test_nothing_survives_a_host_that_is_killed(mode):
    root = Path(__file__).parents[2]
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, mode], cwd=root, stdout=subprocess.PIPE, text=True
    )
    try:
        host.stdout.readline()
        started = descendants(host.pid)
        assert len(started) >= 4
    finally:
        host.kill()
        host.wait()
        host.stdout.close()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


async def test_a_killed_warden_takes_its_servers_along_and_the_next_start_has_a_new_one():
    async with open_spawner() as spawner:
        program, *args = command("good")
        config = StdioServer(command=program, args=tuple(args))
        async with open_stdio("zoo", config, spawner) as wire:
            await shake_hands(wire)
            spawner._process.kill()
            with anyio.fail_after(PATIENCE):
                await wire.closed.wait()
        async with open_stdio("zoo", config, spawner) as wire:
            await shake_hands(wire)
            assert await tool(wire, "echo", text="x")


def test_the_event_loop_may_be_uvloop():  # which keeps a descriptor: in a process of its own
    run = "anyio.run(zoo_wire.one_call, backend_options={'use_uvloop': True})"
    program = f"import anyio; from tests.wire import zoo_wire; {run}"
    done = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=False)

    assert done.returncode == 0


async def test_answers_in_any_order_reach_their_own_questions():
    async with zoo("reorder") as wire, anyio.create_task_group() as tasks:
        right = []

        async def ask(n):
            result = await tool(wire, "nonce", n=n)
            right.append(result["structuredContent"]["result"] == n)

        for n in range(100):
            tasks.start_soon(ask, n)

    assert right == [True] * 100


@contextmanager
def not_reading(wire):
    """A server that is stopped: within the block, it reads nothing."""
    pid = wire.evidence().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def give_up(wire, number, size):
    """Call that often, and cancel all calls while the server does not read."""
    few = PIPE * 3 // 4 // size  # the others find a pipe that is nearly full
    with not_reading(wire):
        async with anyio.create_task_group() as tasks:
            for at in range(number):
                tasks.start_soon(lambda: tool(wire, "echo", timeout=PATIENCE, text="x" * size))
                if at in {few, number - 1}:
                    await anyio.wait_all_tasks_blocked()
                    await anyio.lowlevel.checkpoint()  # several are written in the next turn
            tasks.cancel_scope.cancel()


@any_loop
@pytest.mark.parametrize("size", [10, 2_000, 20_000, 300_000])
def test_a_call_that_was_not_written_leaves_with_its_caller(tmp_path, run, size):
    ledger = Ledger(tmp_path)

    async def calls():
        async with zoo("good", env=ledger.env) as wire:
            await give_up(wire, 100, size)
            await tool(wire, "pid")
            await tool(wire, "cancelled")

    run(calls())

    executed = ledger.calls.count("echo")
    assert executed <= PIPE // size + 2  # what the pipe took, and the one that was begun
    assert len(ledger.cancelled) == executed


@any_loop
def test_a_call_that_times_out_before_it_was_written_never_arrives(tmp_path, run):
    ledger, outcomes = Ledger(tmp_path), []

    async def call(wire):
        with pytest.raises(AnswerTimeout) as caught:
            await tool(wire, "echo", timeout=0.05, text="x" * 20_000)
        outcomes.append(caught.value.sent)

    async def calls():
        async with zoo("good", env=ledger.env) as wire:
            with not_reading(wire):
                async with anyio.create_task_group() as tasks:
                    for _ in range(100):
                        tasks.start_soon(call, wire)
            await tool(wire, "pid")

    run(calls())

    assert ledger.calls.count("echo") == outcomes.count(True) == len(ledger.cancelled)
    assert outcomes.count(False) > 90


@any_loop
def test_calls_that_are_given_up_keep_no_memory(run):
    size, kept = 2**20, []

    async def calls():
        async with zoo("good") as wire:
            await tool(wire, "echo", text="x")
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                await give_up(wire, 50, size)
                gc.collect()
                after, _ = tracemalloc.get_traced_memory()
                kept.append(after - before)
            finally:
                tracemalloc.stop()
            await tool(wire, "pid")

    run(calls())

    # the one that was begun has to be completed, or all later messages would be unreadable
    assert kept[0] < 3 * size


@any_loop
def test_all_that_waits_for_the_pipe_arrives_in_the_end(tmp_path, run):
    ledger, answers = Ledger(tmp_path), []

    async def call(wire, number):
        result = await tool(wire, "echo", timeout=PATIENCE, text=f"{number} " * 3_000)
        answers.append(result["content"][0]["text"].split()[0])

    async def calls():
        async with zoo("good", env=ledger.env) as wire, anyio.create_task_group() as tasks:
            with not_reading(wire):
                for number in range(100):
                    tasks.start_soon(call, wire, number)
                await anyio.wait_all_tasks_blocked()

    run(calls())

    assert sorted(map(int, answers)) == [*range(100)]
    assert ledger.cancelled == []


LINE = b"x" * 100 + b"\n"


@pytest.fixture
def pipe():
    ours = {}
    ours["read"], ours["write"] = os.pipe()
    yield ours
    for fd in ours.values():
        os.close(fd)


@pytest.fixture
def receipt(pipe):
    receipt = ReadReceipt(pipe["write"])
    yield receipt
    receipt.close()


def write(receipt, pipe, data=LINE):
    if rest := receipt.write_first(data):
        os.write(pipe["write"], rest)


def test_what_stays_in_the_pipe_is_not_read(receipt, pipe):
    write(receipt, pipe)
    write(receipt, pipe)

    assert not receipt.is_read()
    assert os.read(pipe["read"], 1000) == LINE * 2
    assert receipt.is_read()


def test_a_single_byte_is_enough(receipt, pipe):
    write(receipt, pipe)
    os.read(pipe["read"], 1)
    write(receipt, pipe)

    assert receipt.is_read()


def test_nothing_is_read_of_what_came_too_late(receipt, pipe):
    os.close(pipe.pop("read"))

    assert receipt.write_first(LINE) == LINE
    assert not receipt.is_read()


@pytest.mark.parametrize("is_read", [False, True])
def test_the_answer_outlives_both_ends(receipt, pipe, is_read):
    write(receipt, pipe)
    if is_read:
        os.read(pipe["read"], 1000)
    os.close(pipe.pop("read"))
    receipt.close()

    assert receipt.is_read() is is_read
    assert receipt.write_first(LINE) == LINE


def test_the_reader_sees_the_end_once_the_receipt_is_closed(receipt, pipe):
    os.close(pipe.pop("write"))
    receipt.close()

    assert os.read(pipe["read"], 1) == b""
