"""Runs a command, and turns failures into messages and exit codes."""

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from multitap.cli.commands import COMMANDS, multitap
from multitap.cli.exits import Exit, exit_for
from multitap.cli.stopping import Terminated, on_signal, stop
from multitap.cli.terminal.output import complain, drop_lost_output, quote_last_lines
from multitap.errors import MultitapError, Unavailable


def start() -> None:
    """Run the command that was typed, and exit."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # replacement characters are better than a traceback
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command of these arguments; returns the exit code.

    Raises:
        Terminated: SIGTERM or SIGHUP ended it; it has the exit code too.
    """
    try:
        with on_signal(stop):
            code = multitap.main([*arguments], "multitap", standalone_mode=False) or Exit.DONE
            sys.stdout.flush()
    except click.UsageError as exc:
        complain(_words(exc), _advice(exc))
        code = Exit.USAGE
    except click.ClickException as exc:
        complain(_words(exc))
        code = Exit.FAILED
    except MultitapError as exc:
        if isinstance(exc, Unavailable) and _is_server_typed(arguments):
            _explain_typed(exc)
        else:
            complain(str(exc), exc.hint)
        code = exit_for(exc)
    except Terminated:
        # a stopped gateway exits with 0, even if it was stopped before it began
        if _command(arguments) != "serve":
            raise
        code = Exit.DONE
    except (KeyboardInterrupt, click.Abort):
        code = Exit.INTERRUPTED
    except OSError as exc:
        if exc.errno not in _FULL:
            raise
        drop_lost_output()
        complain(f"the output cannot be written: {exc.strerror}")
        code = Exit.FAILED
    return code


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Why a write fails that was right: the disk, the quota or the terminal is at an end."""


def _command(arguments: Sequence[str]) -> str:
    """The name of the typed command; empty if there is none."""
    return next((one for one in arguments if one in COMMANDS), "")


def _is_server_typed(arguments: Sequence[str]) -> bool:
    """Whether the only server was typed."""
    return any(word == "--" or word.startswith("--url") for word in arguments)


def _explain_typed(exc: Unavailable) -> None:
    """Show the server's stderr, because its log is not kept."""
    # other commands cannot find the server, because no file has it
    complain(str(exc), None if "`multitap " in (exc.hint or "") else exc.hint)
    quote_last_lines(exc.failure.stderr if exc.failure else "")


def _open_missing_streams() -> None:
    """Open the null device for a closed standard stream, as after `<&-`.

    Otherwise the next opened file takes its descriptor, and gets the stream's data.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def _words(exc: click.ClickException) -> str:
    """Click's message in our style."""
    words = (exc.message if isinstance(exc, _MISSPELT) else exc.format_message()).rstrip(".")
    return words[:1].lower() + words[1:]


def _advice(exc: click.UsageError) -> str:
    path = exc.ctx.command_path if exc.ctx else "multitap"
    if isinstance(exc, _MISSPELT) and exc.possibilities:
        return f"did you mean {exc.possibilities[0]!r}?"
    return f"run `{path} --help` for usage"


_MISSPELT = (click.NoSuchCommand, click.NoSuchOption)
