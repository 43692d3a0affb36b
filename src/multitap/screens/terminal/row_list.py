"""A list that draws only the visible rows, however often they change."""

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from multitap.printable import printable
from multitap.screens.view import Tone

_STYLES: dict[Tone, Style] = {
    "quiet": Style(),
    "normal": Style(),
    "warning": Style(color="yellow"),
    "error": Style(color="red", bold=True),
}
_HEAD = Style(dim=True, underline=True)
_CURSOR = Style(reverse=True)
_GAP = "  "
# rows, more than a terminal shows
_LOOKED_AT = 100
_LAST = 30
"""Cells that the last column keeps before another column is left out."""
_WIDEST = 40
"""Cells of any other column, at most."""


class Row(msgspec.Struct, frozen=True):
    """One line of a list."""

    key: str
    """Its identity; the cursor follows it when the list changes."""
    cells: tuple[str, ...]
    tone: Tone = "quiet"


class RowList(ScrollView, can_focus=True):
    """Rows under a header, with a cursor.

    The cursor stays on the first row, whatever that is, until the person moves it. Then it stays
    with the chosen row, until the person goes back to the first row.

    Args:
        spare: The columns that a narrow list leaves out, in this order.
        drawn: The columns with pictures made of blocks, which stay as they are under the cursor.
    """

    BINDINGS = [  # noqa: RUF012 - as Textual declares them
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("enter", "choose", "Open", key_display="⏎"),
    ]
    cursor: reactive[int] = reactive(0)

    class Chosen(Message):
        """The current row was opened."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class CursorMoved(Message):
        """Another row is the current one."""

    def __init__(
        self,
        header: Sequence[str],
        *,
        name: str,
        spare: Sequence[str] = (),
        drawn: Sequence[str] = (),
    ) -> None:
        super().__init__(id=name)
        self._header = (*header,)
        self._spare = tuple(map(self._header.index, spare))
        self._drawn = frozenset(map(self._header.index, drawn))
        self._rows: tuple[Row, ...] = ()
        self._empty: tuple[str, ...] = ()
        self._widths: dict[int, int] = {}
        """The widths of the visible columns."""

    @property
    def current(self) -> Row | None:
        return self._rows[self.cursor] if self.cursor < len(self._rows) else None

    def show(self, rows: Sequence[Row], empty: str = "") -> None:
        """Show these rows from now on; a cursor that was moved stays with its row.

        `empty` is shown if there are none.
        """
        before = self.current
        self._rows = tuple(rows)
        self._empty = () if rows else ("", *empty.splitlines())
        if self.cursor and before is not None:
            same = (number for number, row in enumerate(self._rows) if row.key == before.key)
            self.cursor = next(same, min(self.cursor, max(0, len(self._rows) - 1)))
        self._widths = self._measure()
        # no width: lines are cut, and only scrolled up and down; the header takes one row
        self.virtual_size = Size(0, len(self._rows) + 1)
        self.refresh()
        if self.current != before:  # its text may have changed, too
            self.post_message(self.CursorMoved())

    def render_line(self, y: int) -> Strip:
        # the header stays in the first row, however far the list is scrolled
        number = y - 1 + self.scroll_offset.y if y else -1
        if number < 0:
            return self._line(self._header, _HEAD)
        if number < len(self._empty):
            text = set_cell_size(f" {self._empty[number]}", self.size.width)
            return Strip([Segment(text, Style.null())])
        if number >= len(self._rows):
            return Strip.blank(self.size.width, Style.null())
        row = self._rows[number]
        style = _STYLES[row.tone]
        return self._line(row.cells, style, style + _CURSOR if number == self.cursor else style)

    def action_move(self, by: int) -> None:
        if self._rows:
            self.cursor = max(0, min(len(self._rows) - 1, self.cursor + by))

    def action_choose(self) -> None:
        if self.current is not None:
            self.post_message(self.Chosen(self.current))

    def on_click(self, event: events.Click) -> None:
        number = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and number < len(self._rows):
            again = number == self.cursor
            self.cursor = number
            if again:
                self.action_choose()

    def watch_cursor(self) -> None:
        height = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)
        self.refresh()
        self.post_message(self.CursorMoved())

    def on_resize(self) -> None:
        self._widths = self._measure()

    def _measure(self) -> dict[int, int]:
        """The width of each column that fits."""
        top = max(0, min(self.scroll_offset.y, len(self._rows)))
        # only visible rows: a list that changes ten times a second may be long
        lines = (self._header, *(row.cells for row in self._rows[top : top + _LOOKED_AT]))
        widths = {
            column: min(_WIDEST, max(cell_len(printable(cells[column])) for cells in lines))
            for column in range(len(self._header) - 1)
        }
        room = min(_LAST, max(cell_len(cells[-1]) for cells in lines))
        for column in self._spare:
            if sum(widths.values()) + len(_GAP) * len(widths) + room <= self.size.width:
                break
            del widths[column]
        return widths

    def _line(self, cells: Sequence[str], style: Style, marked: Style | None = None) -> Strip:
        marked = marked or style
        segments: list[Segment] = []
        for column, width in self._widths.items():
            text = set_cell_size(_one_line(cells[column]), width)
            # reversed, a block and the space beside it would change places
            segments.append(Segment(text, style if column in self._drawn else marked))
            segments.append(Segment(_GAP, marked))
        room = max(0, self.size.width - sum(segment.cell_length for segment in segments))
        segments.append(Segment(set_cell_size(_one_line(cells[-1]), room), marked))
        return Strip(segments).crop(0, self.size.width)


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
