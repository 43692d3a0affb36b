"""Clients that are confined, and try not to look like it; and clients that only look like it."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from multitap.http.server.peer import PeerUsers, SocketHolders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

CLIENT = """
import ctypes, os, resource, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)

def filter():
    # one that allows everything: a browser has another, but the kernel shows it in the same way
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0

def confine():
    filter()
    resource.setrlimit(10, (0, 0))

def connect():
    client = socket.socket()
    client.connect(("127.0.0.1", int(sys.argv[1])))
    return client

def wait():
    print(flush=True)
    sys.stdin.readline()
"""
WAYS = {
    "holds it": "confine(); client = connect(); wait()",
    "is confined later": "client = connect(); confine(); wait()",
    "starts a program that holds it": """
confine()
client = connect()
os.set_inheritable(client.fileno(), True)
code = "import sys; print(flush=True); sys.stdin.readline()"
os.execv(sys.executable, [sys.executable, "-c", code])
""",
    "gives it to a child": """
confine()
client = connect()
if os.fork() == 0:
    wait()
else:
    client.close()
    os.wait()
""",
    "shows nobody what it has": "confine(); libc.prctl(4, 0, 0, 0, 0); client = connect(); wait()",
    "lets its first thread end": """
confine()
client = connect()
threading.Thread(target=lambda: (wait(), os._exit(0))).start()
libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
""",
    "has a name like ours": """
confine()
libc.prctl(15, b"multitap", 0, 0, 0)
client = connect()
wait()
""",
    "tries to raise its limit": """
confine()
try:
    resource.setrlimit(10, (1, 1))
except (ValueError, OSError):
    pass
client = connect()
wait()
""",
}
SHARED = """
confine()
client = connect()
client.send(b"%d" % os.fstat(client.fileno()).st_ino)
wait()
"""
PARKED = """
confine()
client = connect()
here, there = socket.socketpair()
socket.send_fds(here, [b"x"], [client.fileno()])
client.close()
wait()
"""


@pytest.fixture
def users():
    with PeerUsers() as users:
        yield users


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@contextmanager
def client(listener, way):
    """A process that connects in some way, and the end of it that is ours."""
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT + way, str(listener.getsockname()[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout.readline() == b"\n"
            server, _ = listener.accept()
            with server:
                yield server
        finally:
            process.stdin.close()


def is_own(users, server, **more):
    return users.is_own(server.getsockname()[:2], server.getpeername()[:2], **more)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_confined_process_is_not_our_user_whatever_it_does(users, listener, way):
    with client(listener, way) as server:
        assert is_own(users, server) is not True


def test_a_process_that_others_can_look_into_is_told_to_be_confined(users, listener):
    with client(listener, WAYS["holds it"]) as server:
        assert is_own(users, server) is False


def test_a_connection_that_no_process_has_is_nobodys(users, listener):
    if hidden_processes():
        pytest.skip("programs of this user hide what they have, as sshd does: it may be theirs")
    with client(listener, PARKED) as server:
        assert is_own(users, server) is None


@pytest.mark.parametrize(
    "way", ["client = connect(); wait()", "filter(); client = connect(); wait()"],
    ids=["plain", "with a filter of its own"],
)  # fmt: skip
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a confined one"])
def test_any_other_process_is_our_user(users, listener, way, beside):
    with client(listener, way) as server:
        if not beside:
            assert is_own(users, server) is True
            return
        with client(listener, WAYS["shows nobody what it has"]):
            assert is_own(users, server) is True


def test_a_connection_that_a_confined_process_shares_is_not_our_users(users, listener):
    way = "client = connect()\nif os.fork() == 0: confine(); wait()\nelse: os.wait()"
    with client(listener, way) as server:
        assert is_own(users, server) is False


def test_a_process_that_was_seen_before_it_was_confined_is_looked_at_again(users, listener):
    way = "wait(); confine(); client = connect(); wait()"
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT + way, str(listener.getsockname()[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"\n"
        with client(listener, "client = connect(); wait()") as server:
            assert is_own(users, server) is True
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"
        server, _ = listener.accept()
        with server:
            assert is_own(users, server) is False
        process.stdin.close()


def test_one_look_at_all_processes_serves_the_connections_before_it(listener):
    holders = SocketHolders()
    with socket.create_connection(listener.getsockname()) as ours:
        listener.accept()[0].close()
        before = time.monotonic()
        looked = holders.is_confined(os.fstat(ours.fileno()).st_ino, before)
        # it starts after that look, so that only another one finds it
        with client(listener, SHARED) as server:
            inode = int(server.recv(32))
            found = [holders.is_confined(inode, since) for since in (before, time.monotonic())]

    assert looked is False
    assert found[0] is not True
    assert found[1] is True


def hidden_processes():
    """Processes of this user that do not show what they have."""
    hidden = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdecimal()
                and f"Uid:\t{os.getuid()}\t" in (entry / "status").read_text()
            ):
                [os.readlink(one) for one in (entry / "fd").iterdir()]  # noqa: PTH115
        except PermissionError:
            hidden.append(entry.name)
        except OSError:
            continue
    return hidden
