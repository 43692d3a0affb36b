"""The program: runs a command, and turns whatever goes wrong into words and an exit code."""

import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType

import click

from multitap.cli.commands import multitap
from multitap.cli.exits import Exit, exit_for
from multitap.cli.output import complain
from multitap.errors import MultitapError


def main() -> None:
    """What `multitap` does when it is typed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # rather odd than a traceback
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; how the program ends."""
    try:
        with _terminable():
            return multitap.main([*arguments], "multitap", standalone_mode=False) or Exit.DONE
    except click.UsageError as exc:
        complain(_words(exc), _advice(exc))
        return Exit.USAGE
    except click.ClickException as exc:
        complain(_words(exc))
        return Exit.FAILED
    except MultitapError as exc:
        complain(str(exc), exc.hint)
        return exit_for(exc)
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED


@contextmanager
def _terminable() -> Generator[None]:
    """Let SIGTERM end us the way Ctrl-C does, so that nothing is left behind."""
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _words(exc: click.ClickException) -> str:
    """Click's sentence the way we write ours."""
    words = (exc.message if isinstance(exc, _MISSPELT) else exc.format_message()).rstrip(".")
    return words[:1].lower() + words[1:]


def _advice(exc: click.UsageError) -> str:
    path = exc.ctx.command_path if exc.ctx else "multitap"
    if isinstance(exc, _MISSPELT) and exc.possibilities:
        return f"did you mean {exc.possibilities[0]!r}?"
    return f"`{path} --help` says what there is"


_MISSPELT = (click.NoSuchCommand, click.NoSuchOption)
