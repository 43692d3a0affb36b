"""Writes data to standard output and messages to standard error."""

import os
import sys
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from multitap.printable import printable

Colour = Literal["green", "yellow", "red", "bright_black"]
_QUOTED = 8


def say(text: str) -> None:
    """A line of data."""
    click.echo(text)


def note(text: str) -> None:
    """A line about the data."""
    _tell(printable(text))


def complain(text: str, hint: str | None = None) -> None:
    """Print an error and its hint."""
    _tell(f"{colour_text('error', 'red', sys.stderr)}: {printable(text)}")
    if hint:
        advise(hint)


def advise(hint: str) -> None:
    """Print what to do next."""
    _tell(f"{colour_text('hint', 'green', sys.stderr)}: {printable(hint)}")


def _tell(message: str) -> None:
    """Write to standard error; a message that cannot be written does not end the command."""
    try:
        click.echo(message, err=True)
    except OSError:
        _drop(sys.stderr)


def drop_lost_output() -> None:
    """Forget what standard output could not write."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    """Write what a stream holds to nowhere: at exit, Python would try again and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
    stream.flush()


def quote_last_lines(stderr: str) -> None:
    """What a failed server wrote last, without npm's advertising: there is no other log of it."""
    lines = [line for line in stderr.strip().splitlines() if not line.startswith("npm notice")]
    for line in lines[-_QUOTED:]:
        note(f"  | {line}")


def short_path(path: Path) -> str:
    """A path with `~` for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def say_json(value: Any) -> None:
    """Data for programs; what could steer a terminal is written as an escape."""
    say(json_text(value))


def json_text(value: Any) -> str:
    import json  # noqa: PLC0415 - not for `--help`

    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def _escape(char: str) -> str:
    pair = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pair[start : start + 4]}" for start in range(0, len(pair), 4))


def say_text(text: str) -> None:
    """Print a server's text: unchanged to a file or pipe, made harmless on a terminal."""
    say(printable(text) if sys.stdout.isatty() else text)


def colour_text(text: str, colour: Colour | None, stream: TextIO) -> str:
    """The text in a colour, if the stream can show it and the user wants it."""
    if colour is None or not wants_colour(stream):
        return text
    return click.style(text, fg=colour)


def wants_colour(stream: TextIO) -> bool:
    return can_draw(stream) and not os.environ.get("NO_COLOR")


def can_draw(stream: TextIO) -> bool:
    """Whether it is a terminal that supports control sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
