"""What a screen can do outside itself: save a result, show a file or a page."""

from collections.abc import Callable, Sequence
from pathlib import Path

from multitap.records import dataclass
from multitap.results import ToolResult


@dataclass(frozen=True, slots=True)
class Desktop:
    """The person's files and viewers, as the program that opens the screen reaches them."""

    save: Callable[[ToolResult, str], Sequence[Path]]
    """Write a result to files named after a tool; returns their paths. Blocks."""
    open_picture: Callable[[ToolResult], bool]
    """Show the first picture of a result in a viewer; returns whether there is a viewer. Blocks."""
    open_page: Callable[[str], bool]
    """Show a page in the browser; False without a browser, or if the address is unsafe."""


NOTHING = Desktop(
    save=lambda _result, _name: (),
    open_picture=lambda _result: False,
    open_page=lambda _address: False,
)
"""For a screen without files, viewers and browser."""
