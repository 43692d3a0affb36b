"""Every way out of the sandbox that we know, tried by a real program: with it, and without it."""

import asyncio
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from multitap.config.models import SandboxRules, StdioServer
from multitap.http.egress.forward_proxy import ProxyAccess
from multitap.http.egress.traffic import Traffic
from multitap.wire.process.sandbox_support import sandbox_support
from multitap.wire.process.sandboxes import open_sandboxes
from multitap.wire.process.spawner import open_spawner
from tests.attacks import escape_probes
from tests.attacks.escape_probes import PROBES
from tests.module_life import nothing_left  # noqa: F401 - a fixture

SUPPORT = sandbox_support()
pytestmark = [
    pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason)),
    pytest.mark.timeout(180),
]

ALLOWED = {"proxy_to_declared_host"}
"""What a confined program may do: the proxy works, so that a refusal means something."""

NEVER_WORK = {
    "proxy_to_metadata_address",
    "proxy_with_credentials_of_nobody",
    "proxy_with_user_in_address",
    "gain_privileges",
}
"""Refused to everybody, or a mere fact about the process: nothing to compare with."""

ROOT_ONLY = {
    *(
        "change_core_pattern",
        "change_kernel_setting",
        "change_root",
        "enter_namespace_of_another_server",
    ),
    *(
        "kernel_program",
        "make_device",
        "mount",
        "new_mount_interface",
        "packet_socket",
        "raw_socket",
    ),
    *(
        "read_by_file_handle",
        "read_raw_disk",
        "read_shadow",
        "write_kernel_log",
        "performance_counters",
    ),
}
"""What only root could do anyway."""

KERNELS_CHOICE = {
    *("io_ring", "keyring", "multipath_tcp", "open_message_queue", "other_system_call_table"),
    *("performance_counters", "set_attribute", "tcp_fast_open", "tcp_fast_open_by_message"),
    *("user_fault_handler", "user_namespace", "clone_into_namespace", "clone3_into_namespace"),
    *("x32_system_call", "read_raw_disk", "write_kernel_log", "kernel_program", "tcp_over_ipv6"),
    *("udp_over_ipv6", "trace_another_server", "take_descriptor_of_another_server"),
    *("type_at_a_terminal", "read_by_file_handle", "change_kernel_setting"),
}
"""What not every kernel has; where it has, the comparison counts."""

VICTIM = """
import ctypes, os, sys
secret = ctypes.create_string_buffer(b"secret")
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(family, kind, address):
    """A canary: greets whoever connects."""
    with socket.socket(family, kind) as canary:
        canary.bind(address)
        if kind != socket.SOCK_STREAM:
            yield canary
            return
        canary.listen(64)
        over = threading.Event()

        def greet():
            while not over.is_set():
                guest, _ = canary.accept()
                with guest:
                    if not over.is_set():
                        guest.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield canary
        finally:
            over.set()
            with socket.socket(family, kind) as last:
                last.connect(canary.getsockname())
            thread.join()


@contextmanager
def shared_segment():
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x4D540000 | (os.getpid() & 0xFFFF)
    segment = libc.shmget(key, 4096, 0o1000 | 0o600)
    try:
        yield key
    finally:
        libc.shmctl(segment, 0, None)


@contextmanager
def victim():
    """Another server: a process of the same user, with secrets wherever processes have them."""
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, "--token=secret"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"SECRET": "secret"},
        start_new_session=True,
    )
    with process:
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


def write(path, content="secret"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return str(path)


def furnish(root):
    """A home with secrets, a project, and the state of a hub with another server."""
    home = root / "home"
    for name in (".ssh/id_rsa", ".aws/credentials", ".gnupg/private", ".bashrc"):
        write(home / name)
    for name in ("notes", "movable", "disposable"):
        write(home / name)
    project = root / "project"
    write(project / ".git/hooks/sample")
    return {
        "home": str(home),
        "project": str(project),
        "vault": write(home / ".local/share/multitap/vault/secrets.json"),
        "config": write(home / ".config/multitap/multitap.toml"),
        "other_state": write(root / "state/sandboxes/other-123/home/token"),
        "hub_state": write(root / "state/hub.sqlite"),
    }


async def attempted(world, spawner, *, env, orders=None, cwd=None):
    """What became of each probe."""
    out_read, out_write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        source = Path(escape_probes.__file__).read_text()
        command = [sys.executable, "-I", "-S", "-c", source, json.dumps(world)]
        child = await spawner.spawn(
            *(sys.executable, command),
            env=env,
            cwd=cwd,
            pipes=(null, out_write, out_write),
            orders=orders,
        )
    finally:
        os.close(out_write)
        os.close(null)
    with os.fdopen(out_read, "rb") as output:
        said = await anyio.to_thread.run_sync(output.read)
    with anyio.fail_after(60):
        await child.exited.wait()
    await child.sweep()
    return json.loads(said.splitlines()[-1])


async def all_attempted(root, world):
    """The same without a sandbox, in one, and in one whose processes all have /proc/self."""
    rules = SandboxRules(hosts=(f"127.0.0.1:{world['declared']}", "*.example.com"))
    config = StdioServer(
        command=sys.executable,
        provenance="project",
        sandbox="strict",
        sandbox_rules=rules,
        cwd=root / "project",
    )
    async with open_spawner() as spawner, open_sandboxes(root / "state", SUPPORT) as sandboxes:
        base = {"PATH": os.environ["PATH"]}
        launch = await sandboxes.launch("probe", config, sys.executable, base)
        elsewhere = ("127.0.0.2", launch.orders["proxy"])
        world["proxy_port"] = launch.orders["proxy"]
        open_access = ProxyAccess("free", (), Traffic())
        open_access.everything = True
        open_env = {**base, "HTTPS_PROXY": sandboxes._proxy.admit(open_access)}
        with listening(socket.AF_INET, socket.SOCK_STREAM, elsewhere), launch:
            place = root / "free"
            place.mkdir()
            world["wanted"] = sorted(PROBES.keys() - NEVER_WORK)
            world["proc"] = False
            free = await attempted(world, spawner, env={**open_env, "TMPDIR": str(place)})
            world["wanted"] = sorted(PROBES)
            confined = []
            for proc in (False, True):
                furnish(root)
                world["proc"] = proc
                orders = {**launch.orders, "proc": proc}
                confined.append(
                    await attempted(world, spawner, env=launch.env, orders=orders, cwd=launch.cwd)
                )
    return free, *confined


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    root = tmp_path_factory.mktemp("world").resolve()
    world = furnish(root)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", world["home"])
        for name in [name for name in os.environ if name.startswith("XDG_")]:
            patch.delenv(name)
        world["hub"] = os.getpid()
        world["victim"], world["address"] = stack.enter_context(victim())
        tcp = stack.enter_context(listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)))
        world["tcp"] = tcp.getsockname()[1]
        tcp = stack.enter_context(listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)))
        world["declared"] = tcp.getsockname()[1]
        udp = stack.enter_context(listening(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)))
        world["udp"] = udp.getsockname()[1]
        short = Path("/tmp", f"multitap-probes-{os.getpid()}")
        short.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, short)
        world["unix"], world["unix_datagram"] = str(short / "docker.sock"), str(short / "log")
        stack.enter_context(listening(socket.AF_UNIX, socket.SOCK_STREAM, world["unix"]))
        stack.enter_context(listening(socket.AF_UNIX, socket.SOCK_DGRAM, world["unix_datagram"]))
        world["abstract"] = f"@multitap-{os.getpid()}"
        name = world["abstract"].replace("@", "\0")
        stack.enter_context(listening(socket.AF_UNIX, socket.SOCK_STREAM, name))
        world["shm"] = f"/dev/shm/multitap-{os.getpid()}"
        write(Path(world["shm"]))
        stack.callback(Path(world["shm"]).unlink)
        world["segment_key"] = stack.enter_context(shared_segment())
        yield asyncio.run(all_attempted(root, world))


@pytest.mark.parametrize("name", sorted(PROBES.keys() - NEVER_WORK))
def test_a_probe_succeeds_without_the_sandbox(outcomes, name):
    free, *_ = outcomes
    if not free[name].startswith("ESCAPED") and (
        name in KERNELS_CHOICE or (name in ROOT_ONLY and os.geteuid() != 0)
    ):
        pytest.skip(f"not possible here at all: {free[name]}")

    assert free[name].startswith("ESCAPED")


@pytest.mark.parametrize("name", sorted(PROBES.keys() - ALLOWED))
def test_the_sandbox_stops_a_probe(outcomes, name):
    _, *confined = outcomes

    assert [one[name] for one in confined if not one[name].startswith("STOPPED")] == []


def test_a_confined_program_reaches_what_its_rules_declare(outcomes):
    _, *confined = outcomes

    assert all("hello" in one["proxy_to_declared_host"] for one in confined)


def test_there_are_more_than_forty_probes():
    assert len(PROBES) > 40
