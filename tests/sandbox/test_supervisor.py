"""What the warden refuses a guarded program, and what it reports."""

import fcntl
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from multitap.http.closed_ports import close_port
from multitap.sandbox.levels import sandbox_support
from multitap.sandbox.sandboxes import open_sandboxes
from multitap.wire import warden
from multitap.wire.process import open_spawner
from tests.attacks.sandbox_world import guarded, listening, run, run_guarded
from tests.waiting import until

SUPPORT = sandbox_support()
pytestmark = pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason))

CHANGES = """
import json, os, sys
def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        pass
outside, = sys.argv[1:]
own = os.environ["TMPDIR"]
os.symlink(outside, f"{own}/link")
for path in (f"{outside}/new", f"{own}/link/new", f"{outside}/old", f"{own}/mine", "/dev/null"):
    attempt(os.open, path, os.O_WRONLY | os.O_CREAT)
attempt(os.open, f"{outside}/read", os.O_RDONLY)
attempt(os.open, f"{outside}/missing", os.O_WRONLY)
attempt(os.mkdir, outside)
attempt(os.mkdir, f"{outside}/folder")
attempt(os.mkdir, f"{outside}/nowhere/folder")
attempt(os.mkdir, f"{outside}/__pycache__")
attempt(os.unlink, f"{outside}/missing")
attempt(os.rename, f"{outside}/read", f"{outside}/renamed")
attempt(os.chmod, f"{outside}/mode", 0o600)
"""
WAITING = """
import os, sys
outside, = sys.argv[1:]
gate = f"{os.environ['TMPDIR']}/gate"
os.mkfifo(gate)
open(gate).read()
try:
    open(f"{outside}/new", "w")
except PermissionError as exc:
    print(exc.strerror)
"""
CONNECTING = """
import json, socket, sys
for family, address in json.loads(sys.argv[1]):
    with socket.socket(family) as connected:
        address = tuple(address) if isinstance(address, list) else address
        print(connected.connect_ex(address))
"""
EXCHANGING = """
import ctypes, os, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
port = int(sys.argv[1])
address = struct.pack("=H2s4s8x", socket.AF_INET, port.to_bytes(2, "big"), bytes([127, 0, 0, 1]))
unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()
slot = os.dup(unix.fileno())
over = threading.Event()
def exchange():
    while not over.is_set():
        os.dup2(unix.fileno(), slot)
        os.dup2(tcp.fileno(), slot)
sys.setswitchinterval(1e-5)
thread = threading.Thread(target=exchange)
thread.start()
any(libc.bind(slot, address, len(address)) == 0 for _ in range(2000))
over.set()
thread.join()
try:
    tcp.listen()
    print(tcp.getsockname()[1] == port)
except OSError:
    print(False)
"""
LINKING = """
import os
for number in range(64):
    link = f"{os.environ['TMPDIR']}/{number}"
    os.symlink(f"/proc/self/fd/{number}", link)
    for change in (lambda path: os.chmod(path, 0o600), os.utime):
        try:
            change(link)
            print(number, "changed")
        except OSError:
            pass
"""
MISTAKEN = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("/etc/passwd", os.O_RDONLY)
address = ctypes.create_string_buffer(16)
for _ in range(300):
    libc.bind(file, address, 16)
    libc.listen(file, 1)
    libc.connect(file, address, 16)
    libc.inotify_add_watch(file, b"/usr", 0xFFF)
with socket.socket() as working:
    working.bind(("127.0.0.1", 0))
    working.listen()
    print("works")
"""
LEAVING = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        for number in range(3):
            os.close(number)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
"""
CROWD = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
print(flush=True)
os.close(1)
os.close(2)
time.sleep(600)
"""
FORKING = """
import os
for _ in range(2):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
print("forked")
"""
MARKED = """
import resource
for change in (lambda: resource.setrlimit(10, (0, 0)), lambda: resource.prlimit(0, 10, (0, 0))):
    try:
        change()
        print("changed")
    except (OSError, ValueError):
        pass
print(resource.getrlimit(10) != (0, 0))
"""


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path.resolve() / "outside"
    folder.mkdir()
    for name in ("old", "read", "mode"):
        (folder / name).touch()
    return folder


async def test_changes_outside_are_reported_once_while_a_program_starts(tmp_path, outside):
    _, reports = await run_guarded(tmp_path.resolve(), CHANGES, str(outside))

    assert reports == [
        ("denied", f"{outside}/{name}")
        for name in ("new", "old", "folder", "read", "renamed", "mode")
    ]


async def test_nothing_is_reported_once_a_program_is_up(tmp_path, outside):
    root = tmp_path.resolve()

    def gates():
        return [*root.glob("state/sandboxes/*/tmp/gate")]

    async def open_gate(child):
        await until(gates)
        await child.settle()
        await anyio.Path(gates()[0]).write_text("")

    said, reports = await run_guarded(root, WAITING, str(outside), on_start=open_gate)

    assert said == "Permission denied\n"
    assert reports == []


async def test_refused_addresses_are_reported_as_people_write_them(tmp_path):
    root = tmp_path.resolve()
    closed = [
        (socket.AF_INET, ("127.0.0.1", 9)),
        (socket.AF_INET, ("127.0.0.1", 9)),
        (socket.AF_INET6, ("::1", 9)),
        (socket.AF_UNIX, str(root / "agent")),
        (socket.AF_UNIX, "\0name"),
    ]
    with close_port(9), listening(socket.AF_UNIX, socket.SOCK_STREAM, str(root / "agent")):
        said, reports = await run_guarded(root, CONNECTING, json.dumps(closed))

    assert said.split() == ["13"] * 5
    assert reports == [
        ("refused", address) for address in ("127.0.0.1:9", "[::1]:9", f"{root}/agent", "@name")
    ]


async def test_a_port_of_a_dead_process_is_open(tmp_path):
    root = tmp_path.resolve()
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    folder = root / "ports"
    folder.mkdir()
    (folder / "notes.txt").touch()
    with listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)) as web:
        port = web.getsockname()[1]
        record = folder / f"{gone.pid}-{port}"
        record.touch()
        addresses = json.dumps([(socket.AF_INET, ("127.0.0.1", port))])
        said, reports = await run_guarded(root, CONNECTING, addresses, closed_ports=str(folder))
        with record.open() as held:  # as by a process of another container
            fcntl.flock(held, fcntl.LOCK_EX)
            locked, _ = await run_guarded(root, CONNECTING, addresses, closed_ports=str(folder))

    assert (said, locked) == ("0\n", "13\n")
    assert reports == []


async def test_a_socket_of_one_program_is_closed_to_others(tmp_path):
    root = tmp_path.resolve()
    address = str(root / "docker.sock")
    addresses = json.dumps([(socket.AF_UNIX, address)])
    with listening(socket.AF_UNIX, socket.SOCK_STREAM, address):
        said, _ = await run_guarded(
            root,
            CONNECTING,
            addresses,
            sockets=[address],
            socket_program=os.path.realpath(sys.executable),
        )
        other, reports = await run_guarded(
            root, CONNECTING, addresses, sockets=[address], socket_program="/usr/bin/docker"
        )

    assert (said, other) == ("0\n", "13\n")
    assert reports == [("refused", address)]


async def test_a_link_that_appears_on_the_way_to_an_allowed_place_opens_nothing(tmp_path):
    root = tmp_path.resolve()
    (root / "real" / "place").mkdir(parents=True)
    (root / "real" / "place" / "secret").write_text("secret")
    (root / "swapped").symlink_to("real")
    source = "import sys; print(open(sys.argv[1]).read())"
    system = ["/usr", "/lib", "/lib64", "/etc", sys.prefix, sys.base_prefix]
    places = [os.path.realpath(place) for place in system]
    results = []
    for folder in ("real", "swapped"):
        read = [*places, f"{root}/{folder}/place"]
        said, _ = await run_guarded(root, source, f"{root}/{folder}/place/secret", read=read)
        results.append(said.splitlines()[-1])

    assert results[0] == "secret"
    assert "PermissionError" in results[1]


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm_installs_a_package_of_its_own(tmp_path):
    root = tmp_path.resolve()
    source = """
import json, os, pathlib, subprocess
package = pathlib.Path("package")
package.mkdir()
(package / "package.json").write_text('{"name": "hello", "version": "1.0.0", "bin": "hello.js"}')
(package / "hello.js").write_text("#!/usr/bin/env node\\nconsole.log('hello')\\n")
subprocess.run(["npm", "pack", "--silent", "./package"], check=True)
subprocess.run(["npx", "--offline", "-y", "./hello-1.0.0.tgz"], check=True)
"""
    said, reports = await run_guarded(root, source)

    assert said.splitlines()[-1] == "hello"
    assert reports == []


async def test_where_calls_cannot_be_supervised_nothing_is_confined(tmp_path):
    """A confined program is on such a machine, as programs in many containers are."""
    folder = Path(warden.__file__).parent.parent
    source = """
import sys
sys.path.append(sys.argv[1])
from sandbox.calling_process import check_access
try:
    check_access()
except OSError as exc:
    print(exc.strerror)
"""
    said, _ = await run_guarded(tmp_path.resolve(), source, str(folder))

    assert said == "`pidfd_getfd` is forbidden here\n"


async def test_a_program_cannot_listen_on_a_reserved_port_by_exchanging_sockets(tmp_path):
    root = tmp_path.resolve()
    with socket.create_server(("127.0.0.1", 0)) as scratch:
        port = scratch.getsockname()[1]
    reserved = root / "ports" / "reserved"
    reserved.mkdir(parents=True)
    (reserved / str(port)).touch()

    said, _ = await run_guarded(root, EXCHANGING, str(port), closed_ports=str(root / "ports"))

    assert said == "False\n"


async def test_a_link_to_descriptors_leads_to_none_of_the_wardens(tmp_path):
    said, _ = await run_guarded(tmp_path.resolve(), LINKING)

    assert said == ""


async def test_mistaken_calls_use_up_nothing_of_the_warden(tmp_path):
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    try:
        said, _ = await run_guarded(tmp_path.resolve(), MISTAKEN)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))

    assert said == "works\n"


async def test_a_daemon_that_denies_its_origin_ends_with_its_server(tmp_path):
    async with (
        open_spawner() as spawner,
        open_sandboxes(tmp_path.resolve() / "state", SUPPORT) as sandboxes,
    ):
        with await guarded(sandboxes) as launch:
            said, _ = await run(spawner, LEAVING, "", env=launch.env, orders=launch.orders)

            assert not Path(f"/proc/{int(said)}").exists()


async def test_the_processes_of_another_server_do_not_count(tmp_path):
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    async with (
        open_spawner() as spawner,
        open_sandboxes(tmp_path.resolve() / "state", SUPPORT) as sandboxes,
    ):
        with await guarded(sandboxes) as launch, os.fdopen(read) as crowded:
            crowd = await spawner.spawn(
                *(sys.executable, [sys.executable, "-c", CROWD]),
                env=launch.env,
                cwd=None,
                pipes=(null, write, null),
                orders=launch.orders,
            )
            os.close(write)
            os.close(null)
            crowded.readline()
            orders = {**launch.orders, "processes": 3}
            said, _ = await run(spawner, FORKING, "", env=launch.env, orders=orders)
            await crowd.sweep()

    assert said == "forked\n"


async def test_a_link_in_its_folder_does_not_make_us_create_files(tmp_path):
    root = tmp_path.resolve()
    async with open_sandboxes(root / "state", SUPPORT) as sandboxes:
        with await guarded(sandboxes) as launch:
            launch.orders["proc"] = True
            (launch.folder / "needs-proc").symlink_to(root / "created")
            launch.on_up()

    assert not (root / "created").exists()


async def test_the_mark_of_a_confined_program_stays(tmp_path):
    said, _ = await run_guarded(tmp_path.resolve(), MARKED)

    assert said == "True\n"


SENDER = """
import ctypes, fcntl, json, os, resource, signal, socket, struct, subprocess, sys
sys.path.append(sys.argv[1])
from sandbox import kernel, seccomp
report, victim = socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
kernel.prctl(38, 1)
resource.setrlimit(seccomp.MARK, (1, 1))
code = seccomp.confining(seccomp.machine(), proxied=False, signals=True)
listener = seccomp.install(seccomp.assemble(code))
socket.send_fds(report, [b"+"], [listener])
os.close(listener)
numbers = seccomp.ARCHITECTURES[seccomp.machine()][1]
details = ctypes.create_string_buffer(struct.pack("iii", signal.SIGCONT, 0, -1), 128)
child = subprocess.Popen(["sleep", "60"])
daemon = subprocess.Popen(["sleep", "60"], start_new_session=True)
own, other = socket.socketpair()
attempts = {
    "itself": lambda: os.kill(os.getpid(), signal.SIGCONT),
    "its thread": lambda: signal.raise_signal(signal.SIGCONT),
    "its group": lambda: os.kill(0, signal.SIGCONT),
    "its child": lambda: os.kill(child.pid, signal.SIGCONT),
    "its daemon": lambda: os.killpg(daemon.pid, signal.SIGCONT),
    "its child by descriptor": lambda: signal.pidfd_send_signal(
        os.pidfd_open(child.pid), signal.SIGCONT
    ),
    "nobody": lambda: os.kill(2**22 - 1, signal.SIGCONT),
    "another": lambda: os.kill(victim, signal.SIGCONT),
    "another's group": lambda: os.killpg(victim, signal.SIGCONT),
    "another by descriptor": lambda: signal.pidfd_send_signal(
        os.pidfd_open(victim), signal.SIGCONT
    ),
    "another's thread": lambda: kernel.syscall(numbers["tkill"], victim, int(signal.SIGCONT)),
    "another's thread of a group": lambda: kernel.syscall(
        numbers["tgkill"], victim, victim, int(signal.SIGCONT)
    ),
    "another by queue": lambda: kernel.syscall(
        numbers["rt_sigqueueinfo"], victim, int(signal.SIGCONT), details
    ),
    "another through a socket": lambda: fcntl.fcntl(own, fcntl.F_SETOWN, victim),
    "everybody": lambda: os.kill(-1, 0),
}
outcomes = {}
for name, attempt in attempts.items():
    try:
        attempt()
        outcomes[name] = "sent"
    except OSError as exc:
        outcomes[name] = type(exc).__name__
child.kill()
daemon.kill()
child.wait()
daemon.wait()
print(json.dumps(outcomes))
"""
ORDERS = {
    "listed": [],
    "read": [],
    "write": [],
    "devices": [],
    "proxy": 0,
    "processes": 99,
    "memory": 0,
    "proc": False,
    "network": False,
    "sockets": [],
    "socket_program": "",
    "closed_ports": "",
    "observe": False,
    "watch": False,
    "wrapper": [],
}


def test_they_stay_inside():
    folder = str(Path(warden.__file__).parent.parent)
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "60"], start_new_session=True) as victim:
        sender = subprocess.Popen(
            [sys.executable, "-c", SENDER, folder, str(theirs.fileno()), str(victim.pid)],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        keeper = warden.Warden(ours)
        keeper.leaders = {sender.pid: 1, victim.pid: 2}
        keeper._take_calls(1, sender.pid, fds[0], ORDERS)
        while keeper.confined:
            for fd, event in keeper.poll.poll():
                keeper._answer(fd, event)
        with sender:
            outcomes = json.loads(sender.stdout.read())
        victim.kill()

    sent = {name for name, outcome in outcomes.items() if outcome == "sent"}
    assert {name for name in outcomes if name.startswith("its")} == sent
    assert outcomes["nobody"] == "ProcessLookupError"
