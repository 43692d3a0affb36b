"""Threat: a folder whose files are pipes, devices, loops, or too many to look at, stalls us."""

import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from multitap.agent.skills import scan
from multitap.config import Surroundings, excelmanus, kode, native, otter
from multitap.config.edit.journal import content_of
from multitap.config.sources import at_prompt, several_environments
from multitap.config.watch import stamps
from multitap.errors import ConfigError, MultitapError
from multitap.published.bundles import read_bundle
from multitap.trust.lock_file import LockError, LockFile
from multitap.trust.project_review import review
from multitap.trust.projects import Projects, load_trusted
from tests.waiting import PATIENCE

FILES = (
    *("multitap.toml", "multitap.lock", ".kode.json", "otter.toml", "mcp.json", ".env", ".git"),
    *("environments/a/config.jsonc", "mcpservers/a/server.py", "mcpservers/a/config.jsonc"),
    *("mcpservers/b/server.py", "mcpservers/b/pyproject.toml", "skills/a/SKILL.md", "x.mcpb"),
)
DEPTH = 1500
"""Folders in one another: more than Python has frames."""


def sockets(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/cwd/{path.relative_to(path.cwd())}")


def huge(path):
    with path.open("wb") as file:
        file.write(b'{"mcpServers": {')
        file.truncate(8 << 30)


KINDS = {
    "pipes": os.mkfifo,
    "sockets": sockets,
    "folders": lambda path: path.mkdir(),
    "loops": lambda path: path.symlink_to(path.name),
    "devices": lambda path: path.symlink_to("/dev/zero"),
    "terminals": lambda path: path.symlink_to("/dev/tty"),
    "endless": huge,
    "unreadable": lambda path: (path.write_text("{}"), path.chmod(0)),
    "nested brackets": lambda path: path.write_text('{"mcpServers":' + "[" * 100_000),
}


@pytest.fixture
def clone(own_project):
    return own_project


def look(folder):
    """Everything that commands do with a folder that nobody has trusted."""
    where = Surroundings.here()
    for search in (native, kode, otter, excelmanus):
        found = load_trusted(search(where))
        assert not found.settings.servers
        stamps(found.search.sources)
    at_prompt(where)
    several_environments(where)
    review(folder, Projects())
    scan([folder / "skills"])


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_file_that_is_none_keeps_nobody_waiting(clone, make):
    for name in FILES:
        path = clone / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)

    look(clone)
    for name in FILES:
        with suppress(ConfigError):
            content_of(clone / name)
    with pytest.raises(MultitapError):
        read_bundle(clone / "x.mcpb")
    with suppress(LockError):
        LockFile(clone / "multitap.lock").read()


@pytest.mark.parametrize("place", ["mcpservers", "skills", "environments"])
def test_a_folder_with_too_many_entries_is_not_looked_at(clone, place):
    for number in range(1200):
        one = clone / place / f"s{number}"
        one.mkdir(parents=True)
        for name in ("server.py", "config.jsonc"):
            (one / name).touch()
        (one / "SKILL.md").write_text(f"---\nname: s{number}\ndescription: x\n---\n")

    look(clone)

    loaded = load_trusted(native(Surroundings.here()))
    assert not loaded.merged.servers
    assert not loaded.pending
    if place == "mcpservers":
        assert "it has more than 1,000 entries" in str(loaded.problems[0])


def test_folders_in_one_another_are_looked_at_to_the_bottom(clone, monkeypatch):
    roots = (clone / "mcpservers" / "a", clone / "skills" / "a")
    for root in roots:
        root.mkdir(parents=True)
        (root / "server.py").touch()
        (root / "SKILL.md").write_text("---\nname: a\ndescription: x\n---\n")
        os.chdir(root)
        for _ in range(DEPTH):
            os.mkdir("d")  # noqa: PTH102 - the path would be too long
            os.chdir("d")
        (clone / "code.py").write_text("1")
        os.link(clone / "code.py", "deep.py")
    monkeypatch.chdir(clone)
    try:
        parts = [one.part for project in review(clone, Projects())[0] for one in project.parts]
    finally:  # pytest cannot remove it
        subprocess.run(["rm", "-rf", *roots], check=True)

    assert sum("deep.py" in line for part in parts for line in part.lines) == len(roots)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipes", "folders", "loops"])
@pytest.mark.parametrize("line", ["tools", "doctor", "serve", "trust", "add x --project -- true"])
def test_every_command_ends(clone, tmp_path, kind, line):
    for name in FILES:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](clone / name)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}

    ended = subprocess.run(
        [sys.executable, "-P", "-m", "multitap", *line.split()],
        env={**kept, "HOME": str(tmp_path / "home"), "MULTITAP_WAIT": "2"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert "Traceback" not in ended.stderr
