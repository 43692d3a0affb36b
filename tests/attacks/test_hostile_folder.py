"""Threat: your own servers, started while you work in a stranger's folder, find its files there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import multitap
from multitap.config import Settings, StdioServer
from multitap.config.models import ServerHome
from multitap.config.sources import start_folder
from multitap.names import ToolNames
from multitap.sandbox.plan import plan_sandbox
from multitap.trust.policy import Decision, Policy
from multitap.version import own_program
from tests.waiting import PATIENCE
from tests.zoo.modes import command

READ = ToolNames("s_read", "read", "s")
MARK = "import pathlib; pathlib.Path({marks!r}, {name!r}).touch()\n"
HONEST = """
import os, pathlib
if pathlib.Path(".env").exists() and "HOSTILE" in pathlib.Path(".env").read_text():
    pathlib.Path({marks!r}, "dotenv").touch()
if "HOSTILE" in os.environ:
    pathlib.Path({marks!r}, "env_file").touch()
os.execv({argv[0]!r}, {argv!r})
"""
SERVERS = """
[servers.module]
command = "{python}"
args = ["-m", "honest"]
env = {{ PYTHONPATH = "{lib}" }}
[servers.dotenv]
command = "{python}"
args = ["{lib}/honest.py"]
[servers.env_file]
command = "{python}"
args = ["{lib}/honest.py"]
env_file = "settings.env"
[servers.relative]
command = "./tool"
[servers.secret]
url = "http://127.0.0.1:1/${{file:token.txt}}"
"""
NPX = """
[servers.launched]
command = "npx"
args = ["--offline", "-y", "honest-package"]
"""


def executable(path, code):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)


@pytest.fixture
def places(tmp_path):
    """A home with servers in it, and a stranger's folder with files of the same names."""
    home, clone, marks = (tmp_path / name for name in ("home", "clone", "marks"))
    for place in (home / "lib", clone, marks):
        place.mkdir(parents=True)
    honest = HONEST.format(marks=str(marks), argv=[*command("good")])
    (home / "lib" / "honest.py").write_text(honest)
    executable(home / "tool", honest)
    for name in ("honest.py", "tool", "node_modules/.bin/honest-package"):
        executable(clone / name, MARK.format(marks=str(marks), name=Path(name).name))
    (clone / "package.json").write_text('{"name": "clone", "bin": {"honest-package": "tool"}}')
    (clone / ".env").write_text("HOSTILE=1\n")
    (clone / "settings.env").write_text("HOSTILE=1\n")
    (clone / "token.txt").write_text("theirs")
    return home, clone, marks


@pytest.mark.parametrize("named", [False, True], ids=["found", "named by a variable"])
def test_nothing_of_the_current_folder_is_used(places, named):
    home, clone, marks = places
    text = SERVERS.format(python=sys.executable, lib=home / "lib")
    file = home / "servers.toml" if named else home / ".config" / "multitap" / "multitap.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / "settings.env").write_text("HARMLESS=1\n")
    (file.parent / "token.txt").write_text("mine")
    file.write_text(text + (NPX if shutil.which("npx") and not named else ""))
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    env = {**kept, "HOME": str(home), **({"MULTITAP_CONFIG": str(file)} if named else {})}

    ended = subprocess.run(
        [sys.executable, "-P", "-m", "multitap", "status", "--json", "--timeout", "60"],
        cwd=clone,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    states = {one["name"]: one["state"] for one in json.loads(ended.stdout)["servers"]}
    assert [path.name for path in marks.iterdir()] == []
    assert {states[name] for name in ("module", "dotenv", "env_file", "relative")} == {"connected"}
    assert "theirs" not in ended.stdout + ended.stderr


PROJECT = """
[servers.module]
command = "{python}"
args = ["-m", "honest"]
[servers.relative]
command = "./tool"
[servers.dotenv]
command = "{python}"
args = ["honest.py"]
env_file = "settings.env"
[servers.page]
url = "http://127.0.0.1:1/${{file:token.txt}}"
"""


def test_a_trusted_project_uses_nothing_of_a_folder_below_it(places):
    home, clone, marks = places
    project = home / "project"
    shutil.copytree(clone, project / "vendored")
    shutil.copy(home / "lib" / "honest.py", project)
    shutil.copy(home / "tool", project)
    (project / ".git").mkdir()
    (project / "settings.env").write_text("HARMLESS=1\n")
    (project / "token.txt").write_text("mine")
    (project / "multitap.toml").write_text(PROJECT.format(python=sys.executable))
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    env = {**kept, "HOME": str(home), "MULTITAP_SANDBOX": "off"}

    ended = subprocess.run(
        [sys.executable, "-P", "-m", "multitap", "status", "--json", "--timeout", "60", "--trust"],
        cwd=project / "vendored",
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    states = {one["name"]: one["state"] for one in json.loads(ended.stdout)["servers"]}
    assert [path.name for path in marks.iterdir()] == []
    assert {states[name] for name in ("module", "relative", "dotenv")} == {"connected"}, (
        ended.stdout
    )
    assert "theirs" not in ended.stdout + ended.stderr


def test_a_confined_server_of_a_project_starts_in_the_project(tmp_path):
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    config = StdioServer(command="x", provenance="project").at_home(
        ServerHome(paths=project, start=project)
    )

    plan = plan_sandbox(
        *("s", config, "/bin/true", {}),
        level="guard",
        home=home,
        state=tmp_path / "state",
        here=project / "vendored",
        ours={},
    )

    assert plan.cwd == project
    assert Path(plan.env["PYTHONPYCACHEPREFIX"]).is_relative_to(tmp_path / "state")


def test_a_rule_does_not_guess_where_a_confined_server_starts(tmp_path):
    rule = {"decision": "deny", "arguments": {"path": {"outside": [str(tmp_path)]}}}
    published = {"command": "x", "policy": [rule], "provenance": "registry"}
    config = StdioServer(**published).at_home(ServerHome(start=tmp_path))
    policy = Policy(Settings(servers={"s": config}))

    guard = policy.guard(READ, config, {})

    assert guard is not None
    assert guard.decide(b'{"path": "notes.txt"}').decision is Decision.DENY


def test_a_rule_about_paths_reads_them_as_the_server_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = {"decision": "deny", "arguments": {"path": {"inside": [str(tmp_path / "home")]}}}
    config = StdioServer(command="x", policy=[rule])
    policy = Policy(Settings(servers={"s": config}))

    guard = policy.guard(READ, config.at_home(ServerHome(start=tmp_path / "home")), {})

    assert guard is not None
    assert guard.decide(b'{"path": "notes.txt"}').decision is Decision.DENY


def test_a_process_of_ours_finds_no_modules_in_the_current_folder(tmp_path):
    for name in ("multitap", "anyio", "click", "json", "platformdirs"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hostile')")

    ended = subprocess.run(
        [*own_program(), "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr


def test_no_process_of_ours_is_started_otherwise():
    source = Path(multitap.__file__).parent
    started = [path.name for path in source.rglob("*.py") if "sys.executable, " in path.read_text()]

    # all but the last start Python with `-I`, and what bubblewrap starts repeats that
    assert sorted(started) == ["aside.py", "process.py", "selectors.py", "version.py"]


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        (".config/multitap/multitap.toml", ""),
        (".config/Claude/claude_desktop_config.json", ""),
        (".cursor/mcp.json", ""),
        (".kode.json", ""),
        ("work/servers.json", "work"),
        ("work/.vscode/mcp.json", "work"),
    ],
)
def test_where_servers_of_a_file_start(tmp_path, monkeypatch, file, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    assert start_folder(tmp_path / file) == tmp_path / folder
