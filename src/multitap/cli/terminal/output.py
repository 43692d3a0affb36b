"""Writes data to standard output and messages to standard error."""

import os
import sys
from pathlib import Path
from typing import Literal, TextIO

import click

from multitap.printable import printable

Colour = Literal["green", "yellow", "red", "bright_black"]


def say(text: str) -> None:
    """A line of data."""
    click.echo(text)


def note(text: str) -> None:
    """A line about the data."""
    click.echo(printable(text), err=True)


def complain(text: str, hint: str | None = None) -> None:
    """What went wrong, and what to do about it."""
    click.echo(f"{colour_text('error', 'red', sys.stderr)}: {printable(text)}", err=True)
    if hint:
        advise(hint)


def advise(hint: str) -> None:
    """Print what to do next."""
    click.echo(f"{colour_text('hint', 'green', sys.stderr)}: {printable(hint)}", err=True)


def short_path(path: Path) -> str:
    """A path as people say it: `~` is their home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def say_text(text: str) -> None:
    """Text of a server: as it came into a file or pipe, made harmless on a terminal."""
    say(printable(text) if sys.stdout.isatty() else text)


def colour_text(text: str, colour: Colour | None, stream: TextIO) -> str:
    """The text in a colour, if the stream can show it and the user wants it."""
    if colour is None or not wants_colour(stream):
        return text
    return click.style(text, fg=colour)


def wants_colour(stream: TextIO) -> bool:
    return can_draw(stream) and not os.environ.get("NO_COLOR")


def can_draw(stream: TextIO) -> bool:
    """Whether it is a terminal that understands more than text."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
