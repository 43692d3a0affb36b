"""The warden ends all that is ours, and nothing else."""

import os
import pty
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from multitap.wire import warden
from multitap.wire.process import open_spawner
from multitap.wire.warden import TAG, ProcessStat, ServerTag
from tests.processes import descendants
from tests.waiting import PATIENCE, until
from tests.wire.hosts import ROOT, host, is_running, orphans, unshare, until_gone
from tests.wire.zoo_wire import zoo

UNSHARE = unshare()
needs_namespaces = pytest.mark.skipif(
    UNSHARE is None, reason="pid namespaces are not to be had here (`unshare --pid`)"
)
SLEEP = ["sleep", "60"]
INSIDE = """
import subprocess, sys, anyio
from multitap.wire.warden import TAG
from tests.wire.hosts import orphans, until_gone
from tests.wire.zoo_wire import zoo

async def main():
    guest = subprocess.Popen(["sleep", "60"], env={TAG: sys.argv[1]}, start_new_session=True)
    left = await orphans()
    async with zoo("good"):
        await until_gone(*left)
    print(guest.poll())
    guest.kill()

anyio.run(main)
"""


@contextmanager
def running(*command, **more):
    with subprocess.Popen(command or SLEEP, **more) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def at_a_terminal(env):
    """A shell as a terminal emulator or multiplexer starts it."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(SLEEP[0], SLEEP, env)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)


async def wait_for_the_search_for_orphans():
    """Wait for a search for orphans that began after this call."""
    left = await orphans()
    async with zoo("good"):
        await until_gone(*left)


async def test_what_a_killed_hub_and_its_killed_warden_left_behind_is_ended_by_the_next():
    left = await orphans()
    async with zoo("good"):
        await until_gone(*left)


async def test_what_a_killed_warden_left_behind_is_ended_by_the_next_of_the_same_hub():
    async with open_spawner() as spawner:
        started = await _sleepers(spawner)
        left = [*_carriers(started.pid)]  # afterwards, any hub of this user may end them
        spawner._process.kill()
        with anyio.fail_after(PATIENCE):
            await started.exited.wait()
        await _sleepers(spawner)

        await until_gone(*left)


async def test_servers_of_another_living_hub_are_left_alone():
    with host() as other:
        await wait_for_the_search_for_orphans()

        assert other.call() == other.server
        assert all(is_running(pid) for pid in other.started)


@needs_namespaces
async def test_a_hub_in_another_pid_namespace_keeps_its_healthy_servers():
    with host(*UNSHARE) as other:
        inside = descendants(other.process.pid)
        assert len(inside) >= 5
        await wait_for_the_search_for_orphans()

        assert other.call() == other.server
        assert descendants(other.process.pid) == inside


@needs_namespaces
async def test_from_within_a_pid_namespace_the_servers_of_a_hub_outside_are_left_alone():
    with host() as outside:
        tag = str(ServerTag.of(outside.server))
        done = subprocess.run(
            [*UNSHARE, sys.executable, "-c", INSIDE, tag],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

        assert (done.stdout, done.stderr) == ("None\n", "")
        assert outside.call() == outside.server


@needs_namespaces
async def test_where_proc_shows_another_namespace_a_hub_works_and_harms_nobody():
    command = [word for word in UNSHARE if word != "--mount-proc"]
    program = "import anyio; from tests.wire import zoo_wire; anyio.run(zoo_wire.one_call)"
    with running() as bystander:
        done = subprocess.run(
            [*command, sys.executable, "-c", program], cwd=ROOT, timeout=PATIENCE, check=False
        )

        assert done.returncode == 0
        assert bystander.poll() is None


@pytest.fixture
async def stale():
    """The tag of a server whose hub and warden are long dead, and a place for it."""
    left = await orphans()
    tag = str(ServerTag.of(left[0]))
    yield {**os.environ, TAG: tag}
    for pid in left:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


async def test_a_process_that_only_inherited_a_stale_tag_is_left_alone(stale):
    with running(env=stale) as guest:
        await wait_for_the_search_for_orphans()

        assert guest.poll() is None


async def test_a_guest_is_left_alone_though_the_leader_of_its_session_is_gone(stale):
    opened = f"sleep 60 & env {TAG}={stale[TAG]} sleep 60 & echo $! $$"
    with running("sh", "-c", opened, stdout=subprocess.PIPE, start_new_session=True) as leader:
        guest, session = map(int, leader.stdout.readline().split())
        leader.wait()
        try:
            await wait_for_the_search_for_orphans()

            assert is_running(guest)
        finally:
            os.killpg(session, signal.SIGKILL)


async def test_what_somebody_uses_at_a_terminal_is_left_alone_though_a_server_opened_it(stale):
    with at_a_terminal(stale) as used:
        await wait_for_the_search_for_orphans()

        assert is_running(used)


async def test_a_tag_of_elsewhere_or_one_that_is_not_understood_is_no_reason_to_end_anything(stale):
    tag = stale[TAG]
    strange = {
        "another boot": tag.replace(tag[:4], "ffff", 1),
        "another namespace": tag.replace("-", "-1", 5),
        "of nowhere": tag.partition(".")[2],
        "longer": f"{tag}.1",
        "negative": tag.replace(".", ".-"),
        "another form": "999999999-1.abc.1",
        "empty": "",
    }
    with ExitStack() as stack:
        others = {
            name: stack.enter_context(running(env={**stale, TAG: tag}, start_new_session=True))
            for name, tag in strange.items()
        }
        await wait_for_the_search_for_orphans()

        assert [name for name, process in others.items() if process.poll() is not None] == []


async def test_a_daemon_with_a_stale_tag_is_ended(stale):
    with running(env=stale, start_new_session=True) as daemon:
        await wait_for_the_search_for_orphans()

        assert daemon.wait(5) == -signal.SIGKILL


def test_an_id_that_belongs_to_another_process_by_now_is_not_ended():
    with running() as process:
        before = ProcessStat.of(process.pid)
        before.started = "1"
        warden._end(process.pid, before)

        assert process.poll() is None


def test_a_process_whose_tag_changed_since_it_was_seen_is_not_ended():
    with running() as process:
        warden._end(
            process.pid, ProcessStat.of(process.pid), ServerTag("place", "1", "2", "3", "4")
        )

        assert process.poll() is None


def test_without_pidfds_a_process_is_ended_after_the_second_look(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with running() as process:
        warden._end(process.pid, ProcessStat.of(process.pid))

        assert process.wait(5) == -signal.SIGKILL


def test_a_warden_counts_as_gone_only_when_that_is_certain():
    us = os.getpid()

    assert not warden._is_gone(us, ProcessStat.of(us).started)
    assert warden._is_gone(us, "1")
    assert not warden._is_gone(10**30, "1")
    with running() as process:
        started = ProcessStat.of(process.pid).started
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert warden._is_gone(process.pid, started)
    assert warden._is_gone(process.pid, started)


async def test_the_id_of_an_ended_server_is_kept_until_its_group_is_gone():
    async with open_spawner() as spawner:
        child = await _sleepers(spawner, "exit 3")
        with anyio.fail_after(PATIENCE):
            await child.exited.wait()
        group = [pid for pid in _carriers(child.pid) if is_running(pid)]
        kept = ProcessStat.of(child.pid)
        await child.sweep()

        assert child.exit_code == 3
        assert kept.zombie
        assert group
        assert not any(map(is_running, group))
        assert ProcessStat.of(child.pid) is None


async def test_other_ended_servers_are_noticed_while_one_waits_to_be_swept():
    async with open_spawner() as spawner:
        children = [await _sleepers(spawner, f"exit {code}") for code in (1, 2, 3)]
        with anyio.fail_after(PATIENCE):
            for child in children:
                await child.exited.wait()

        assert [child.exit_code for child in children] == [1, 2, 3]
        for child in children:
            await child.sweep()
        assert not spawner._children


async def test_servers_that_end_together_are_swept_together_and_others_stay():
    async with open_spawner() as spawner:
        children = [await _sleepers(spawner) for _ in range(6)]
        other = await _sleepers(spawner)
        # so that all orders wait when it goes on
        os.kill(spawner._process.pid, signal.SIGSTOP)
        async with anyio.create_task_group() as tasks:
            for child in children:
                tasks.start_soon(child.sweep)
            await anyio.wait_all_tasks_blocked()
            os.kill(spawner._process.pid, signal.SIGCONT)
        with anyio.fail_after(PATIENCE):
            for child in children:
                await child.exited.wait()

        assert {ProcessStat.of(child.pid) for child in children} == {None}
        below = descendants(spawner._process.pid)
        assert {ProcessStat.of(pid).session for pid in below} == {other.pid}
        await other.sweep()


async def test_a_program_whose_start_is_given_up_does_not_run_on():
    async with open_spawner() as spawner:
        first = await _sleepers(spawner)
        os.kill(spawner._process.pid, signal.SIGSTOP)
        with anyio.move_on_after(0.1) as scope:
            await _sleepers(spawner)
        os.kill(spawner._process.pid, signal.SIGCONT)
        await until(lambda: len(spawner._children) <= 1)

        assert scope.cancelled_caught
        below = descendants(spawner._process.pid)
        assert {ProcessStat.of(pid).session for pid in below} == {first.pid}
        await first.sweep()


async def _sleepers(spawner, then="wait"):
    """A shell with a child in its group."""
    with Path(os.devnull).open("r+b") as null:
        program = ["sh", "-c", f"sleep 60 & {then}"]
        fds = [null.fileno()] * 3
        child = await spawner.spawn("/bin/sh", program, env={**os.environ}, cwd=None, pipes=fds)
    await until(lambda: any(pid != child.pid for pid in _carriers(child.pid)))
    return child


def _carriers(leader):
    """The processes with the tag of a server."""
    for pid in warden._processes():
        tag = ServerTag.of(pid)
        if tag is not None and tag.leader == str(leader):
            yield pid
