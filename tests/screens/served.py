"""A gateway over HTTP in a process and a home of its own, as a person starts it."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from tests.waiting import PATIENCE


class Served:
    """A gateway that runs."""

    def __init__(self, process, home, env):
        self.process = process
        self.home = home
        self.env = env
        self.url = ""

    async def hear(self):
        """Read what it says until commands can reach it."""
        while line := (await self.process.stderr.readline()).decode():
            if found := re.search(r"(http://\S+)/mcp", line):
                self.url = found[1]
                return
        raise AssertionError("the gateway ended")

    async def multitap(self, *words):
        """What a command prints."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "multitap", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            stdin=asyncio.subprocess.DEVNULL, env=self.env, cwd=self.home,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            out, _ = await process.communicate()
        return out.decode().strip()

    async def new_link(self):
        """What `multitap console` prints."""
        return await self.multitap("console", "--no-open")

    def servers(self, script):
        """The processes that run a script on behalf of the gateway."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                environment = (entry / "environ").read_bytes()
            except (OSError, UnicodeDecodeError):
                continue
            if any(word.endswith(script) for word in words) and str(self.home).encode() in (
                environment
            ):
                found.append(int(entry.name))
        return found


@asynccontextmanager
async def open_served(config, *options, named=True):
    """Within the block, a gateway serves what a configuration names.

    Unless the user named it, it is a project's, and nobody has trusted it.
    """
    # a short path: the socket of the gateway is in it
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        home = Path(place)
        folder = home if named else home / "project"
        folder.mkdir(exist_ok=True)
        (folder / "multitap.toml").write_text(config)
        env = {
            "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": place,
            **({"MULTITAP_CONFIG": str(home / "multitap.toml")} if named else {}),
            "MULTITAP_SANDBOX": "off",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "multitap", "serve", "--http", "127.0.0.1:0", *options,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL, env=env, cwd=folder,
        )  # fmt: skip
        served = Served(process, folder, env)
        try:
            async with asyncio.timeout(PATIENCE):
                await served.hear()
            async with asyncio.TaskGroup() as tasks:
                # or it would stop when nobody reads what it says
                draining = tasks.create_task(process.stderr.read())
                yield served
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(PATIENCE):
                    await draining
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
