"""The program as a person runs it, in a folder and a home of its own."""

import io
import json
import shlex
import sys
from dataclasses import dataclass

import pytest

from multitap.cli.app import run
from tests.trusting import trust
from tests.zoo.modes import command


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return self.out.splitlines()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder to work in, with nothing of the real user's around it."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MULTITAP_WAIT", "60")  # the machine may be busy with other things
    for name in ("MULTITAP_CONFIG", "NO_COLOR", "GITHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return work


@pytest.fixture
def multitap(home, monkeypatch, capsys):
    """Runs a command line in this process."""

    def typed(line, *more, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            code = run([*shlex.split(line), *more])
        except SystemExit as exc:  # what a shell asks for completion
            code = exc.code
        written = capsys.readouterr()
        return Ended(code, written.out, written.err)

    return typed


@pytest.fixture
def configure(home, monkeypatch):
    """Writes `multitap.toml`, named by the user: servers, each a mode of the zoo or a table."""

    def write(**servers):
        monkeypatch.setenv("MULTITAP_CONFIG", "multitap.toml")
        lines = []
        for name, server in servers.items():
            table = zoo(server) if isinstance(server, str) else server
            lines += [f"[servers.{name}]", *(f"{key} = {toml(table[key])}" for key in table)]
        (home / "multitap.toml").write_text("\n".join(lines))

    return write


@pytest.fixture
def trusted(home, monkeypatch):
    """Takes `multitap.toml` for a project's, which the user has trusted."""

    def trust_project():
        monkeypatch.delenv("MULTITAP_CONFIG")
        trust(home)

    return trust_project


def zoo(mode, *options, **more):
    """A server of the zoo as the table of a configuration."""
    program, *args = command(mode, *options)
    return {"command": program, "args": args, **more}


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
