"""Multitap itself on a machine, and how it goes."""

import os

import pytest

from multitap.cli.set_up import self
from multitap.control.places import own_socket
from tests.cli.test_questions import Terminal


@pytest.fixture
def traces(home):
    base = home.parent
    for name in ("config", "state", "data"):
        (base / name / "multitap").mkdir(parents=True)
        (base / name / "multitap" / "file").write_text("x" * 2048)
    (base / "data" / "other").mkdir()
    return base


@pytest.fixture(autouse=True)
def own_cache(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.parent / "cache"))


def test_without_purge_nothing_is_removed(multitap, traces):
    ended = multitap("self uninstall")

    assert ended.code == 0
    assert "uninstall multitap` removes the program" in ended.err
    assert (traces / "config" / "multitap" / "file").exists()


def test_clients_that_still_start_it_are_named(multitap, traces):
    assert "multitap uninstall" not in multitap("self uninstall").err
    multitap("install cursor codex")

    ended = multitap("self uninstall")

    assert "run `multitap uninstall cursor codex` first" in ended.err


def test_what_would_be_removed_is_shown_and_kept_without_a_yes(multitap, traces):
    ended = multitap("self uninstall --purge")

    assert ended.code == 1
    assert [line.split("  (")[0] for line in ended.lines] == [
        str(traces / name / "multitap") for name in ("config", "state", "data")
    ]
    assert "your configuration, 2 KiB" in ended.lines[0]
    assert (traces / "config" / "multitap" / "file").exists()


def test_with_a_yes_only_what_is_ours_goes(multitap, traces, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (traces / "cache").mkdir()
    (traces / "cache" / "multitap").symlink_to(precious)

    ended = multitap("self uninstall --purge --yes")

    assert ended.code == 0
    assert not [*traces.glob("*/multitap")]
    assert precious.is_dir()
    assert (traces / "data" / "other").is_dir()


def test_at_a_terminal_it_asks(traces):
    terminal = Terminal("self", "uninstall", "--purge")
    try:
        terminal.wait("remove all of this? [y/N]: ")
        terminal.type("y\n")

        assert terminal.end() == 0
    finally:
        terminal.close()
    assert not [*traces.glob("*/multitap")]


def test_nothing_goes_while_a_gateway_runs(multitap, traces):
    import socket  # noqa: PLC0415 - here only

    path = own_socket(traces / "state" / "multitap")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        ended = multitap("self uninstall --purge --yes")
    path.unlink()

    assert ended.code == 1
    assert f"a gateway is running (pid {os.getpid()})" in ended.err
    assert (traces / "config" / "multitap" / "file").exists()


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/home/me/.local/share/pipx/venvs/multitap", "pipx uninstall multitap"),
        ("/home/me/.local/share/uv/tools/multitap", "uv tool uninstall multitap"),
        ("/home/me/project/.venv", "-m pip uninstall multitap"),
    ],
)
def test_the_program_goes_as_it_came(monkeypatch, prefix, command):
    monkeypatch.setattr(self.sys, "prefix", prefix)

    assert self.removal().endswith(command)
