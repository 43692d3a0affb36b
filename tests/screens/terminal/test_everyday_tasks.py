"""A new user at a real terminal, with six servers of which one fails, and nothing but keys."""

import shutil
import sys

import pytest

from tests.cli.conftest import toml, zoo
from tests.terminals import Tmux
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux"),
]

SOON = 30
"""Seconds until the screen says what is wrong."""
TASKS = (
    ("restart the server that fails", ["r"], "broken restarts"),
    ("read what it wrote", ["l"], "stderr of broken"),
    ("disable it", ["e"], "broken +disabled"),
    ("find a tool", ["3", "f", "divide", "Enter"], r"TOOL[^\n]*\n *calculator_divide"),
    ("read its schema", ["Enter"], '"properties"[\\s\\S]*Esc'),
    (
        "call it by its form",
        ["c", "=call calculator_divide", "8", "Enter", "2", "Enter"],
        r"calculator_divide: ok[\s\S]*4",
    ),
    ("call a tool by a command", ["/call calculator_add a=20 b=22", "Enter"], "42"),
    ("answer what a server asks", ["/call zoo_ask", "Enter", "=zoo asks", "Ada", "C-s"], '"Ada"'),
    ("look at a call", ["2", "Enter"], "zoo ask: ok"),
    ("replay a call", ["r", "=call zoo_ask", "C-s", "=zoo asks", "Eve", "C-s"], '"Eve"'),
    ("create a token", ["5", "n", "=New token", "laptop", "C-s"], "mtap_"),
    ("follow the log", ["6"], "disabled"),
)
"""What a person does, by which keys (after `=`, what they wait to see), and what they see then."""
IN_THE_LIST = {TASKS[0][0], TASKS[2][0], TASKS[3][0], TASKS[-1][0]}
"""Those that open no window."""


@pytest.fixture
def tmux(home, tmp_path_factory):
    path = home / "multitap.toml"
    path.write_text(
        f"""record = "all"
[servers]
calculator = {{ command = "{sys.executable}", args = ["-m", "multitap.demo.servers.calculator"] }}
notebook = {{ command = "{sys.executable}", args = ["-m", "multitap.demo.servers.notebook"] }}
zoo = {toml(zoo("good_legacy"))}
modern = {toml(zoo("good_modern"))}
slow = {toml(zoo("slow_init"))}
broken = {toml(zoo("exit_at_start"))}
"""
    )
    command = [sys.executable, "-m", "multitap", "-c", str(path)]
    screen = Tmux(tmp_path_factory.mktemp("t"), command, NO_COLOR="1")
    yield screen
    screen.kill()


def close_window(tmux):
    """Close what is open."""
    tmux.shows("Esc: close")
    tmux.press("Escape")
    tmux.hides("Esc: close")


def test_the_screen_says_soon_which_server_fails_why_and_which_key_helps(tmux):
    tmux.shows("1 Servers")
    wait_for(lambda: "needs attention: broken" in tmux.screen(), SOON)
    screen = tmux.shows("press r to restart it, l to see what it wrote")

    assert "it exited with code 1" in screen
    assert "6 servers" in screen


def test_from_the_first_paint_on_nothing_is_called_empty_that_is_not(tmux):
    shown = []

    def is_up():
        shown.append(tmux.screen())
        return "5 of 6 servers connected" in shown[-1]

    wait_for(is_up)

    assert any("onnecting" in screen for screen in shown)
    assert not [screen for screen in shown if "no servers" in screen.lower()]
    assert "q Quit" in tmux.shows("press r")


def test_without_servers_the_screen_offers_to_add_one_and_does(home, tmp_path_factory):
    command = [sys.executable, "-m", "multitap"]
    screen = Tmux(tmp_path_factory.mktemp("t"), command, NO_COLOR="1")
    try:
        screen.shows("There are no servers yet")
        offered = screen.shows("i Import")
        screen.press("a")
        screen.shows("/mcp add")
        screen.type(f"sums -- {sys.executable} -m multitap.demo.servers.calculator")
        screen.press("Enter")
        added = screen.shows("Press Enter to go back")
        screen.press("Enter")
        after = screen.shows("1 of 1 server connected")
    finally:
        screen.kill()

    assert "a  adds one" in offered
    assert "sums: 3 tools" in added
    assert "sums" in after


def test_a_project_is_reviewed_and_trusted_by_a_key_and_its_servers_appear(home, tmp_path_factory):
    (home / "multitap.toml").write_text(f"[servers]\ncalm = {toml(zoo('good'))}\n")
    command = [sys.executable, "-m", "multitap"]
    screen = Tmux(tmp_path_factory.mktemp("t"), command, (40, 100), NO_COLOR="1")
    try:
        screen.shows("not trusted: press T to review")
        shown = screen.shows("press T to review its project and trust it")
        screen.press("T")
        review = screen.shows(r"Trust it\?")
        screen.press("y", "Enter")
        screen.shows("1 of 1 server connected")

        assert "There are no servers" not in shown
        assert "calm" in shown
        assert "server calm (multitap.toml): new" in review
        screen.hides("T Trust")
    finally:
        screen.kill()


def test_everyday_tasks_are_done_by_keys_alone(tmux):
    tmux.shows("5 of 6 servers connected")
    tmux.shows("press r")
    for task, keys, seen in TASKS:
        for key in keys:
            if key.startswith("="):
                tmux.shows(key[1:])
            else:
                tmux.press(key)
        tmux.shows(seen)
        if task not in IN_THE_LIST:
            close_window(tmux)
    tmux.press("q")
    wait_for(lambda: not tmux.is_alive())


def test_keys_that_arrive_all_at_once_are_handled_in_order(tmux):
    tmux.shows("5 of 6 servers connected")
    tmux.press(*"3fdivide", "Enter", "c", "8", "Enter", "2", "Enter")

    tmux.shows(r"calculator_divide: ok[\s\S]*4")
