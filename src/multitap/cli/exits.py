"""Exit codes, for scripts."""

from enum import IntEnum

from multitap.errors import (
    BadArguments,
    CallTimeout,
    ConfigError,
    MultitapError,
    Overloaded,
    Unavailable,
    UnknownName,
)


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    CONFIG = 3
    UNAVAILABLE = 4
    INTERRUPTED = 130


def exit_for(exc: MultitapError) -> Exit:
    """The exit code for an error."""
    match exc:
        case ConfigError():
            return Exit.CONFIG
        case UnknownName() | BadArguments():
            return Exit.USAGE
        case Unavailable() | CallTimeout() | Overloaded():
            return Exit.UNAVAILABLE
        case _:  # a tool's own failure, above all
            return Exit.FAILED
