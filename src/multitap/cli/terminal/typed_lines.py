"""Reads the lines that a user types in answer to a question."""

import os
import select
import sys
from collections.abc import Callable

import click

from multitap.printable import printable

LOOK = 0.1
"""Seconds between two checks that the answer is still needed."""
LONGEST = 64 * 1024
_CHUNK = 4096


class TypedLines:
    """Standard input, line by line.

    Reads the descriptor directly: input in Python's buffer would not be noticed.
    """

    def __init__(self) -> None:
        self._typed = bytearray()

    def ask(self, words: str, is_over: Callable[[], object] = lambda: None) -> str:
        """Show a question and wait for a line.

        Args:
            words: The question.
            is_over: Called periodically; raises if the answer is no longer needed.

        Raises:
            EOFError: Ctrl-D, or the end of the input.
        """
        click.echo(printable(words), nl=False, err=True)
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
