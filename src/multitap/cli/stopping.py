"""Stops a command on Ctrl-C, SIGTERM, or SIGHUP from a closed terminal."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

LONGEST = 5.5
"""Seconds for a clean stop. Then the program ends as it is, and the warden ends the servers."""
_MOMENT = 0.005  # seconds

_SIGNALS = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))
)


class Terminated(SystemExit):
    """SIGTERM or SIGHUP; its code is the one that shells use for a program ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def stop(number: int) -> NoReturn:
    """Leave, because of a signal."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(number)


@contextmanager
def on_signal(act: Callable[[int], None]) -> Generator[None]:
    """Within the block, the first signal to stop is handed to `act`, and no other counts.

    What was ignored from the start, as SIGHUP is under `nohup`, stays ignored.
    """

    def first(number: int, frame: FrameType | None) -> None:
        if _swallows(frame):
            signal.signal(signal.SIGALRM, lambda _, now: first(number, now))
            signal.setitimer(signal.ITIMER_REAL, _MOMENT)
            return
        for one in _SIGNALS:
            signal.signal(
                one, _ignore
            )  # Python complains of one that comes just when it is SIG_IGN
        _hurry(number)
        act(number)

    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is first:
                signal.signal(number, handler)
            elif signal.getsignal(number) is _ignore:
                # for good: the end of the interpreter, too, must not be cut short by a second one
                signal.signal(number, signal.SIG_IGN)


def _swallows(frame: FrameType | None) -> bool:
    """Whether what is interrupted would lose an exception: the callback that frees a module's lock.

    Python calls it after every import, and a command is busy with little else before it starts.
    """
    code = frame and frame.f_code
    return bool(code and code.co_name == "cb" and "importlib" in code.co_filename)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """We are stopping already."""


def _hurry(number: int) -> None:
    """Make sure of the end; by a signal, because a thread may not be startable right now."""
    if not hasattr(signal, "setitimer"):
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        os.write(2, b"error: not everything stopped in time; killing the rest\n")
        os._exit(128 + number)

    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
