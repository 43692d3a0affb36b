"""The gateway on whatever its standard streams happen to be."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tty
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import toml, zoo
from tests.processes import descendants
from tests.waiting import PATIENCE, until

CLIENT = {"name": "test", "version": "1"}
PARAMS = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": CLIENT}
ASKED = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": PARAMS}
LINE = json.dumps(ASKED).encode() + b"\n"
LASTING = ("pipe", "socket", "tty")
"""Kinds of stream with somebody at the other end."""
KINDS = (*LASTING, "file", "null", "closed")
REDIRECTIONS = ("<&-", ">&-", "2>&-")


class Stream:
    """A standard stream of the gateway: its end and, where there is one, ours."""

    def __init__(self, kind, path, *, is_input):
        self.kind = kind
        self.path = path
        self.ours = None
        match kind:
            case "pipe":
                read, write = os.pipe()
                self.theirs, self.ours = (read, write) if is_input else (write, read)
            case "socket":
                self.theirs, self.ours = (one.detach() for one in socket.socketpair())
            case "tty":
                self.ours, self.theirs = pty.openpty()
                tty.setraw(self.theirs)
            case "file":
                path.write_bytes(LINE if is_input else b"")
                self.theirs = os.open(path, os.O_RDONLY if is_input else os.O_WRONLY)
            case "full":
                self.theirs = os.open("/dev/full", os.O_WRONLY)
            case _:  # what is to be closed must be open before
                self.theirs = os.open(os.devnull, os.O_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()
        os.close(self.theirs)

    def leave(self):
        if self.ours is not None:
            os.close(self.ours)
            self.ours = None

    async def line(self):
        seen = b""
        while not seen.endswith(b"\n"):
            await anyio.wait_readable(self.ours)
            seen += os.read(self.ours, 65536)
        return seen


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "multitap.toml"
    server = zoo("good")
    state = f"state_dir = {json.dumps(str(tmp_path / 'state'))}"
    lines = [state, "[servers.zoo]", *(f"{key} = {toml(server[key])}" for key in server)]
    path.write_text("\n".join(lines))
    return path


@contextmanager
def serving(config, *streams):
    signs = zip(REDIRECTIONS, streams, strict=True)
    closed = " ".join(sign for sign, stream in signs if stream.kind == "closed")
    serve = [sys.executable, "-m", "multitap", "serve", "-c", str(config)]
    stdin, stdout, stderr = (stream.theirs for stream in streams)
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *serve],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def wait(process):
    await until(lambda: process.poll() is not None)
    return process.returncode


async def ask_once(config, *kinds):
    """How a gateway on these streams ends, what it answers, and what else it says."""
    paths = (config.parent / name for name in ("in", "out", "err"))
    with ExitStack() as stack:
        streams = [
            stack.enter_context(Stream(kind, path, is_input=path.name == "in"))
            for kind, path in zip(kinds, paths, strict=True)
        ]
        given, taken, said = streams
        with serving(config, *streams) as process, anyio.fail_after(PATIENCE):
            answer = b""
            if given.ours is not None:
                os.write(given.ours, LINE)
            if taken.ours is not None and kinds[0] in {*LASTING, "file"}:
                answer = await taken.line()
            elif kinds[1] == "file" and given.ours is not None:
                answer = await until(taken.path.read_bytes)
            if kinds[1] != "full":
                given.leave()
            code = await wait(process)
            if kinds[:2] == ("file", "file"):
                answer = taken.path.read_bytes()
        return code, answer, said.path.read_text() if said.path.exists() else ""


async def check(config, *kinds):
    code, answer, said = await ask_once(config, *kinds)

    assert code == 0
    if kinds[0] in {*LASTING, "file"} and kinds[1] in {*LASTING, "file"}:
        assert json.loads(answer)["result"]["serverInfo"]["name"] == "multitap"
    else:
        assert answer == b""
    if kinds[2] == "file":
        assert ("no client can connect" in said) == bool({"null", "closed"} & {*kinds[:2]})
        assert ("hint: " in said) == ("no client can connect" in said)
        assert "Traceback" not in said


@pytest.mark.parametrize("kind", KINDS)
async def test_it_serves_on_any_kind_of_input_or_says_what_is_wrong(config, kind):
    await check(config, kind, "pipe", "file")


@pytest.mark.parametrize("kind", KINDS)
async def test_it_serves_on_any_kind_of_output_or_says_what_is_wrong(config, kind):
    await check(config, "pipe", kind, "file")


@pytest.mark.parametrize("kind", KINDS)
async def test_it_serves_whatever_its_standard_error_is(config, kind):
    await check(config, "pipe", "pipe", kind)


@pytest.mark.wide
@pytest.mark.parametrize(("given", "taken"), [*product(KINDS, KINDS)])
async def test_it_serves_on_every_combination_of_streams(config, given, taken):
    said = KINDS[(KINDS.index(given) + KINDS.index(taken)) % len(KINDS)]
    await check(config, given, taken, said)


async def test_an_output_that_takes_nothing_more_ends_it(config):
    code, _, said = await ask_once(config, "pipe", "full", "file")

    assert code == 0
    assert "standard output cannot be written: no space left" in said.lower()


@pytest.mark.parametrize("kind", ["tty", "socket"])
async def test_input_and_output_may_be_the_same_and_are_left_as_they_were(config, kind):
    with (
        Stream(kind, None, is_input=True) as both,
        Stream("null", None, is_input=False) as nothing,
        anyio.fail_after(PATIENCE),
    ):
        with serving(config, both, both, nothing) as process:
            for _ in range(3):
                os.write(both.ours, LINE)
                answer = await both.line()
                assert json.loads(answer)["result"]
            process.send_signal(signal.SIGTERM)

            assert await wait(process) == 0
        assert os.get_blocking(both.theirs)


async def test_answers_wait_for_a_client_that_reads_slowly_from_where_it_writes(config):
    with (
        Stream("socket", None, is_input=True) as both,
        Stream("null", None, is_input=False) as nothing,
        serving(config, both, both, nothing),
        anyio.fail_after(PATIENCE),
    ):
        os.write(both.ours, LINE)
        await both.line()
        for number in range(200):
            os.write(both.ours, b'{"jsonrpc": "2.0", "id": %d, "method": "tools/list"}\n' % number)
        answered = set()
        while len(answered) < 200:
            lines = (await both.line()).splitlines()
            answered |= {said["id"] for said in map(json.loads, lines) if "result" in said}


async def test_closed_streams_are_not_given_to_files_that_are_opened_later(config):
    with (
        Stream("pipe", None, is_input=True) as given,
        Stream("pipe", None, is_input=False) as taken,
        Stream("closed", None, is_input=False) as said,
        serving(config, given, taken, said) as process,
    ):
        os.write(given.ours, LINE)
        await taken.line()

        assert Path(f"/proc/{process.pid}/fd/2").readlink() == Path(os.devnull)
        assert descendants(process.pid)
        given.leave()
        assert await wait(process) == 0
