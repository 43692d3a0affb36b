"""Aligned columns that fit the terminal's width."""

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from multitap.cli.terminal.output import Colour, colour_text, say
from multitap.errors import shortened
from multitap.printable import printable

Paint = Callable[[str], Colour | None]
"""Chooses the colour of a cell by its text."""

GAP = "  "
_BREAKS = re.compile(r"\s+")
_WIDE = frozenset("WF")
_CELL = 2000  # characters; `--json` has it all


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
        rows: The cells; line breaks are removed.
        right: Columns that are aligned to the right.
        paint: The colours of columns.
    """
    lines = [[*header], *([one_line(shortened(cell, _CELL)) for cell in row] for row in rows)]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(header))]
    room = _room(widths)
    for number, line in enumerate(lines):
        line[-1] = cut(line[-1], room) if room else line[-1]
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
    return text[: sum(width < room for width in widths)] + "…"


def cells(text: str) -> int:
    """The width of the text on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _room(widths: Sequence[int]) -> int | None:
    """Cells left for the last column; None for no limit."""
    if not sys.stdout.isatty():
        return None
    before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    return max(shutil.get_terminal_size().columns - before, 1)


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
