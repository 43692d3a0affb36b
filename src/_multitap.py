"""The first module of the `multitap` command: Ctrl-C ends it without a traceback from here on.

It is outside of the package, whose own import takes several milliseconds.
"""

__all__ = ["main"]

try:
    import os
    import signal

    # nothing is started yet, and Python would show where in the imports it was; set here, not in
    # `main`, because the installed script has some lines of its own before it calls that
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _frame: os._exit(128 + number))

    from multitap.cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None
