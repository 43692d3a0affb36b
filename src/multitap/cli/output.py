"""Everything that is written: data to standard output, words about it to standard error."""

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TextIO

import click

from multitap.wire.stderr import printable

Colour = Literal["green", "yellow", "red", "bright_black"]
Paint = Callable[[str], Colour | None]
"""Chooses the colour of a cell by its text."""

GAP = "  "
_BREAKS = re.compile(r"\s+")
_WIDE = frozenset("WF")


def say(text: str) -> None:
    """A line of data."""
    click.echo(text)


def note(text: str) -> None:
    """A line about the data."""
    click.echo(printable(text), err=True)


def complain(text: str, hint: str | None = None) -> None:
    """What went wrong, and what to do about it."""
    click.echo(f"{painted('error', 'red', sys.stderr)}: {printable(text)}", err=True)
    if hint:
        advise(hint)


def advise(hint: str) -> None:
    """What to do next."""
    click.echo(f"{painted('hint', 'green', sys.stderr)}: {printable(hint)}", err=True)


def say_json(value: Any) -> None:
    """Data for programs; what could steer a terminal is written as an escape."""
    say(json_text(value))


def json_text(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def say_text(text: str) -> None:
    """Text of a server: as it came into a file or pipe, made harmless on a terminal."""
    say(printable(text) if is_terminal(sys.stdout) else text)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    paint: Mapping[str, Paint] | None = None,
) -> None:
    """Aligned columns; on a terminal the last one is cut at its edge.

    Args:
        header: The names of the columns.
        rows: Their cells, brought to one line each.
        right: Columns that are aligned to the right.
        paint: The colours of columns.
    """
    lines = [[*header], *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(header))]
    room = _room(widths)
    for number, line in enumerate(lines):
        line[-1] = cut(line[-1], room) if room else line[-1]
        padded = [
            _padded(cell, width, right=name in right)
            for cell, width, name in zip(line, widths, header, strict=True)
        ]
        if paint and number:
            padded = [
                painted(padding, paint[name](cell) if name in paint else None, sys.stdout)
                for padding, cell, name in zip(padded, line, header, strict=True)
            ]
        say(GAP.join(padded).rstrip())


def one_line(text: str) -> str:
    """The text without line breaks and without what would steer a terminal."""
    return printable(_BREAKS.sub(" ", text)).strip()


def cut(text: str, room: int) -> str:
    """The text in at most so many cells of a terminal."""
    if cells(text) <= room:
        return text
    while text and cells(text) >= room:
        text = text[:-1]
    return f"{text}…"


def cells(text: str) -> int:
    """How wide a terminal shows the text."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def painted(text: str, colour: Colour | None, stream: TextIO) -> str:
    """The text in a colour, if the stream can show it and the user wants it."""
    if colour is None or not wants_colour(stream):
        return text
    return click.style(text, fg=colour)


def wants_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _room(widths: Sequence[int]) -> int | None:
    """Cells left for the last column; None: as many as it takes."""
    if not is_terminal(sys.stdout):
        return None
    before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    return max(shutil.get_terminal_size().columns - before, 1)


def _padded(cell: str, width: int, *, right: bool) -> str:
    padding = " " * (width - cells(cell))
    return padding + cell if right else cell + padding


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]
