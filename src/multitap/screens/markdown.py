"""Markdown of models and tools, as a terminal shows it."""

import re
from typing import TextIO

from rich.cells import get_character_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax
from rich.text import Text

from multitap.printable import printable

_BLANK = r"(?:\A|\n[ \t]*\n)"
_MARKS = re.compile(
    rf"{_BLANK}\#{{1,6}}[ ]\S[^\n]*(?=\n[ \t]*\n|\n*\Z)"  # a heading alone, no comment
    r"|^(?:```|~~~)"
    r"|^\|?[ ]*:?-{3,}:?[ ]*\|[ :|-]*$"  # the second line of a table
    r"|\*\*\S[^\n*]*\S?\*\*"
    r"|\[[^\]\n]+\]\(https?://[^)\s]+\)",
    re.MULTILINE,
)
_ANY_MARK = re.compile(r"^\s*(?:#{1,6} |```|~~~|[-*+] |\d+[.)] |> |\|)|[*`_]|\]\(", re.MULTILINE)
_FENCE = re.compile(r"[ ]{0,3}(```|~~~)")
_TAB = 8


def is_markdown(text: str) -> bool:
    """Whether a text that may be anything was written as Markdown.

    Markdown joins lines, so that logs, code and data must stay as they are.
    """
    return not text.lstrip().startswith(("{", "[{", "<")) and bool(_MARKS.search(text))


class _PlainHeading(Heading):
    """A heading at the left, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        self.text.justify = "left"
        yield Text("") if self.tag == "h1" else self.text
        if self.tag == "h1":
            self.text.stylize("bold underline")
            yield self.text


class _PlainCode(CodeBlock):
    """Code without empty lines around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class ShownMarkdown(Markdown):
    """Untrusted Markdown: addresses are shown in full, and nothing can be clicked."""

    elements = {  # noqa: RUF012 - as rich has it
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }

    def __init__(self, text: str) -> None:
        super().__init__(printable(text), hyperlinks=False, code_theme="ansi_dark")


class MarkdownStream:
    """Prints Markdown to a terminal as it arrives, and formats each block once it is complete."""

    def __init__(self, file: TextIO, console: Console) -> None:
        self._file = file
        self._console = console
        self._block = ""
        self._fence = ""

    @property
    def is_in_line(self) -> bool:
        """Whether the cursor is within a line."""
        return bool(self._block) and not self._block.endswith("\n")

    def feed(self, text: str) -> None:
        """Print the next part of the text."""
        for line in printable(text).splitlines(keepends=True):
            self._file.write(line)
            self._block += line
            if line.endswith("\n") and self._is_complete():
                self._format()
        self._file.flush()

    def end(self) -> None:
        """Format the last block."""
        if self._block.strip():
            if self.is_in_line:
                self._file.write("\n")
                self._block += "\n"
            self._format()
        self._block = self._fence = ""
        self._file.flush()

    def _is_complete(self) -> bool:
        """Whether the last line ends a block: it is blank, or closes a fence."""
        last = self._block[:-1].rpartition("\n")[2]
        fence = _FENCE.match(last)
        if fence and not self._fence:
            self._fence = fence[1]
        elif fence and last.strip() == self._fence:
            self._fence = ""
            return True
        return not self._fence and not last.strip() and bool(self._block.strip())

    def _format(self) -> None:
        block, self._block = self._block, ""
        rows = count_rows(block, self._console.width)
        # what has left the screen cannot be replaced
        if not _ANY_MARK.search(block) or rows >= self._console.height:
            return
        end = "\n" if block.endswith("\n\n") else ""
        self._file.write(f"\x1b[{rows}A\x1b[J{self._rendered(block)}{end}")

    def _rendered(self, block: str) -> str:
        with self._console.capture() as capture:
            self._console.print(ShownMarkdown(block))
        return capture.get().strip("\n") + "\n"


def count_rows(text: str, width: int) -> int:
    """How many rows of a terminal a text takes that ends with a line end."""
    rows = 0
    for line in text.split("\n")[:-1]:
        rows, column = rows + 1, 0
        for char in line:
            if char == "\t":  # to the next stop, and never into the next row
                column = min(column + _TAB - column % _TAB, max(column, width - 1))
                continue
            size = get_character_cell_size(char)
            if column + size > width:
                rows, column = rows + 1, 0
            column += size
    return rows
