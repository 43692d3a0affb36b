"""What a terminal gets to see."""

import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.cli import terminal as output
from multitap.cli.progress import drawing, lines
from multitap.cli.terminal import cells, cut, fitting, json_text, table
from multitap.events import Failure, FailureCode, LinkState, Phase, ServerSnapshot


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Does some work and returns what a terminal of 40 columns shows of it."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def shown(work):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen := Terminal())
            work()
        return screen.getvalue()

    return shown


ROWS = [("a", "1", "short"), ("bcd", "100", "a text that is too long for forty columns")]


def test_columns_are_aligned(capsys):
    table(("NAME", "N", "TEXT"), ROWS, right=("N",))

    assert capsys.readouterr().out == (
        "NAME    N  TEXT\na       1  short\nbcd   100  a text that is too long for forty columns\n"
    )


def test_on_a_terminal_the_last_column_is_cut_at_its_edge(terminal):
    shown = terminal(lambda: table(("NAME", "N", "TEXT"), ROWS)).splitlines()

    assert shown[2] == "bcd   100  a text that is too long for …"
    assert len(shown[2]) == 40


@pytest.mark.parametrize(
    ("widths", "room", "fitted"),
    [
        ([10, 20], 40, [10, 20]),
        ([10, 60], 40, [10, 28]),
        ([30, 5, 60, 20], 80, [30, 5, 20, 19]),
        ([90, 20, 5], 40, [90, 8, 5]),
        ([50], 40, [40]),
    ],
)
def test_the_widest_column_but_the_first_gives_way(widths, room, fitted):
    assert fitting(widths, room) == fitted


def test_wide_characters_take_two_columns(capsys):
    table(("NAME", "TEXT"), [("日本", "x"), ("e\N{COMBINING ACUTE ACCENT}", "y")])

    assert capsys.readouterr().out.splitlines()[1:] == ["日本  x", "e\u0301     y"]


def test_a_cell_is_one_line_without_escape_sequences(capsys):
    table(("NAME", "TEXT"), [("a\x1b[31m", "one\r\ntwo\x07\u202ethree")])

    assert capsys.readouterr().out.splitlines()[1] == "a�[31m  one two��three"


@pytest.mark.usefixtures("terminal")
def test_colours_are_for_terminals_only():
    assert output.colour_text("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert output.colour_text("x", "red", io.StringIO()) == "x"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)

    assert output.colour_text("x", "red", Terminal()) == "x"


def test_a_cell_is_painted_by_what_it_says(terminal):
    red = {"STATE": lambda _: "red"}

    shown = terminal(lambda: table(("STATE", "N"), [("bad", "1")], paint=red))

    assert shown == "STATE  N\n\x1b[31mbad  \x1b[0m  1\n"


def test_a_server_s_text_is_made_harmless_on_a_terminal(terminal):
    shown = terminal(lambda: output.say_text("\x1b]0;title\x07text\n\tindented"))

    assert shown == "�]0;title�text\n\tindented\n"


def test_errors_come_with_a_hint(capsys):
    output.complain("it broke\x1b", "mend it")

    assert capsys.readouterr().err == "error: it broke�\nhint: mend it\n"


@given(st.dictionaries(st.text(), st.lists(st.text() | st.integers(), max_size=3), max_size=3))
def test_json_is_valid_and_never_steers_a_terminal(value):
    text = json_text(value)

    assert json.loads(text) == value
    assert all(char.isprintable() or char == "\n" for char in text)


@given(st.text(), st.integers(1, 50))
def test_a_cut_text_fits(text, room):
    short = cut(text, room)

    assert cells(short) <= room
    assert short == text or short.endswith("…")


def server(name, state, **more):
    return ServerSnapshot(name, "stdio", state, since=100.0, **more)


def test_progress_has_one_line_per_server():
    failure = Failure(FailureCode.CRASH, Phase.SPAWN, "it\nbroke")
    servers = [
        server("good", LinkState.CONNECTED, tools=3),
        server("bad", LinkState.ERROR, failure=failure),
        server("slow", LinkState.CONNECTING),
        server("lost", LinkState.DISCONNECTED),
        server("off", LinkState.DISABLED),
    ]

    assert lines(servers, now=104.2, rows=24, columns=80) == [
        "slow  starting, 4 s",
        "good  ready, 3 tools",
        "bad   it broke",
        "lost  waiting",
    ]


def test_progress_never_takes_more_room_than_there_is():
    servers = [server(f"server {number}", LinkState.CONNECTING) for number in range(30)]

    shown = lines(servers, now=101, rows=5, columns=12)

    assert shown == ["server 0   …", "server 1   …", "server 2   …", "server 3   …", "and 26 more"]


def test_progress_is_drawn_in_place_and_erased(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")

    with drawing() as draw:
        draw([server("slow", LinkState.CONNECTING), server("good", LinkState.CONNECTED)])
        first = screen.getvalue()
        draw([server("slow", LinkState.CONNECTED)])

    assert [line.split()[0] for line in first.splitlines()] == ["slow", "good"]
    assert screen.getvalue().count("\x1b[J") == 2
