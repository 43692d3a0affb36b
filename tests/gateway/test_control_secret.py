"""What a client must know before a gateway answers it, and where that is kept."""

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from multitap import Settings, open_hub
from multitap.cli.gateways.control_client import ask_about
from multitap.errors import MultitapError
from multitap.gateway.fronts import control_socket as control_module
from multitap.gateway.fronts.control_places import own_socket
from multitap.gateway.fronts.control_secret import prove
from multitap.gateway.fronts.control_service import ControlService
from multitap.gateway.fronts.control_socket import open_control
from multitap.gateway.gateway import open_gateway
from multitap.user_folders import USER_FOLDERS

PATIENCE = 10
QUESTION = b'{"ask": "about"}\n'
ASK = """
import sys
from pathlib import Path
from multitap.cli.gateways.control_client import ask_about
ask_about(Path(sys.argv[1]), "it")
"""
PROVE = """
import sys
from pathlib import Path
from multitap.gateway.fronts.control_secret import prove
sys.stdin.readline()
print(prove(Path("/x")).decode())
"""


@pytest.fixture
def key(own_logins):
    """Where the secret of a user without any is to be."""
    return USER_FOLDERS.user_state_path / "gateways" / "control.key"


@asynccontextmanager
async def gateway(state):
    settings = Settings(state_dir=state)
    async with (
        open_gateway(lambda host: open_hub(settings, handlers=host)) as running,
        open_control(ControlService(running), state),
    ):
        yield own_socket(state)


async def heard(path, *parts):
    """Everything that a gateway answers, until it closes."""
    data = b""
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_unix(path) as stream:
            for part in parts:
                await stream.send(part)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    data += await stream.receive()
    return [json.loads(line) for line in data.splitlines()]


async def test_a_client_that_knows_the_secret_is_answered(key, tmp_path):
    async with gateway(tmp_path / "own") as path:
        (told,) = await heard(path, prove(path) + b"\n", QUESTION)
        about = await anyio.to_thread.run_sync(ask_about, path, "it")

    assert told["ok"]["pid"] == about.pid == os.getpid()
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(QUESTION, id="none"),
        pytest.param(b"\n" + QUESTION, id="empty"),
        pytest.param(b"0" * 64 + b"\n" + QUESTION, id="wrong"),
        pytest.param("ä".encode() * 32 + b"\n" + QUESTION, id="no digits"),
        pytest.param(b"0" * 100_000, id="endless"),
        pytest.param(b'{"ask": "call", "name": "' + b"x" * 200 + b'"}\n', id="long question"),
    ],
)
async def test_any_other_client_gets_one_error(key, tmp_path, sent):
    async with gateway(tmp_path / "own") as path:
        (told,) = await heard(path, sent)

    assert "know the secret" in told["error"]
    assert (told["kind"], "ok" in told) == ("denied", False)


async def test_a_client_that_says_nothing_is_dropped(key, tmp_path, monkeypatch):
    monkeypatch.setattr(control_module, "PATIENCE", 0.05)
    async with gateway(tmp_path / "own") as path:
        assert await heard(path, b"0" * 10) == []


async def test_what_one_socket_hears_opens_no_other(key, tmp_path):
    async with gateway(tmp_path / "own") as path:
        (told,) = await heard(path, prove(path.with_name("false.sock")) + b"\n", QUESTION)

    assert "know the secret" in told["error"]


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
        about = await anyio.to_thread.run_sync(ask_about, path, "it")
        (told,) = await heard(path, old + b"\n", QUESTION)

    assert about.pid == os.getpid()
    assert "know the secret" in told["error"]


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
    proofs = {process.communicate(timeout=60)[0] for process in processes}

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
