"""Whatever is done to the files, no call to a server that they still name is lost."""

import json
import tomllib
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from multitap import open_hub
from multitap.config import Search, Source, load
from multitap.errors import CannotStart, MultitapError
from multitap.events import Reloaded
from multitap.hub.reload import Reloader, auto_reload
from tests.simulation.world import SimulatedServer, SimulatedWire
from tests.waiting import PATIENCE

PACE = 0.01
"""Seconds between two calls."""


class Calm:
    """No delays, no crashes: what goes wrong here is our own doing."""

    def choice(self, options):
        return options[0]

    def random(self):
        return 1.0


@asynccontextmanager
async def dial(name, config):
    """`good…` comes up, everything else does not."""
    await anyio.lowlevel.checkpoint()
    if not config.command.startswith("good"):
        raise CannotStart("nothing comes up here", hint="say `good`")
    wire = SimulatedWire(SimulatedServer(Calm()))
    try:
        yield wire
    finally:
        wire.end(None)


class Unreadable(Exception):
    """A configuration that the hub must not apply."""


class JsonFile:
    """A file of a host."""

    def __init__(self, folder):
        self.path = folder / "mcp.json"
        self.names = [f"j{number}" for number in range(6)]

    def text(self, commands):
        servers = {name: {"command": command} for name, command in commands.items()}
        return json.dumps({"mcpServers": servers}, indent=2)

    def parse(self, text):
        try:
            data = json.loads(text)
        except ValueError:
            raise Unreadable from None
        if data is None:
            raise Unreadable
        return data["mcpServers"]


class TomlFile:
    """A file of ours; cut off, it may well be a valid one with fewer servers."""

    def __init__(self, folder):
        self.path = folder / "multitap.toml"
        self.names = [f"t{number}" for number in range(6)]

    def text(self, commands):
        entries = (
            f'[servers.{name}]\ncommand = "{command}"\ntimeout = 20\n'
            for name, command in commands.items()
        )
        return f"# ours\nstate_dir = {json.dumps(str(self.path.parent))}\n\n" + "\n".join(entries)

    def parse(self, text):
        if not text.strip():
            raise Unreadable
        try:
            return tomllib.loads(text).get("servers", {})
        except tomllib.TOMLDecodeError:
            raise Unreadable from None


class Storm:
    """Edits two files at random and knows, by parsers of its own, which servers are owed calls."""

    def __init__(self, folder, seed):
        self.random = Random(seed)
        self.files = [JsonFile(folder), TomlFile(folder)]
        self.commands = {file: dict.fromkeys(file.names, "good") for file in self.files}
        self.texts = {file: file.text(self.commands[file]) for file in self.files}
        self.owed = {}
        """Names, each with the number of the edit since which it must answer."""
        self.edits = self.followed = self.refused = self.calls = 0
        self.lost = []
        for file in self.files:
            file.path.write_text(self.texts[file])
        search = Search(tuple(Source(path=file.path) for file in self.files), folder)
        self.reloader = Reloader(lambda: load(search))

    async def rage(self, edits):
        settings = self.reloader.settings
        async with (
            open_hub(settings, dial=dial) as self.hub,
            auto_reload(self.hub, self.reloader),
            anyio.create_task_group() as tasks,
        ):
            await self._settle()
            self.owed = dict.fromkeys(settings.servers, 0)
            tasks.start_soon(self._traffic)
            for self.edits in range(1, edits + 1):
                await self._edit()
            for file in self.files:
                self.commands[file] = dict.fromkeys(file.names, f"good-{edits}")
                file.path.write_text(file.text(self.commands[file]))
            await self.reloader.reload(self.hub)
            await self._settle()
            self.links = {name: link.config.command for name, link in self.hub.links.items()}
            tasks.cancel_scope.cancel()

    async def _settle(self):
        with anyio.fail_after(PATIENCE):
            await self.hub.settled()

    async def _traffic(self):
        random = Random(0)
        async with anyio.create_task_group() as tasks:
            while True:
                if self.owed:
                    tasks.start_soon(self._call, random.choice([*self.owed]))
                await anyio.sleep(PACE)

    async def _call(self, name):
        since = self.owed[name]
        self.calls += 1
        try:
            await self.hub.call(f"{name}_nonce", {"n": self.calls})
        except MultitapError as exc:
            if self.owed.get(name) == since:  # else it was taken away meanwhile
                self.lost.append((self.edits, name, str(exc)))

    async def _edit(self):
        file = self.random.choice(self.files)
        self.texts[file] = self._damaged(self._changed(file))
        try:
            servers = {}
            for one in self.files:
                servers |= one.parse(self.texts[one])
        except Unreadable:
            servers = None
        if servers is not None:
            self.owed = {name: since for name, since in self.owed.items() if name in servers}
        await self._write(file.path, self.texts[file])
        with anyio.fail_after(PATIENCE):
            told = await self.reloader.reload(self.hub)
        assert isinstance(told, Reloaded) is (servers is not None), (self.edits, told)
        if servers is None:
            self.refused += 1
            return
        self.followed += 1
        await self._settle()
        for name, server in servers.items():
            if server.get("command", "").startswith("good"):
                self.owed.setdefault(name, self.edits)

    def _changed(self, file):
        """Another valid text."""
        commands = self.commands[file]
        name = self.random.choice(file.names)
        match self.random.randrange(6):
            case 0:
                commands.pop(name, None)
            case 1:
                commands[name] = f"bad-{self.edits}"
            case 2 | 3:
                commands[name] = f"good-{self.edits}"
            case 4 if name in commands:
                commands[name] = commands.pop(name)  # at another place
            case _:
                pass
        return file.text(commands)

    def _damaged(self, text):
        match self.random.randrange(12):
            case 0 | 1:
                return text[: self.random.randrange(len(text))]
            case 2:
                return self.random.choice(["", " ", "\n\n", "\t\n"])
            case 3:
                at = self.random.randrange(len(text))
                return f"{text[:at]}\0{text[at:]}"
            case _:
                return text

    async def _write(self, path, text):
        match self.random.randrange(5):
            case 0:  # as editors do
                fresh = path.with_name(f"{path.name}~")
                fresh.write_text(text)
                fresh.replace(path)
            case 1:  # gone for a moment
                path.unlink()
                await anyio.lowlevel.checkpoint()
                path.write_text(text)
            case 2:  # half of it first
                at = self.random.randrange(len(text) + 1)
                with path.open("w") as file:
                    file.write(text[:at])
                    file.flush()
                    await anyio.lowlevel.checkpoint()
                    file.write(text[at:])
            case _:
                path.write_text(text)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param(60, id="60"),
        pytest.param(1000, id="1000", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
async def test_random_edits_lose_no_call_to_a_server_that_the_files_still_name(tmp_path, edits):
    storm = Storm(tmp_path, seed=edits)

    await storm.rage(edits)

    assert storm.lost == []
    assert min(storm.followed, storm.refused) > edits / 5
    assert storm.calls > edits
    assert storm.links == {name: f"good-{edits}" for file in storm.files for name in file.names}
