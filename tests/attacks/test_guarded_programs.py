"""What a program under `guard` can do: the network, terminals, shared memory, its own files."""

import asyncio
import json
import os
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from multitap.sandbox.private_places import PrivatePaths
from multitap.wire.process.sandbox_support import sandbox_support
from multitap.wire.process.spawner import open_spawner
from tests.attacks import guarded_program
from tests.attacks.guarded_program import NEEDS
from tests.attacks.test_sandbox_escapes import listening
from tests.module_life import nothing_left  # noqa: F401 - a fixture

SUPPORT = sandbox_support()
pytestmark = [
    pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason)),
    pytest.mark.timeout(180),
]

DEVICES = ("null", "zero", "full", "random", "urandom", "ptmx", "pts")


def guard_orders(root, **more):
    """Orders of the level `guard`: everything but private places can be read."""
    own = root / "state" / "sandboxes" / "guarded"
    (own / "tmp").mkdir(parents=True, exist_ok=True)
    private = PrivatePaths.of_user(Path.home().resolve(), root / "state")
    return {
        "read": [*private.openable("/")],
        "write": [str(own), "/dev/shm"],
        "devices": [f"/dev/{name}" for name in DEVICES],
        "proxy": 0,
        "processes": 256,
        "memory": 8 << 30,
        "proc": False,
        "network": True,
        "sockets": [],
        "socket_program": "",
        "closed_ports": "",
        "observe": False,
        "watch": False,
        "wrapper": [],
        **more,
    }


async def run(orders, source, *arguments, settle=False):
    """The output of a confined Python program, and the reports about it."""
    out_read, out_write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    reports = []
    env = {"PATH": os.environ["PATH"], "TMPDIR": f"{orders['write'][0]}/tmp"}
    async with open_spawner() as spawner:
        try:
            child = await spawner.spawn(
                *(sys.executable, [sys.executable, "-I", "-S", "-c", source, *arguments]),
                env=env,
                cwd=Path("/"),
                pipes=(null, out_write, 2),
                orders=orders,
                on_report=lambda kind, value: reports.append((kind, value)),
            )
            if settle:
                await child.settle()
        finally:
            os.close(out_write)
            os.close(null)
        with os.fdopen(out_read, "rb") as output:
            said = await anyio.to_thread.run_sync(output.read)
        with anyio.fail_after(60):
            await child.exited.wait()
        await child.sweep()
    return said.decode(), reports


@contextmanager
def resolver():
    """Answers every question, as a resolver on loopback does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dns:
        dns.bind(("127.0.0.1", 0))

        def answer():
            while True:
                question, asker = dns.recvfrom(512)
                if question == b"stop":
                    return
                dns.sendto(question[:2] + b"hello", asker)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield dns.getsockname()[1]
        finally:
            dns.sendto(b"stop", dns.getsockname())
            thread.join()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("guarded").resolve()
    allowed = str(root / "allowed.sock")
    with (
        listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)) as web,
        listening(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)) as web6,
        listening(socket.AF_UNIX, socket.SOCK_STREAM, allowed),
        resolver() as dns,
    ):
        world = {
            "web": web.getsockname()[1],
            "web6": web6.getsockname()[1],
            "dns": dns,
            "allowed_socket": allowed,
        }
        source = Path(guarded_program.__file__).read_text()
        orders = guard_orders(root, sockets=[allowed])
        said, _ = asyncio.run(run(orders, source, json.dumps(world)))
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("name", NEEDS)
def test_a_guarded_program_can(results, name):
    assert results[name] == "hello"
