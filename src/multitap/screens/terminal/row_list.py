"""A list that draws only the visible rows, however often they change."""

from collections.abc import Sequence

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
from multitap.records import dataclass
from multitap.screens.view_model import Tone

_STYLES: dict[Tone, Style] = {
    "quiet": Style(),
    "normal": Style(),
    "warning": Style(color="yellow"),
    "error": Style(color="red", bold=True),
}
_HEAD = Style(dim=True, underline=True)
_CURSOR = Style(reverse=True)
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a list."""

    key: str
    """What it is about; a list that changes keeps the cursor there."""
    cells: tuple[str, ...]
    tone: Tone = "quiet"


class RowList(ScrollView, can_focus=True):
    """Rows under a header; one of them is the current one.

    Args:
        header: The names of the columns; the last one gets the room that is left.
        name: Which list it is.
        widest: Cells that any other column has at most.
    """

    BINDINGS = [  # noqa: RUF012 - as Textual declares them
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("enter", "choose", "Open"),
    ]
    cursor: reactive[int] = reactive(0)

    class Chosen(Message):
        """The current row was opened."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class Moved(Message):
        """Another row is the current one."""

    def __init__(self, header: Sequence[str], *, name: str, widest: int = 28) -> None:
        super().__init__(id=name)
        self._header = (*header,)
        self._widest = widest
        self._rows: tuple[Row, ...] = ()
        self._widths: tuple[int, ...] = ()

    @property
    def current(self) -> Row | None:
        return self._rows[self.cursor] if self.cursor < len(self._rows) else None

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows from now on; the cursor stays with its row."""
        kept = self.current
        self._rows = tuple(rows)
        keys = [row.key for row in self._rows]
        if kept is not None and kept.key in keys:
            self.cursor = keys.index(kept.key)
        else:
            self.cursor = min(self.cursor, max(0, len(keys) - 1))
        self._widths = self._measured()
        self.virtual_size = Size(0, len(self._rows) + 1)
        self.refresh()
        if self.current != kept:
            self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        number = y - 1 + self.scroll_offset.y if y else -1
        if number >= len(self._rows):
            return Strip.blank(self.size.width)
        if number < 0:
            return self._line(self._header, _HEAD)
        row = self._rows[number]
        style = _STYLES[row.tone]
        if number == self.cursor:
            style += _CURSOR
        return self._line(row.cells, style)

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
        self.post_message(self.Moved())

    def _measured(self) -> tuple[int, ...]:
        shown = (self._header, *(row.cells for row in self._rows[:200]))
        return tuple(
            min(self._widest, max(cell_len(printable(cells[column])) for cells in shown))
            for column in range(len(self._header) - 1)
        )

    def _line(self, cells: Sequence[str], style: Style) -> Strip:
        *fixed, last = (" ".join(printable(cell).split()) for cell in cells)
        padded = (
            set_cell_size(cell, width) for cell, width in zip(fixed, self._widths, strict=True)
        )
        text = _GAP.join((*padded, last))
        return Strip([Segment(set_cell_size(text, self.size.width), style)])
