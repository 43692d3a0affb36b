"""What a client must know before a gateway answers it, and where that is kept."""

import json
import os
import socket
import stat
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from multitap import Settings, open_hub
from multitap.control.client import ControlClient, wait
from multitap.control.places import folder, leave, own_socket, prove, sockets
from multitap.control.server import LIMITS, open_control
from multitap.control.service import ControlService
from multitap.errors import MultitapError
from multitap.files import USER_FOLDERS
from multitap.gateway.gateway import open_gateway
from multitap.http.server.connections import HttpLimits
from tests.waiting import PATIENCE

REQUEST = b"POST /control/about HTTP/1.1\r\ncontent-length: 2\r\n%b\r\n{}"
ASK = """
import sys
from pathlib import Path
from multitap.control.client import ControlClient, wait
wait(ControlClient(Path(sys.argv[1])).about())
"""
PROVE = """
import sys
from pathlib import Path
from multitap.control.places import prove
sys.stdin.readline()
print(prove(Path("/x")).decode())
"""


@pytest.fixture
def key(own_logins):
    """Where the secret of a user without any is to be."""
    return USER_FOLDERS.user_state_path / "gateways" / "control.key"


@asynccontextmanager
async def gateway(state, limits=LIMITS):
    settings = Settings(state_dir=state)
    async with (
        open_gateway(lambda host: open_hub(settings, handlers=host)) as running,
        open_control(lambda: ControlService(running), state, limits),
    ):
        yield own_socket(state)


async def post(path, authorization=b""):
    """Status and body of the response to a question."""
    data = b""
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_unix(path) as stream:
            await stream.send(REQUEST % (b"connection: close\r\n" + authorization))
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def bearer(proof):
    return b"authorization: Bearer %b\r\n" % proof


def ask_about(path):
    return wait(ControlClient(path).about())


async def test_a_client_that_knows_the_secret_is_answered(key, tmp_path):
    async with gateway(tmp_path / "own") as path:
        status, answer = await post(path, bearer(prove(path)))
        about = await anyio.to_thread.run_sync(ask_about, path)

    assert (status, answer["pid"], about.pid) == (200, os.getpid(), os.getpid())
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="none"),
        pytest.param(bearer(b""), id="empty"),
        pytest.param(bearer(b"0" * 64), id="wrong"),
        pytest.param(bearer("ä".encode() * 32), id="no digits"),
        pytest.param(bearer(b"0" * 10_000), id="long"),
        pytest.param(b"cookie: secret\r\n", id="elsewhere"),
    ],
)
async def test_any_other_client_gets_one_error(key, tmp_path, header):
    async with gateway(tmp_path / "own") as path:
        status, answer = await post(path, header)

    assert status == 403
    assert "know the secret" in answer["error"]
    assert answer["kind"] == "denied"


async def test_a_client_that_says_half_a_word_is_dropped(key, tmp_path):
    async with gateway(tmp_path / "own", HttpLimits(request_timeout=0.05)) as path:
        with anyio.fail_after(PATIENCE):
            async with await anyio.connect_unix(path) as stream:
                await stream.send(b"POST /control")
                refusal = await stream.receive()

    assert refusal.startswith(b"HTTP/1.1 408 ")


async def test_what_one_socket_hears_opens_no_other(key, tmp_path):
    async with gateway(tmp_path / "own") as path:
        status, _ = await post(path, bearer(prove(path.with_name("false.sock"))))

    assert status == 403


async def test_a_command_with_another_state_folder_is_told_why(key, tmp_path):
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "else")}
    async with gateway(tmp_path / "own") as path:
        command = [sys.executable, "-c", ASK, str(path)]
        done = await anyio.run_process(command, env=env, check=False)

    assert done.returncode != 0
    assert b"know the secret" in done.stderr
    assert b"XDG_STATE_HOME" in done.stderr


async def test_a_secret_that_somebody_removed_is_made_again_for_both_sides(key, tmp_path):
    async with gateway(tmp_path / "own") as path:
        old = prove(path)
        key.unlink()
        about = await anyio.to_thread.run_sync(ask_about, path)
        status, _ = await post(path, bearer(old))

    assert (about.pid, status) == (os.getpid(), 403)


@pytest.mark.parametrize("content", [b"", b"half", b"x" * 33])
def test_a_half_made_secret_is_replaced(key, tmp_path, content):
    key.parent.mkdir(parents=True, mode=0o700)
    key.touch(0o600)
    key.write_bytes(content)

    assert prove(tmp_path) == prove(tmp_path)
    assert len(key.read_bytes()) == 32
    assert key.stat().st_mode & 0o777 == 0o600


def test_two_programs_that_start_at_once_have_the_same_secret(key):
    command = [sys.executable, "-c", PROVE]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    proofs = {process.communicate(timeout=PATIENCE)[0] for process in processes}

    assert len(proofs) == 1
    assert len(proofs.pop().strip()) == 64


@pytest.mark.parametrize("path", ["", "control.key"], ids=["folder", "file"])
async def test_a_secret_that_others_could_read_is_not_used(key, tmp_path, path, caplog):
    prove(tmp_path)
    (key.parent / path).chmod(0o755)

    with pytest.raises(MultitapError, match="others can read"):
        prove(tmp_path)
    async with gateway(tmp_path / "own"):
        pass
    assert "cannot reach the gateway: others can read" in caplog.text


def test_a_link_is_not_followed_to_a_secret(key, tmp_path):
    key.parent.mkdir(parents=True, mode=0o700)
    (tmp_path / "theirs").write_bytes(b"x" * 32)
    key.symlink_to(tmp_path / "theirs")

    with pytest.raises(MultitapError, match="cannot be read"):
        prove(tmp_path)


def test_a_long_state_directory_has_its_sockets_elsewhere(tmp_path):
    long = tmp_path / ("x" * 80) / ("y" * 80)

    path = own_socket(long)

    try:
        assert len(os.fsencode(path)) < 100
        assert path.parent == folder(long) != folder(tmp_path)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(path))
            ours.listen()
            assert sockets(long) == {path: os.getpid()}
    finally:
        leave(path)
    assert not path.parent.exists()


def test_a_folder_of_somebody_else_is_not_looked_into(state, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    state.mkdir()
    folder(state).symlink_to(tmp_path / "theirs")

    assert sockets(state) == {}
    with pytest.raises(PermissionError):
        own_socket(state)


def test_what_a_dead_gateway_left_is_removed(state):
    path = own_socket(state)
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(path))
    other = Path(path.parent / "notes.txt")
    other.touch()

    assert sockets(state) == {}
    assert [*path.parent.iterdir()] == [other]
