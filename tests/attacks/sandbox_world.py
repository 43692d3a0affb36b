"""A machine with things to steal and to break, and what a confined program gets of it.

Run as a program of its own, by another user: `python -m tests.attacks.sandbox_world ROOT`.
"""

import asyncio
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio

from multitap.config.models import SandboxRules, StdioServer
from multitap.http.closed_ports import close_port
from multitap.sandbox.egress import ProxyAccess
from multitap.sandbox.learning import Traffic
from multitap.sandbox.levels import sandbox_support
from multitap.sandbox.sandboxes import open_sandboxes
from multitap.wire.process import open_spawner
from tests.attacks import escape_probes, guarded_program
from tests.attacks.escape_probes import PROBES
from tests.waiting import PATIENCE

NEVER_WORK = {
    "proxy_to_metadata_address",
    "proxy_with_credentials_of_nobody",
    "proxy_with_user_in_address",
    "gain_privileges",
}
"""Refused to everybody, or a mere fact about the process: nothing to compare with."""

VICTIM = """
import ctypes, os, pty, sys
secret = ctypes.create_string_buffer(b"secret")
master, slave = os.openpty()
memory = os.memfd_create("secret")
os.truncate(memory, 100)
print(ctypes.addressof(secret), os.ttyname(slave), memory, flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(family, kind, address):
    """A canary: greets whoever connects."""
    with socket.socket(family, kind) as canary:
        if address == ("::", 0):
            canary.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        canary.bind(address)
        if kind == socket.SOCK_DGRAM:
            yield canary
            return
        canary.listen(64)
        over = threading.Event()

        def greet():
            while not over.is_set():
                guest, _ = canary.accept()
                with guest, suppress(ConnectionError):
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
        address, terminal, memory = process.stdout.readline().decode().split()
        yield process.pid, int(address), terminal, int(memory)
        process.stdin.close()


def addresses_of_this_machine():
    """What others would call this machine by; none without a network."""
    for family, elsewhere in ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as scratch:
            scratch.connect((elsewhere, 9))
            yield scratch.getsockname()[0]


def link_local_addresses():
    """Addresses that only neighbours can use, with the interface of each."""
    with suppress(OSError):
        for line in Path("/proc/self/net/if_inet6").read_text().splitlines():
            address, index, *_ = line.split()
            if address.startswith("fe80"):
                text = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
                yield text, int(index, 16)


def write(path, content="secret"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return str(path)


def furnish(root):
    """A home with secrets, a project, and the state of a hub with another server."""
    home = root / "home"
    for name in (".ssh/id_rsa", ".aws/credentials", ".gnupg/private", ".bashrc"):
        write(home / name)
    for name in ("notes", "movable", "disposable", ".npm/_npx/run.js", ".cache/uv/wheel.py"):
        write(home / name)
        (home / name).chmod(0o644)
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


async def run(spawner, source, argument, *, env, orders=None, cwd=None, on_start=None):
    """The output of a Python program, and the reports about it."""
    out_read, out_write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    reports = []
    try:
        child = await spawner.spawn(
            *(sys.executable, [sys.executable, "-I", "-S", "-c", source, argument]),
            env=env,
            cwd=cwd,
            pipes=(null, out_write, out_write),
            orders=orders,
            on_report=lambda kind, value: reports.append((kind, value)),
        )
        if on_start is not None:
            await on_start(child)
    finally:
        os.close(out_write)
        os.close(null)
    with os.fdopen(out_read, "rb") as output:
        said = await anyio.to_thread.run_sync(output.read)
    with anyio.fail_after(PATIENCE):
        await child.exited.wait()
    await child.sweep()
    return said.decode(), reports


async def run_guarded(root, source, argument="", *, on_start=None, **more):
    """The same under `guard`, with some orders changed."""
    async with (
        open_spawner() as spawner,
        open_sandboxes(root / "state", sandbox_support()) as sandboxes,
    ):
        with await guarded(sandboxes) as launch:
            return await run(
                spawner,
                source,
                argument,
                env=launch.env,
                orders={**launch.orders, **more},
                cwd=launch.cwd,
                on_start=on_start,
            )


async def guarded(sandboxes):
    """How a program of a registry is started."""
    config = StdioServer(command=sys.executable, provenance="registry", sandbox="guard")
    base = {"PATH": os.environ["PATH"]}
    return await sandboxes.launch("guarded", config, sys.executable, base)


async def attempted(world, spawner, **more):
    """What became of each probe."""
    source = Path(escape_probes.__file__).read_text()
    said, _ = await run(spawner, source, json.dumps(world), **more)
    return json.loads(said.splitlines()[-1])


async def all_attempted(root, world):
    """What became of each probe, by the level that it was tried at; `free` is without a sandbox."""
    rules = SandboxRules(hosts=(f"127.0.0.1:{world['declared']}", "*.example.com"))
    config = StdioServer(
        command=sys.executable,
        provenance="project",
        sandbox="strict",
        sandbox_rules=rules,
        cwd=root / "project",
    )
    results = {}
    async with (
        open_spawner() as spawner,
        open_sandboxes(root / "state", sandbox_support()) as sandboxes,
    ):
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
            world |= {"wanted": sorted(PROBES.keys() - NEVER_WORK), "proc": False}
            results["free"] = await attempted(
                world, spawner, env={**open_env, "TMPDIR": str(place)}
            )
            world["wanted"] = sorted(PROBES)
            for level, proc in (("strict", False), ("strict with /proc/self", True)):
                furnish(root)
                world["proc"] = proc
                orders = {**launch.orders, "proc": proc}
                results[level] = await attempted(
                    world, spawner, env=launch.env, orders=orders, cwd=launch.cwd
                )
            furnish(root)
            with await guarded(sandboxes) as second:
                results["guard"] = await attempted(
                    {**world, "proc": False},
                    spawner,
                    env=second.env,
                    orders=second.orders,
                    cwd=second.cwd,
                )
    return results


def sockets_of_others(stack, folder, home):
    """Unix sockets as programs have them, and one with an abstract name."""
    sockets = {
        "agent": folder / "ssh-agent" / "agent.1",
        "key_agent": home / ".gnupg" / "S.gpg-agent",
        "bus": folder / "run" / "bus",
        "containers": folder / "docker.sock",
        "display": folder / ".X11-unix" / "X0",
        "multiplexer": folder / "tmux-0" / "default",
        "control": folder / "multitap" / "control.sock",
    }
    for path in sockets.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(listening(socket.AF_UNIX, socket.SOCK_STREAM, str(path)))
    packets, log = str(folder / "packets"), str(folder / "log")
    stack.enter_context(listening(socket.AF_UNIX, socket.SOCK_SEQPACKET, packets))
    stack.enter_context(listening(socket.AF_UNIX, socket.SOCK_DGRAM, log))
    abstract = f"@multitap-{os.getpid()}"
    stack.enter_context(listening(socket.AF_UNIX, socket.SOCK_STREAM, abstract.replace("@", "\0")))
    names = {name: str(path) for name, path in sockets.items()}
    return {**names, "packets": packets, "unix_datagram": log, "abstract": abstract}


def try_everything(root):
    """What became of each probe, by level; `$HOME` is `ROOT/home`."""
    world = furnish(root)
    with ExitStack() as stack:
        world["hub"] = os.getpid()
        facts = stack.enter_context(victim())
        world |= zip(("victim", "address", "terminal", "memory"), facts, strict=True)
        for name in ("tcp", "declared"):
            tcp = listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
            world[name] = stack.enter_context(tcp).getsockname()[1]
        gateway = listening(socket.AF_INET6, socket.SOCK_STREAM, ("::", 0))
        world["gateway"] = stack.enter_context(gateway).getsockname()[1]
        stack.enter_context(close_port(world["gateway"]))
        world["machine"] = [*addresses_of_this_machine()]
        world["link_local"] = [*link_local_addresses()]
        udp = stack.enter_context(listening(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)))
        world["udp"] = udp.getsockname()[1]
        short = Path(tempfile.mkdtemp(prefix="multitap-", dir="/tmp"))
        stack.callback(shutil.rmtree, short)
        world |= sockets_of_others(stack, short, Path(world["home"]))
        world["shm"] = f"/dev/shm/multitap-{os.getpid()}"
        write(Path(world["shm"]))
        stack.callback(Path(world["shm"]).unlink, missing_ok=True)
        world["segment_key"] = stack.enter_context(shared_segment())
        return asyncio.run(all_attempted(root, world))


def use_everything(root):
    """What a program under `guard` could do of all that it must be able to do."""
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
        said, _ = asyncio.run(run_guarded(root, source, json.dumps(world), sockets=[allowed]))
    return json.loads(said.splitlines()[-1])


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(json.dumps({"escapes": try_everything(place), "uses": use_everything(place)}))
