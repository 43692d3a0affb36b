"""Stops a command on Ctrl-C, SIGTERM, or SIGHUP from a closed terminal."""

import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TextIO

LONGEST = 5.5
"""Seconds for a clean stop, so that it takes six at most.

Then the program ends as it is, and the warden ends the servers."""
LOOK = 0.5
"""Seconds between two checks that the terminal still exists."""
_MOMENT = 0.005  # seconds until a signal that was lost is tried again

_SIGNALS = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))
)


class Terminated(SystemExit):
    """SIGTERM or SIGHUP; its code is the one that shells use for a program ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


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

    def first(number: int, _frame: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(
                one, _ignore
            )  # Python warns about a signal that arrives just when it is set to SIG_IGN
        # before `act`, which may raise
        _hurry(number)
        act(number)

    def on_lost(lost: "sys.UnraisableHookArgs") -> None:
        """Try again: where Python cannot pass an exception on, as in a callback, it drops it."""
        match lost.exc_value:
            case KeyboardInterrupt():
                number = int(signal.SIGINT)
            case Terminated(number=number):
                pass
            case _:
                hook(lost)
                return
        # with a timer, not by waiting: the interrupted frame continues only after we return
        signal.signal(signal.SIGALRM, lambda _, frame: first(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _MOMENT)

    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, first)
    hook = sys.unraisablehook
    sys.unraisablehook = on_lost
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            if signal.getsignal(number) is first:
                signal.signal(number, handler)
            elif signal.getsignal(number) is _ignore:
                # permanently: a second signal must not interrupt the interpreter's exit either
                signal.signal(number, signal.SIG_IGN)


@contextmanager
def end_with_terminal() -> Generator[None]:
    """Within the block, end the program when its terminal closes, with or without a SIGHUP.

    The signal may be ignored from the start, or meant for another process group. A thread looks,
    because the loop may be stuck in writing to what is no longer there.
    """
    # a daemon: it must not keep the interpreter, which may end while it sleeps
    over = threading.Event()
    threading.Thread(target=_watch_terminal, args=(over,), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch_terminal(over: threading.Event) -> None:
    while not over.wait(LOOK):
        if _is_gone(sys.__stdin__):
            # the usual way first; `os._exit` only if the loop is stuck
            os.kill(os.getpid(), signal.SIGTERM)
            if not over.wait(LONGEST):
                os._exit(128 + signal.SIGTERM)
            return


def _is_gone(stream: TextIO | None) -> bool:
    """Whether a terminal has hung up: it then refuses to say anything about itself."""
    if sys.platform == "win32" or stream is None:
        return False
    import termios  # noqa: PLC0415 - not everywhere

    try:
        termios.tcgetattr(stream.fileno())
    except termios.error as exc:
        return bool(exc.args[0] == errno.EIO)
    except (OSError, ValueError):  # closed by ourselves
        return False
    return False


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """We are stopping already."""


def _hurry(number: int) -> None:
    """Make sure of the end; by a signal, because a thread may not be startable right now."""
    if not hasattr(signal, "setitimer"):
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        # a closed terminal refuses output, and one that nobody reads blocks
        with suppress(OSError):
            if select.select([], [2], [], 0)[1]:
                os.write(2, b"error: not everything stopped in time; killing the rest\n")
        os._exit(128 + number)

    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
