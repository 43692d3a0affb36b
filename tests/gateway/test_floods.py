"""The real program, on the loop it really uses, while strangers send without end."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.gateway.hostile import floods
from tests.gateway.hostile.raw import dial, http, stateless
from tests.gateway.hostile.stage import UPSTREAM
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECRET = "a-token-of-some-length"
BEARER = f"Bearer {SECRET}"
CALLS = 8
CPU = 0.25
"""Seconds of the gateway's own time in which an honest call is answered."""
ROOM = 64 * 2**20
"""Bytes that strangers may make it hold."""
_TICK = os.sysconf("SC_CLK_TCK")


class Program:
    """A running gateway."""

    def __init__(self, process, port, headers):
        self.process = process
        self.port = port
        self._headers = headers

    def cpu(self):
        """Seconds that it worked so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / _TICK

    def memory(self):
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGESIZE")

    async def calls(self, times):
        """Call honestly; the gateway's own time for most calls, and its memory at most.

        Not for all of them: while we are kept from reading an answer, its time goes on.
        """
        taken, most = [], 0
        async with dial(self.port) as line:
            for number in range(times):
                arguments = {"said": number}
                asked = stateless(
                    number, "tools/call", name="counts_echo", arguments=arguments,
                    headers=self._headers,
                )  # fmt: skip
                before = self.cpu()
                with anyio.fail_after(PATIENCE):
                    assert (await line.asks(asked)).text == str(number)
                    taken.append(self.cpu() - before)
                    health = await line.asks(http("GET", "/health", **self._headers))
                assert health.status == 200
                most = max(most, self.memory())
                await anyio.sleep(0.05)  # the calls of a person, not one more flood
        return sorted(taken)[times * 3 // 4], most


@asynccontextmanager
async def running(path, *, token):
    """The gateway, with a token or without."""
    config, tokens = path / "multitap.toml", path / "tokens"
    arguments = json.dumps(["-I", "-S", str(UPSTREAM)])
    server = f"[servers.counts]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"
    config.write_text(f"state_dir = {json.dumps(str(path / 'state'))}\n{server}")
    tokens.write_text(f"ann={SECRET}\n")
    tokens.chmod(0o600)
    serve = [sys.executable, "-m", "multitap", "serve", "-c", str(config), "--http", "127.0.0.1:0"]
    if token:
        serve += ["--token-file", str(tokens)]
    async with await anyio.open_process(serve, stdin=subprocess.DEVNULL) as process:
        told = b""
        with anyio.fail_after(PATIENCE):
            while not (found := re.search(rb"http://127\.0\.0\.1:(\d+)/mcp", told)):
                told += await process.stderr.receive()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drain, process.stderr)
            headers = {"authorization": BEARER} if token else {}
            try:
                yield Program(process, int(found[1]), headers)
            finally:
                if process.returncode is None:
                    process.kill()
                tasks.cancel_scope.cancel()


async def _drain(stream):
    async for _ in stream:
        continue


@asynccontextmanager
async def flood(port, kind, connections):
    command = [sys.executable, "-I", floods.__file__, str(port), kind, str(connections)]
    async with await anyio.open_process(command, stderr=None) as process:
        try:
            with anyio.fail_after(PATIENCE):
                assert b"begun" in await process.stdout.receive()
            yield
        finally:
            process.kill()


STRANGERS = {
    "four strangers": (4, True),
    "a crowd that needs no token": (200, False),
    "a crowd": (200, True),
}
"""How many connections, and whether a token is needed."""


def cases():
    """Each kind by strangers or by a crowd, in turns; `make wide` has the other pairs."""
    for number, kind in enumerate(floods.KINDS):
        for place, (name, who) in enumerate(STRANGERS.items()):
            marks = () if place == number % 2 else pytest.mark.wide
            yield pytest.param(kind, *who, id=f"{kind}-{name}", marks=marks)


@pytest.mark.parametrize(("kind", "connections", "token"), [*cases()])
async def test_honest_clients_are_served_beside_a_flood_of(kind, connections, token, tmp_path):
    async with running(tmp_path, token=token) as program:
        _, usual = await program.calls(CALLS)
        async with flood(program.port, kind, connections):
            taken, most = await program.calls(CALLS)
            program.process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE):
                await program.process.wait()

        assert taken <= CPU
        assert most - usual <= ROOM
