"""Servers in a sandbox, as commands start them; and what a machine without one says."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from multitap.sandbox.levels import sandbox_support
from tests.waiting import PATIENCE

PROGRAM = Path(__file__).parents[2] / "attacks" / "confined_server.py"
SUPPORT = sandbox_support()
pytestmark = pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason))
WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)]
text = b"".join(struct.pack("HBBI", *one) for one in code)
kept = ctypes.create_string_buffer(text, len(text))
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(kept))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_char_p(program)) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Makes the kernel say that it does not know Landlock, then runs Python with the arguments."""


@pytest.fixture(autouse=True)
def with_sandboxes(monkeypatch):
    monkeypatch.delenv("MULTITAP_SANDBOX")


@pytest.fixture
def registry(home, tmp_path):
    """A server that came from a registry, and a file that it has no rule for."""
    (home / "notes.txt").write_text("a note")
    table = {
        "command": sys.executable,
        "args": [str(PROGRAM)],
        "provenance": "registry",
        "sandbox": "strict",
        "pin": "off",
    }
    lines = ["[servers.s]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    (home / "multitap.toml").write_text("\n".join(lines) + "\n")
    return home / "notes.txt"


def test_a_published_server_gets_what_was_learned_and_no_more(multitap, home, registry):
    chosen = "-c multitap.toml"
    refused = multitap(f"call {chosen} s_read", f"path={registry}")
    assert refused.code == 1
    assert "PermissionError" in refused.out + refused.err

    wanted = json.dumps({"path": str(registry)})
    learned = multitap(f"sandbox learn {chosen} s --call", f"read={wanted}")
    assert learned.code == 0, learned.err
    assert str(registry) in (home / "multitap.toml").read_text()

    assert multitap(f"call {chosen} s_read", f"path={registry}").out.strip() == "a note"
    other = home / "other.txt"
    other.write_text("another")
    assert "PermissionError" in multitap(f"call {chosen} s_read", f"path={other}").err
    [server] = multitap(f"status {chosen} --json").json["servers"]
    assert server["sandbox"]["level"] == "strict"
    header, line, *_ = multitap(f"status {chosen}").lines
    assert line[header.index("LEVEL") :].startswith("strict")
    shown = multitap(f"sandbox show {chosen} s")
    assert 's runs under `strict`: `sandbox = "strict"`' in shown.out
    assert str(registry) in shown.out


def test_a_server_whose_child_must_read_about_itself_learns_that(multitap, home, registry):
    launcher = home / "launcher.py"
    needs = f"open('/proc/self/cgroup').close(); import runpy; runpy.run_path({str(PROGRAM)!r})"
    launcher.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {needs!r}])"
    )
    file = home / "multitap.toml"
    file.write_text(file.read_text().replace(str(PROGRAM), str(launcher)))
    started = multitap("status -c multitap.toml")
    assert "PermissionError" in started.out

    learned = multitap("sandbox learn -c multitap.toml s")

    assert learned.code == 0, learned.err
    assert tomllib.loads(file.read_text())["servers"]["s"]["sandbox_rules"]["proc"] is True
    [server] = multitap("status -c multitap.toml --json").json["servers"]
    assert (server["state"], server["sandbox"]["level"]) == ("connected", "strict")


def test_rules_join_those_that_a_file_has_and_can_be_undone(multitap, home, registry):
    file = home / "multitap.toml"
    inline = 'sandbox_rules = { hosts = ["a.example.com"] }  # mine\n'
    file.write_text(file.read_text() + inline)
    before = file.read_bytes()

    wanted = json.dumps({"path": str(registry)})
    multitap("sandbox learn -c multitap.toml s --call", f"read={wanted}")
    allowed = multitap("sandbox allow -c multitap.toml s b.example.com:8443")

    rules = tomllib.loads(file.read_text())["servers"]["s"]["sandbox_rules"]
    assert allowed.code == 0, allowed.err
    assert str(registry) in rules["read"]
    assert rules["hosts"] == ["a.example.com", "b.example.com:8443"]
    assert "# mine" in file.read_text()
    refused = multitap("sandbox allow -c multitap.toml s", "no host")
    assert refused.code == 3
    assert "'no host' is not a host" in refused.err
    multitap("undo")
    multitap("undo")
    assert file.read_bytes() == before


def test_a_failed_call_names_the_hosts_that_the_sandbox_refused(multitap, registry):
    multitap("sandbox allow -c multitap.toml s other.example.com")

    ended = multitap("call -c multitap.toml s_fetch url=http://example.com/")

    assert ended.code == 1
    assert "the sandbox of s did not let it reach example.com" in ended.err
    assert "`multitap sandbox allow s example.com`" in ended.err


@pytest.mark.parametrize(
    ("wanted", "state", "words"),
    [
        ('"auto"', "connected", "without a sandbox: this machine cannot confine programs"),
        ("true", "error", "this machine cannot confine programs"),
    ],
)
def test_without_landlock_status_says_so(home, registry, wanted, state, words):
    file = home / "multitap.toml"
    file.write_text(file.read_text().replace('"strict"', wanted))
    run = [sys.executable, "-c", WITHOUT_LANDLOCK, "-m", "multitap", "-c", "multitap.toml"]

    told = [
        subprocess.run(
            [*run, "status", *more],
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        ).stdout
        for more in ((), ("--json",))
    ]

    [server] = json.loads(told[1])["servers"]
    assert server["state"] == state, told
    assert server["sandbox"]["level"] == "off"
    assert words in " ".join(told[0].split()), told[0]


def test_a_server_runs_under_the_level_that_a_person_sets(multitap, home, registry):
    file = home / "multitap.toml"
    for level in ("guard", "off", "strict"):
        assert multitap(f"sandbox set -c multitap.toml s {level}").code == 0

        assert tomllib.loads(file.read_text())["servers"]["s"]["sandbox"] == level
        [server] = multitap("status -c multitap.toml --json").json["servers"]
        assert (server["state"], server["sandbox"]["level"]) == ("connected", level)


@pytest.mark.parametrize(("name", "tool"), [("mcp.json", "mcp_s_write"), (".kode.json", "s:write")])
def test_what_a_person_allows_a_project_is_kept_beside_its_trust(
    multitap, home, monkeypatch, name, tool
):
    project, outside = home / "project", home / "outside"
    project.mkdir()
    outside.mkdir()
    file = project / name
    server = {"command": sys.executable, "args": [str(PROGRAM)], "transport": "stdio"}
    file.write_text(json.dumps({"mcpServers": {"s": server}}))
    before = file.read_bytes()
    monkeypatch.chdir(project)
    assert multitap("trust --yes").code == 0
    assert "PermissionError" in multitap(f"call {tool} path={outside}/new").err

    allowed = multitap(f"sandbox allow s --write {outside}")

    assert allowed.code == 0, allowed.err
    assert multitap(f"call {tool} path={outside}/new").code == 0
    assert multitap("sandbox set s off").code == 0
    [shown] = multitap("status --json").json["servers"]
    assert (shown["state"], shown["sandbox"]["level"]) == ("connected", "off")
    assert multitap(f"call {tool} path={home}/elsewhere").code == 0
    assert "s is not confined: you chose it" in multitap("sandbox show s").out
    assert multitap("sandbox set s strict").code == 0
    assert "s runs under `strict`: you chose it" in multitap("sandbox show s").out
    assert file.read_bytes() == before


def test_a_project_s_server_learns_what_is_outside_its_folder(multitap, home, monkeypatch):
    project, outside = home / "project", home / "outside"
    project.mkdir()
    outside.mkdir()
    server = {"command": sys.executable, "args": [str(PROGRAM)], "transport": "stdio"}
    (project / "mcp.json").write_text(json.dumps({"mcpServers": {"s": server}}))
    monkeypatch.chdir(project)
    assert multitap("trust --yes").code == 0
    for level in ("off", "strict"):  # without a sandbox, it learns for `strict`
        assert multitap(f"sandbox set s {level}").code == 0
        wanted = json.dumps({"path": f"{outside}/{level}/new"})
        (outside / level).mkdir()

        learned = multitap("sandbox learn s --call", f"write={wanted}")

        assert learned.code == 0, learned.err
        assert f"{outside}/{level}" in learned.out
    assert multitap(f"call mcp_s_write path={outside}/off/new").code == 0
    assert "PermissionError" in multitap(f"call mcp_s_write path={outside}/new").err


def test_a_container_is_shown_with_its_own_level(multitap, home, tmp_path):
    engine = tmp_path / "bin" / "docker"  # outside the folder that it starts in
    engine.parent.mkdir()
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    table = {"command": str(engine), "args": ["run", "-i", "image"], "provenance": "registry"}
    lines = ["[servers.s]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    (home / "multitap.toml").write_text("\n".join(lines) + "\n")

    shown = multitap("sandbox show -c multitap.toml s")

    assert "s runs under `container`: a registry describes it" in shown.out


def test_a_private_place_is_not_opened_by_a_rule(multitap, home, registry):
    ended = multitap(f"sandbox allow -c multitap.toml s --read {Path.home()}/.ssh")

    assert ended.code == 3
    assert "is private: no rule opens it" in ended.err


def test_a_removed_server_leaves_nothing_to_the_next_of_its_name(multitap, home, registry):
    multitap("call -c multitap.toml s_where")
    where = json.loads(multitap("call -c multitap.toml s_where").out)
    mark = Path(where["home"]) / "mark"
    mark.write_text("left behind")

    assert multitap("remove -c multitap.toml s").code == 0

    assert not mark.exists()
