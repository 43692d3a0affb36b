"""Three real gateways on one Redis, one of which is killed while clients work."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import anyio

from tests.cluster.redis_server import free_port, needs_redis
from tests.gateway.hostile.raw import message
from tests.gateway.session_client import SessionClient
from tests.waiting import PATIENCE, wait_for
from tests.zoo import modes

pytestmark = [needs_redis]


class Gateway:
    """One `multitap serve --cluster` in a process of its own."""

    python = sys.executable

    def __init__(self, folder, number, redis_url, text=None):
        self.port = free_port()
        self._log = folder / f"replica-{number}.log"
        home = folder / f"home-{number}"
        home.mkdir()
        command, *args = modes.command("good_legacy")
        config = folder / "multitap.toml"
        usual = f"auto_reload = false\n[servers.zoo]\ncommand = {command!r}\nargs = {args!r}\n"
        config.write_text(usual if text is None else text)
        environment = {
            **os.environ,
            "HOME": str(home),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
        }
        serve = ["serve", "--http", f"127.0.0.1:{self.port}", "--insecure"]
        run = [sys.executable, "-m", "multitap", "--config", str(config), *serve]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*run, "--cluster", redis_url],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def wait(self):
        def serves():
            said = self._log.read_text()
            assert self.process.poll() is None, said
            return "press Ctrl-C" in said

        wait_for(serves)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=PATIENCE)


@contextmanager
def three_gateways(folder, redis_url):
    with ExitStack() as stack:
        gateways = []
        for number in range(3):
            gateways.append(Gateway(folder, number, redis_url))
            stack.callback(gateways[-1].close)
        for one in gateways:
            one.wait()
        yield gateways


def echo(request_id):
    arguments = {"text": "hi"}
    return message(request_id, "tools/call", name="zoo_echo", arguments=arguments)


def progress(request_id, steps, interval):
    arguments, meta = {"steps": steps, "interval": interval}, {"progressToken": "t"}
    return message(request_id, "tools/call", name="zoo_progress", arguments=arguments, _meta=meta)


async def test_a_session_outlives_the_replica_that_opened_it(redis_server, tmp_path):
    redis_server.ask("FLUSHALL")
    with three_gateways(tmp_path, redis_server.url) as gateways:
        client = await SessionClient(gateways[0].port).shake_hands()
        async with client.streams(progress(1, 100_000, 0.05)) as stream:
            seen = [(await stream.event())["params"]["progress"] for _ in range(3)]
            await anyio.to_thread.run_sync(gateways[0].kill)
        client.port = gateways[1].port
        with anyio.fail_after(PATIENCE):
            async with client.listens(stream.last_id) as resumed:
                *told, answer = await resumed.rest()
            client.port = gateways[2].port
            while (works := await client.post(echo(2))).message.get("error"):
                await anyio.sleep(0.1)  # the server starts elsewhere
        steps = seen + [one["params"]["progress"] for one in told]

    assert answer["id"] == 1
    assert "gone" in answer["error"]["message"]
    assert steps == [*range(1, len(steps) + 1)]
    assert works.text == "hi"
