"""What a command writes, what a person types in answer, and the exit code."""

import logging
import os
import re
import select
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from multitap.errors import (
    BadArguments,
    CallTimeout,
    ConfigError,
    MultitapError,
    Overloaded,
    Unavailable,
    UnknownName,
    shortened,
)
from multitap.printable import printable

Colour = Literal["green", "yellow", "red", "bright_black"]
NOTES = "multitap.notes"
"""The logger of what a command tells its user; it has a handler only where that is logged, too."""
_QUOTED = 8  # lines


def say(text: str) -> None:
    """A line of data."""
    click.echo(text)


def note(text: str) -> None:
    """A line about the data."""
    _tell(printable(text))


def complain(text: str, hint: str | None = None) -> None:
    """Print an error and its hint."""
    _tell(printable(text), "error", "red")
    if hint:
        advise(hint)


def advise(hint: str) -> None:
    """Print what to do next."""
    _tell(printable(hint), "hint", "green")


def _tell(text: str, label: str = "", colour: Colour | None = None) -> None:
    """Write to standard error; a message that cannot be written does not end the command."""
    log = logging.getLogger(NOTES)
    if log.handlers:
        log.log(logging.ERROR if label == "error" else logging.INFO, "%s", text)
        return
    message = f"{colour_text(label, colour, sys.stderr)}: {text}" if label else text
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
    # the escapes of JSON are units of UTF-16: a character beyond 65,535 takes two of them
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


def null_streams() -> tuple[str, ...]:
    """The standard streams that are /dev/null, so that no client can use them."""
    null = Path(os.devnull).stat().st_rdev
    status = {"input": os.fstat(0), "output": os.fstat(1)}
    return tuple(
        name
        for name, file_status in status.items()
        if stat.S_ISCHR(file_status.st_mode) and file_status.st_rdev == null
    )


def can_draw(stream: TextIO) -> bool:
    """Whether it is a terminal that supports control sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


Paint = Callable[[str], Colour | None]
"""Chooses the colour of a cell by its text."""

GAP = "  "
_BREAKS = re.compile(r"\s+")
_WIDE = frozenset("WF")  # "Wide" and "Fullwidth" in Unicode's East Asian Width
_CELL = 2000  # characters; `--json` has it all


_NARROWEST = 8
"""Cells to which a column is cut at most."""


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    paint: Mapping[str, Paint] | None = None,
) -> None:
    """Aligned columns; on a terminal, all but the first are cut if they do not fit."""
    lines = [[*header], *([one_line(shortened(cell, _CELL)) for cell in row] for row in rows)]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(header))]
    # a file or a pipe gets whole cells, because nothing wraps there
    if sys.stdout.isatty():
        widths = fitting(widths, shutil.get_terminal_size().columns)
        lines = [
            [cut(cell, width) for cell, width in zip(line, widths, strict=True)] for line in lines
        ]
    for number, line in enumerate(lines):
        padded = [
            _pad(cell, width, right=name in right)
            for cell, width, name in zip(line, widths, header, strict=True)
        ]
        if paint and number:
            padded = [
                colour_text(padding, paint[name](cell) if name in paint else None, sys.stdout)
                for padding, cell, name in zip(padded, line, header, strict=True)
            ]
        say(GAP.join(padded).rstrip())


def one_line(text: str) -> str:
    """The text without line breaks and terminal control characters."""
    return printable(_BREAKS.sub(" ", text)).strip()


def cut(text: str, room: int) -> str:
    """The text in at most `room` cells of a terminal."""
    if cells(text) <= room:
        return text
    widths = accumulate(_cells(char) for char in text)
    # less than `room`, because the ellipsis takes a cell
    return text[: sum(width < room for width in widths)] + "…"


def cells(text: str) -> int:
    """The width of the text on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def fitting(widths: Sequence[int], room: int) -> list[int]:
    """Widths of columns that fit in `room` cells; the widest gives way, the last one of two.

    The first one never does: it has the names that people type.
    """
    narrowed = [*widths]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - room
    for _ in range(excess):
        others = range(min(1, len(widths) - 1), len(widths))
        width, column = max((narrowed[column], column) for column in others)
        if width <= _NARROWEST:
            break
        narrowed[column] -= 1
    return narrowed


def _pad(cell: str, width: int, *, right: bool) -> str:
    padding = " " * (width - cells(cell))
    return padding + cell if right else cell + padding


def _cells(char: str) -> int:
    if char.isascii():
        return 1
    import unicodedata  # noqa: PLC0415 - half a megabyte that most tables do not need

    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


LOOK = 0.1
"""Seconds between two checks that the answer is still needed."""
# bytes of one line: whatever is piped in must not fill our memory
LONGEST = 64 * 1024
_CHUNK = 4096


class TypedLines:
    """Standard input, line by line.

    Reads the descriptor directly: input in Python's buffer would not be noticed.
    """

    def __init__(self) -> None:
        self._typed = bytearray()

    def ask(self, question: str, is_over: Callable[[], object] = lambda: None) -> str:
        """Show a question and wait for a line.

        `is_over` is called periodically, and raises if the answer is no longer needed.

        Raises:
            EOFError: Ctrl-D, or the end of the input.
        """
        click.echo(printable(question), nl=False, err=True)
        fd = sys.stdin.fileno()
        while (end := self._typed.find(b"\n")) < 0:
            is_over()
            if not select.select([fd], [], [], LOOK)[0]:
                continue
            try:
                received = os.read(fd, _CHUNK)
            except OSError:  # the terminal has closed
                raise EOFError from None
            if not received or len(self._typed) > LONGEST:
                click.echo(err=True)
                raise EOFError
            self._typed += received
        line = self._typed[:end].decode(errors="replace").rstrip("\r")
        del self._typed[: end + 1]
        return line


def is_somebody_there() -> bool:
    """Whether questions can be shown, and answers typed."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except ValueError:  # closed
        return False


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    CONFIG = 3
    UNAVAILABLE = 4
    INTERRUPTED = 130


def exit_for(exc: MultitapError) -> Exit:
    """The exit code for an error."""
    match exc:
        case ConfigError():
            return Exit.CONFIG
        case UnknownName() | BadArguments():
            return Exit.USAGE
        case Unavailable() | CallTimeout() | Overloaded():
            return Exit.UNAVAILABLE
        case _:  # mostly failures of tools
            return Exit.FAILED
