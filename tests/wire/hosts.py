"""Programs with a hub in them, in processes of their own, and what they leave behind."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import anyio

from multitap.wire.warden import ProcessStat
from tests.processes import descendants
from tests.waiting import until
from tests.wire.zoo_wire import tool, zoo

ROOT = Path(__file__).parents[2]
HOST = [sys.executable, "-m", "tests.wire.hosts"]


def is_running(pid):
    stat = ProcessStat.of(pid)
    return stat is not None and not stat.zombie


async def until_gone(*pids):
    await until(lambda: not any(is_running(pid) for pid in pids))


@contextmanager
def host(*before, env=None):
    """A host, perhaps started by another program; its server and all that one started."""
    process = subprocess.Popen(
        [*before, *HOST],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Host(process)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class Host:
    def __init__(self, process):
        self.process = process
        words = process.stdout.readline().split()
        self.warden, self.server, *self.started = map(int, words)

    def call(self):
        """What the server's tool says now: the id of its process."""
        self.process.stdin.write("call\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline() or 0)


async def orphans():
    """The leftover processes of a server whose host and warden were killed."""
    with host() as lost:
        os.kill(lost.warden, signal.SIGSTOP)  # or it would do its duty
        lost.process.kill()
        lost.process.wait()
        os.kill(lost.warden, signal.SIGKILL)
        await until_gone(lost.warden, lost.server)
    assert all(is_running(pid) for pid in lost.started)
    return lost.started


def unshare():
    """The command that gives a program a pid namespace of its own, or None."""
    for options in ([], ["--user", "--map-current-user"]):
        command = ["unshare", *options, "--pid", "--fork", "--kill-child", "--mount-proc"]
        if (
            shutil.which("unshare")
            and not subprocess.run(
                [*command, "true"], stderr=subprocess.DEVNULL, check=False
            ).returncode
        ):
            return command
    return None


async def main():
    async with zoo("good") as wire:
        child = await tool(wire, "spawn_child")
        daemon = await tool(wire, "spawn_daemon")
        started = [one["structuredContent"]["result"] for one in (child, daemon)]
        (warden,) = (
            pid for pid in descendants(os.getpid()) if ProcessStat.of(pid).parent == os.getpid()
        )
        print(warden, wire.evidence().pid, *started, flush=True)
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            answer = await tool(wire, "pid")
            print(answer["content"][0]["text"], flush=True)


if __name__ == "__main__":
    anyio.run(main)
