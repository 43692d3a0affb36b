"""Multitap itself on a machine, and how it goes."""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import multitap as multitap_package
from multitap.control.places import own_socket
from multitap.installation import Installation, extra_hint
from tests.cli.test_questions import Terminal

# `make setup` uses uv where there is one, and then there is no pip
TOOL, PIP = (
    ("pip", f"{sys.executable} -m pip {{}}")
    if find_spec("pip")
    else ("uv pip", f"uv pip {{}} --python {sys.executable}")
)


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
    assert f"hint: `{PIP.format('uninstall')} multitap` removes the program" in ended.err
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
    ("tool", "more", "adding", "updating", "removing"),
    [
        (
            "pipx",
            {"folder": Path("/src/multitap")},
            "pipx inject multitap 'openai<4' anthropic",
            "pipx upgrade multitap",
            "pipx uninstall multitap",
        ),
        (
            "uv tool",
            {"url": "git+https://example.com/m"},
            "uv tool install --with 'openai<4' --with anthropic git+https://example.com/m",
            "uv tool upgrade --reinstall multitap",
            "uv tool uninstall multitap",
        ),
        (
            "uv tool",
            {},
            "uv pip install --python /venv/bin/python 'openai<4' anthropic",
            "uv tool upgrade --reinstall multitap",
            "uv tool uninstall multitap",
        ),
        (
            "pip",
            {"folder": Path("/my src")},
            "/venv/bin/python -m pip install '/my src[chat]'",
            "/venv/bin/python -m pip install --upgrade '/my src'",
            "/venv/bin/python -m pip uninstall multitap",
        ),
        (
            "pip",
            {"folder": Path("/src"), "is_editable": True},
            "/venv/bin/python -m pip install -e '/src[chat]'",
            "/venv/bin/python -m pip install --upgrade -e /src",
            "/venv/bin/python -m pip uninstall multitap",
        ),
        (
            "pip",
            {},
            "/venv/bin/python -m pip install 'openai<4' anthropic",
            "",
            "/venv/bin/python -m pip uninstall multitap",
        ),
        (
            "uv pip",
            {},
            "uv pip install --python /venv/bin/python 'openai<4' anthropic",
            "",
            "uv pip uninstall --python /venv/bin/python multitap",
        ),
    ],
)
def test_the_program_grows_and_goes_as_it_came(tool, more, adding, updating, removing):
    requirements = ("click>=8", "openai<4; extra == 'chat'", 'anthropic; extra == "chat"')
    here = Installation(tool=tool, python="/venv/bin/python", requirements=requirements, **more)

    assert (here.adding("chat"), here.updating(), here.removing()) == (adding, updating, removing)


def test_update_says_how_it_was_installed_and_the_command(multitap):
    ended = multitap("self update")

    folder = Path(multitap_package.__file__).parents[2]
    assert ended.code == 0
    assert f"was installed with {TOOL} from {folder}\n" in ended.err
    assert f"{PIP.format('install')} --upgrade -e {folder}` updates it" in ended.err


def test_what_an_extra_needs_is_named_and_never_our_own_name():
    assert "[chat]" in extra_hint("chat")
    requirements = Installation.here().requirements
    unknown = Installation(tool="pip", python="python", requirements=requirements)

    for extra, parts in (("chat", ["anthropic<3,>=2", "openai<4,>=3"]), ("redis", ["redis<9,>=8"])):
        assert shlex.split(unknown.adding(extra)) == ["python", "-m", "pip", "install", *parts]
