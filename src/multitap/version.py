"""This program: its version, which the build reads from here, and the command that starts it."""

import sys

VERSION = "0.1.0.dev0"


def own_program(module: str = "multitap") -> tuple[str, ...]:
    """The command that runs one of our modules; arguments may follow.

    With `-P`: `python -m` alone looks for modules in the current folder first, which may be a
    stranger's, with an `anyio.py` in it.
    """
    return (sys.executable, "-P", "-m", module)
