"""What the warden refuses a guarded program, and what it reports."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from multitap.http.closed_ports import close_port
from multitap.wire.process import warden
from multitap.wire.process.sandbox_support import sandbox_support
from tests.attacks.sandbox_world import listening, run_guarded
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
from process.sandbox.calling_process import check_access
try:
    check_access()
except OSError as exc:
    print(exc.strerror)
"""
    said, _ = await run_guarded(tmp_path.resolve(), source, str(folder))

    assert said == "`pidfd_getfd` is forbidden here\n"
