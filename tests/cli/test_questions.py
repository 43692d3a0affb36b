"""What servers ask in the middle of a call, answered at a terminal or declined without one."""

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time

import pytest

from multitap.catalog.schemas.form_fields import InvalidInput, fields_of
from tests.cli.conftest import zoo
from tests.waiting import PATIENCE, wait_for
from tests.zoo.modes import command

GOOD = shlex.join(command("good"))


class Terminal:
    """A command that has a terminal."""

    def __init__(self, *arguments, env=None, cwd=None):
        self.screen, side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "multitap", *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", **(env or {})},
            cwd=cwd,
        )
        os.close(side)
        self.seen, self.read = "", 0

    def wait(self, words):
        """Read on until the words are there."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.seen.find(words, self.read)) < 0:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.screen], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.screen, 4096).decode()
                except OSError:
                    raise AssertionError(self.seen) from None
        self.read = found + len(words)

    def type(self, text):
        os.write(self.screen, text.encode())

    def end(self):
        code = self.process.wait(PATIENCE)
        while select.select([self.screen], [], [], 0)[0]:
            try:
                if not (read := os.read(self.screen, 4096)):
                    break
            except OSError:
                break
            self.seen += read.decode()
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.screen)


@pytest.fixture
def terminal(home):
    opened = []

    def start(*arguments, **more):
        opened.append(Terminal(*arguments, **more))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_a_form_is_filled_in_at_the_prompt(terminal, era):
    call = terminal("call", "ask", "--", *command("good", "--era", era))

    call.wait("asks: What is your name?")
    call.wait("required): ")
    call.type("Ann\n")

    assert call.end() == 0
    assert '"name":"Ann"' in call.seen.replace(" ", "")


def test_ctrl_d_declines(terminal):
    call = terminal("call", "ask", "--", *command("good"))

    call.wait("required): ")
    call.type("\x04")

    assert call.end() == 0
    assert "decline" in call.seen


def test_ctrl_c_ends_a_call_whose_question_is_open(terminal):
    call = terminal("call", "ask", "--", *command("good"))

    call.wait("required): ")
    call.process.send_signal(signal.SIGINT)

    assert call.end() == 130


@pytest.mark.parametrize(("typed", "action"), [("a\n", "accept"), ("\n", "decline")])
def test_a_page_is_shown_and_never_opened_unasked(terminal, typed, action):
    call = terminal("call", "ask", "url=true", "--", *command("good", "--era", "handshake"))

    call.wait("https://example.com/sign-in")
    call.wait("on the host example.com")
    call.wait("or decline: ")
    call.type(typed)

    assert call.end() == 0
    assert action in call.seen.partition("or decline: ")[2]


@pytest.mark.parametrize(
    "page",
    [
        "https://evil.example\\@bank.example/",
        # `tests/http/test_addresses.py` has all that is no plain address
        pytest.param("file:///etc/passwd", marks=pytest.mark.wide),
        pytest.param("http://bank.example/", marks=pytest.mark.wide),
    ],
)
def test_an_address_that_browsers_read_differently_is_declined(terminal, page):
    asked = ("call", "ask", "url=true", f"page={page}")
    call = terminal(*asked, "--", *command("good", "--era", "handshake"))

    call.wait("declined: it is not a plain web address")

    assert call.end() == 0
    assert "on the host" not in call.seen
    assert '"action": "decline"' in call.seen


def test_the_browser_of_a_desktop_opens_the_page(terminal, tmp_path):
    opened = tmp_path / "opened"
    program = tmp_path / "xdg-open"
    program.write_text(f'#!/bin/sh\necho "$@" > {opened}\n')
    program.chmod(0o755)
    desktop = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DISPLAY": ":0"}
    zoo = command("good", "--era", "handshake")
    call = terminal("call", "ask", "url=true", "--", *zoo, env=desktop)

    call.wait("or decline: ")
    call.type("o\n")

    assert call.end() == 0
    assert '"action": "accept"' in call.seen
    wait_for(lambda: opened.exists() and opened.read_text() == "https://example.com/sign-in\n")


def test_without_a_browser_the_question_stays_open(terminal):
    zoo = command("good", "--era", "handshake")
    call = terminal("call", "ask", "url=true", "--", *zoo, env={"DISPLAY": ""})

    call.wait("or decline: ")
    call.type("o\n")
    call.wait("there is no browser here")
    call.wait("or decline: ")
    call.type("a\n")

    assert call.end() == 0
    assert '"action": "accept"' in call.seen


def test_a_person_answers_in_place_of_a_model(terminal):
    call = terminal("call", "sample", "--", *command("good", "--era", "handshake"))

    call.wait("user: Say hello")
    call.wait("> ")
    call.type("Hello,\n")
    call.wait("> ")
    call.type("world\n")
    call.wait("> ")
    call.type(".\n")

    assert call.end() == 0
    assert "Hello,\\nworld" in call.seen


@pytest.mark.parametrize(
    ("tool", "words"),
    [("ask", "asks: What is your name? (declined"), ("sample", "a model's answer")],
)
def test_without_a_terminal_questions_are_declined(multitap, tool, words):
    ended = multitap(f"call {tool} -- {GOOD}")

    assert words in ended.err
    assert "declined: there is no terminal to answer at" in ended.err


def test_questions_of_a_running_gateway_s_servers_reach_the_prompt(terminal, configure, home):
    configure(zoo=zoo("good"))
    gateway = subprocess.Popen(
        [sys.executable, "-m", "multitap", "serve", "--http", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in gateway.stderr:
            if "/mcp" in line:
                break
        call = terminal("call", "zoo_ask")

        call.wait("from the gateway")
        call.wait("zoo asks: What is your name?")
        call.wait("required): ")
        call.type("Ann\n")

        assert call.end() == 0
        assert '"name":"Ann"' in call.seen.replace(" ", "")
    finally:
        gateway.terminate()
        gateway.communicate()


FORM = {
    "properties": {
        "age": {"type": "integer", "minimum": 1, "maximum": 9},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "mail": {"type": "string", "format": "email"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "page": {"type": "string", "format": "uri"},
        "code": {"type": "string", "minLength": 2, "maxLength": 3},
        "size": {"type": "string", "enum": ["s", "m"], "enumNames": ["Small", "Medium"]},
        "tint": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}]},
        "many": {
            "type": "array",
            "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b"}]},
            "maxItems": 2,
        },
    },
    "required": ["age"],
}
FIELDS = {field.name: field for field in fields_of(FORM)}


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("age", "7", 7),
        ("share", "0.5", 0.5),
        ("sure", "Yes", True),
        ("sure", "off", False),
        ("mail", "a@b.co", "a@b.co"),
        ("day", "2026-01-31", "2026-01-31"),
        ("at", "2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"),
        ("page", "https://x", "https://x"),
        ("code", "abc", "abc"),
        ("size", "2", "m"),
        ("size", "Small", "s"),
        ("tint", "r", "r"),
        ("many", "b, A", ["b", "a"]),
    ],
)
def test_what_is_typed_becomes_the_value_that_the_form_wants(name, typed, value):
    assert FIELDS[name].value(typed) == value


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("age", "10"),
        ("age", "7.5"),
        ("share", "nan"),
        ("share", "inf"),
        ("sure", "maybe"),
        ("mail", "nobody"),
        ("day", "yesterday"),
        ("at", "2026-01-31T10:00:00"),
        ("page", "x"),
        ("code", "a"),
        ("size", "xl"),
        ("tint", "2"),
        ("many", "a,b,c"),
    ],
)
def test_what_does_not_fit_a_field_is_asked_for_again(name, typed):
    with pytest.raises(InvalidInput):
        FIELDS[name].value(typed)
