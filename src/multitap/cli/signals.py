"""Runs a command until it ends, or until Ctrl-C, SIGTERM or a closed terminal stops it."""

import atexit
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeVar

if TYPE_CHECKING:
    import asyncio

    import anyio

_Result = TypeVar("_Result")

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
def on_signal(act: Callable[[int], None], *, grace: float = 0.0) -> Generator[None]:
    """While entered, the first signal to stop is handed to `act`, and no other counts.

    The program then has `LONGEST` and `grace` seconds to end by itself.

    What was ignored from the start, as SIGHUP is under `nohup`, stays ignored.
    """

    def first(number: int, _frame: FrameType | None) -> None:
        for other in _SIGNALS:
            # Python warns about a signal that arrives just when it is set to SIG_IGN
            signal.signal(other, _ignore)
        # before `act`, which may raise
        _hurry(number, LONGEST + grace)
        act(number)

    def on_lost(unraisable: "sys.UnraisableHookArgs") -> None:
        """Try again: where Python cannot pass an exception on, as in a callback, it drops it."""
        match unraisable.exc_value:
            case KeyboardInterrupt():
                number = int(signal.SIGINT)
            case Terminated(number=number):
                pass
            case _:
                hook(unraisable)
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
        with _unwrapped():
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
def _unwrapped() -> Generator[None]:
    """Raise as itself what Python 3.11 wraps if it interrupts the making of a class."""
    try:
        yield
    except RuntimeError as exc:
        if isinstance(exc.__cause__, KeyboardInterrupt | Terminated):
            raise exc.__cause__ from None
        raise


@contextmanager
def on_interrupt(act: Callable[[], object]) -> Generator[None]:
    """While entered in a loop, Ctrl-C calls `act` there instead of stopping the command."""
    import asyncio  # noqa: PLC0415 - many commands need no event loop

    loop = asyncio.get_running_loop()
    # the handler interrupts the loop at any point, so `act` runs later
    before = signal.signal(signal.SIGINT, lambda _, __: loop.call_soon_threadsafe(act))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def end_with_terminal() -> Generator[None]:
    """While entered, end the program when its terminal closes, with or without a SIGHUP.

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


def _hurry(number: int, longest: float) -> None:
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
    signal.setitimer(signal.ITIMER_REAL, longest)
    # after that the interpreter drops its handlers, and the signal would end us with its own code
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


class _Stopped:
    """The end of work that a signal stopped."""

    def __init__(self, number: int) -> None:
        self.number = number


def run_async(
    work: Callable[[], Awaitable[_Result]], *, fast: bool = False, grace: float = 0.0
) -> _Result:
    """Run `work` and return its result, on a faster loop if available and useful.

    Args:
        grace: Seconds that it may take to stop, besides the usual ones.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and everything is cleaned up.
        Terminated: The same after SIGTERM or SIGHUP.
    """
    import anyio  # noqa: PLC0415 - many commands need no event loop

    options = {"use_uvloop": fast and sys.platform != "win32"}
    outcome = anyio.run(_until_stopped, work, grace, backend_options=options)
    if isinstance(outcome, _Stopped):
        stop(outcome.number)
    return outcome


async def _until_stopped(
    work: Callable[[], Awaitable[_Result]], grace: float
) -> _Result | _Stopped:
    import asyncio  # noqa: PLC0415 - see above

    import anyio  # noqa: PLC0415 - see above

    from multitap.errors import ungrouped  # noqa: PLC0415 - see above

    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def on_stop(number: int) -> None:
        # this interrupts the loop at any point, so it only sets a flag
        loop.call_soon_threadsafe(stopped.set_result, number)

    with on_signal(on_stop, grace=grace), ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel, tasks.cancel_scope, stopped)
            try:
                result = await work()
            except Exception:
                # Ctrl-C also ends what was just being started: that is not what went wrong
                await asyncio.sleep(0)
                if not stopped.done():
                    raise
            else:
                # a signal counts even if the work has ended before the loop saw it: a client that
                # stops a gateway often closes its pipes right afterwards
                await asyncio.sleep(0)
                tasks.cancel_scope.cancel()
                if not stopped.done():
                    return result
    # only reached after a signal, so this does not wait
    return _Stopped(await stopped)


async def _cancel(scope: "anyio.CancelScope", stopped: "asyncio.Future[int]") -> None:
    import asyncio  # noqa: PLC0415 - see above

    # this is cancelled when the work is done first, but the future must not be: a late signal
    # still sets it
    await asyncio.shield(stopped)
    scope.cancel()
