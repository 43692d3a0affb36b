"""Ports that stay closed to confined servers: who records them, and for how long."""

import os
import socket
import subprocess
import sys

import pytest

from multitap.cluster.peers import open_peers
from multitap.errors import ConfigError
from multitap.http.closed_ports import close_port, closed_ports, closed_ports_folder
from multitap.http.server.server import open_listener
from multitap.oauth.callback import open_callback

HOLD = """
import sys
from multitap.http.closed_ports import close_port
with close_port(int(sys.argv[1])):
    print("recorded", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_state(own_logins):
    """No records but those of the test."""


def names():
    return sorted(path.name for path in closed_ports_folder().iterdir())


def test_a_listener_is_recorded_with_the_port_that_the_system_chose():
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        assert names() == [f"{os.getpid()}-{port}"]
        assert closed_ports() == {port}
        socket.create_connection(("127.0.0.1", port)).close()
    assert (names(), closed_ports()) == ([], frozenset())


def test_only_the_user_can_look_at_the_records():
    with close_port(1):
        folder = closed_ports_folder()

        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / f"{os.getpid()}-1").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_can_write_is_not_used(caplog):
    closed_ports_folder().mkdir(parents=True, mode=0o777)
    closed_ports_folder().chmod(0o777)

    with close_port(1):
        assert names() == []
    assert "port 1 is not recorded" in caplog.text


def test_records_of_the_dead_go_and_those_of_the_living_stay():
    command = [sys.executable, "-c", HOLD]
    with (
        subprocess.Popen([*command, "7"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed,
        subprocess.Popen([*command, "8"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living,
    ):
        for process in (killed, living):
            assert process.stdout.readline() == b"recorded\n"
        killed.kill()
        killed.wait()
        assert closed_ports() == {7, 8}
        # the id of the killed one may be used again at once
        old = closed_ports_folder() / f"{killed.pid}-7"
        old.replace(closed_ports_folder() / f"{os.getpid()}-7")

        with close_port(9):
            assert closed_ports() == {8, 9}
        living.stdin.close()
        living.wait()

    assert closed_ports() == frozenset()


def test_a_port_that_another_program_gets_first_is_a_clear_error():
    with (
        open_listener("127.0.0.1", 0) as taken,
        pytest.raises(ConfigError, match="Address already in use"),
        open_listener("127.0.0.1", taken.getsockname()[1]),
    ):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_the_listener_of_a_login_is_recorded(host):
    async with open_callback("x", redirect=f"http://{host}:0/callback") as callback:
        port = int(callback.address.rpartition(":")[2].partition("/")[0])

        assert port in closed_ports()
    assert closed_ports() == frozenset()


async def test_the_listener_for_other_replicas_is_recorded():
    async with open_peers(b"k" * 32, "us", lambda _: None, listen="127.0.0.1:0") as peers:
        assert closed_ports() == {int(peers.address.rpartition(":")[2])}
    assert closed_ports() == frozenset()


def test_a_port_that_was_asked_for_stays_reserved_and_the_folder_private():
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with open_listener("127.0.0.1", port):
        assert closed_ports() == {port}

    folder = closed_ports_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (folder / "reserved").iterdir()] == [str(port)]
