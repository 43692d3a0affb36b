"""`multitap logs`: what a server wrote to its standard error."""

import codecs
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import click

from multitap.cli.asked import Asked
from multitap.cli.configured import configured, require, state_directory
from multitap.cli.exits import Exit
from multitap.cli.output import note
from multitap.wire.stderr import log_path, printable, rotated

INTERVAL = 0.2
"""Seconds between two looks at a file that is followed."""


def logs(asked: Asked, server: str, *, follow: bool, lines: int | None) -> int:
    """Print the log, what was written before its rotation first."""
    loaded = configured(asked)
    path = log_path(state_directory(loaded) / "logs", server)
    if not _content(path) and not _content(rotated(path)):
        if not path.exists():
            require(loaded, server)
        note(f"{server} has not written anything")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for data in written(path, follow=follow, lines=lines):
        _print(decoder.decode(data))
    return Exit.DONE


def written(path: Path, *, follow: bool, lines: int | None) -> Iterator[bytes]:
    """What is in a log and, where it is followed, what comes; through rotation.

    Args:
        path: The log file, there or not.
        follow: Never end.
        lines: Begin with the last so many lines.
    """
    with ExitStack() as files:
        file = _opened(path, files)
        yield _last((_content(rotated(path)) if lines != 0 else b"") + _rest(file), lines)
        while follow:
            yield _rest(file)
            if _replaced(file, path):
                yield _rest(file)
                file = _opened(path, files)
            else:
                time.sleep(INTERVAL)


def _opened(path: Path, files: ExitStack) -> BinaryIO | None:
    files.pop_all().close()
    try:
        return files.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None


def _rest(file: BinaryIO | None) -> bytes:
    return file.read() if file else b""


def _replaced(file: BinaryIO | None, path: Path) -> bool:
    """Whether the path leads to another file by now."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return file is None or now.st_ino != os.fstat(file.fileno()).st_ino


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _last(data: bytes, lines: int | None) -> bytes:
    if lines is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""


def _print(text: str) -> None:
    if text:
        click.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
