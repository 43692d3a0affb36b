"""A screen whose terminal is gone ends, and so does everything it started."""

import os
import shutil
import signal
import socket
import sys

import pytest

from tests.cli.conftest import toml, zoo
from tests.processes import descendants
from tests.terminals import Tmux, terminal
from tests.waiting import wait_for

READY = "2 of 3 servers"
SITUATIONS = {
    "nothing": ("", "zoo"),
    "window": ("?", "Page up"),
    "call": ("/call zoo_sleep seconds=1000\r", "cancel the call"),
    "question": ("/call zoo_ask\r", "zoo asks"),
    "login": ("/mcp login silent\r", r"\?1049l"),  # the screen gives way to the command
}


@pytest.fixture
def silent():
    """The port of a server that never says a word, so that a login to it does not end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def configure(home, silent):
    path = home / "multitap.toml"
    path.write_text(
        f"""[servers]
zoo = {toml(zoo("good"))}
other = {toml(zoo("good"))}
silent = {{ url = "http://127.0.0.1:{silent}/mcp" }}
"""
    )
    return [sys.executable, "-m", "multitap", "-c", str(path)]


def everything(pid):
    return {pid, *descendants(pid)}


def still_there(pids):
    running = descendants(1) | descendants(os.getpid())
    return pids & running


@pytest.mark.parametrize(
    ("situation", "shell"),
    [
        ("call", False),
        pytest.param("nothing", True, marks=pytest.mark.slow),
        pytest.param("window", True, marks=pytest.mark.slow),
        pytest.param("question", False, marks=pytest.mark.slow),
        pytest.param("login", False, marks=pytest.mark.slow),
    ],
)
def test_a_closed_terminal_ends_the_screen_and_its_servers(home, silent, situation, shell):
    command = configure(home, silent)
    keys, shown = SITUATIONS[situation]
    with terminal(["sh", "-c", f"{' '.join(command)}; true"] if shell else command) as person:
        person.reads(READY)
        person.press(keys)
        person.reads(shown)
        pids = everything(person.process.pid)
        person.hang_up()

        assert len(pids) > 3
        wait_for(lambda: not still_there(pids))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("situation", "number"),
    [("question", signal.SIGHUP), ("window", signal.SIGTERM), ("login", signal.SIGTERM)],
)
def test_a_signal_ends_the_screen_though_nobody_reads_the_terminal(home, silent, situation, number):
    command = configure(home, silent)
    keys, shown = SITUATIONS[situation]
    with terminal(command) as person:
        person.reads(READY)
        person.press(keys)
        person.reads(shown)
        pids = everything(person.process.pid)
        os.kill(person.process.pid, number)

        wait_for(lambda: not still_there(pids))


@pytest.mark.slow
def test_a_terminal_that_goes_without_a_signal_ends_the_screen_too(home, silent):
    command = configure(home, silent)
    with terminal(["sh", "-c", f"trap '' HUP; exec {' '.join(command)}"]) as person:
        person.reads(READY)
        pids = everything(person.process.pid)
        person.hang_up()

        wait_for(lambda: not still_there(pids))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_a_killed_tmux_ends_the_screen_and_its_servers(home, silent, tmp_path_factory):
    tmux = Tmux(tmp_path_factory.mktemp("t"), configure(home, silent))
    tmux.shows(READY)
    tmux.press("?")
    tmux.shows("Page up")
    pids = everything(tmux.pid())
    tmux.kill()

    wait_for(lambda: not still_there(pids))
