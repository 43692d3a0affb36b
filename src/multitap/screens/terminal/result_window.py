"""The window of a result: its text, and its pictures drawn with characters."""

from anyio import to_thread
from rich.color import Color
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from multitap.errors import MultitapError
from multitap.printable import printable
from multitap.results import ImageBlock, ToolResult
from multitap.screens.desktop import Desktop
from multitap.screens.png_pixels import Colour, thumbnail
from multitap.screens.terminal.windows import WINDOW_STYLE

LONGEST = 100_000
"""Characters of a result that are shown; more would slow down the screen."""
MOST_PICTURES = 4
_WIDTH, _HEIGHT = 60, 32
_SHADES = " ░▒▓█"


class ResultWindow(ModalScreen[None]):
    """A result to read, save, or open in another program.

    Args:
        name: The name of the tool.
        result: The result.
        desktop: Saves it, and opens viewers.
        coloured: Whether pictures are drawn in colours, or in shades.
    """

    CSS = WINDOW_STYLE.format(name="ResultWindow")
    BINDINGS = [  # noqa: RUF012 - as Textual declares them
        Binding("escape,q,enter", "dismiss", "Close"),
        Binding("s", "save", "Save"),
        Binding("o", "open", "Open the picture"),
    ]

    def __init__(
        self, name: str, result: ToolResult, desktop: Desktop, *, coloured: bool = True
    ) -> None:
        super().__init__()
        self._tool = name
        self.result = result
        self._desktop = desktop
        self._coloured = coloured
        self._images = [one for one in result.blocks if isinstance(one, ImageBlock)]

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = f"{self._tool}: {'failed' if self.result.is_error else 'ok'}"
            viewer = "o: open the picture, " if self._images else ""
            window.border_subtitle = f"s: save, {viewer}Esc: close"
            with VerticalScroll(can_focus=True):
                yield Static(self.words, markup=False, id="words")
                for number in range(min(MOST_PICTURES, len(self._images))):
                    yield Static("", id=f"picture-{number}")

    @property
    def words(self) -> str:
        """The text that is shown."""
        text = printable(self.result.text)
        if len(text) > LONGEST:
            return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} characters more; s saves all"
        return text or "(the answer is empty)"

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._draw(), exit_on_error=False)

    async def _draw(self) -> None:
        for number, image in enumerate(self._images[:MOST_PICTURES]):
            data = image.data
            # a thread, because a large picture takes a second
            rows = await to_thread.run_sync(thumbnail, data, _WIDTH, _HEIGHT)
            if rows:
                drawn = _colour(rows) if self._coloured else _shade(rows)
                self.query_one(f"#picture-{number}", Static).update(drawn)

    async def action_save(self) -> None:
        try:
            paths = await to_thread.run_sync(self._desktop.save, self.result, self._tool)
        except MultitapError as exc:
            self.notify(printable(str(exc)), severity="error", markup=False)
        else:
            self.notify(printable("\n".join(f"saved {path}" for path in paths)), markup=False)

    async def action_open(self) -> None:
        if not await to_thread.run_sync(self._desktop.open_picture, self.result):
            self.notify("there is no picture viewer here; s saves it", severity="warning")


def _colour(rows: list[list[Colour]]) -> Text:
    """Two rows of the picture in one line of text: the upper and the lower half of a cell."""
    text = Text(no_wrap=True)
    for upper, lower in zip(rows[::2], [*rows[1::2], [(0, 0, 0)] * len(rows[0])], strict=False):
        for top, bottom in zip(upper, lower, strict=True):
            text.append("▀", Style(color=Color.from_rgb(*top), bgcolor=Color.from_rgb(*bottom)))
        text.append("\n")
    return text


def _shade(rows: list[list[Colour]]) -> Text:
    lines = (
        "".join(_SHADES[sum(colour) * len(_SHADES) // 766] for colour in row) for row in rows[::2]
    )
    return Text("\n".join(lines), no_wrap=True)
