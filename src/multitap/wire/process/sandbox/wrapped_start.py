"""The last step of a server that bubblewrap starts: it confines itself, then runs.

Bubblewrap needs the very calls that a confined process must not make, so it comes first, and the
process that it starts confines itself.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys

from .confinement import confine

CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from process.sandbox import wrapped_start; wrapped_start.main()"
)
"""What Python runs; its arguments are a folder, a socket, a number, orders, and the command."""


def command(report: int, number: int, orders: bytes, program: str, argv: list[str]) -> list[str]:
    """The command that bubblewrap starts.

    Args:
        report: The socket on which the warden waits for the calls that are handed over.
        number: The warden's number of the server.
        orders: How to be confined, marshalled.
        program: The program to run.
        argv: Its arguments, beginning with its name.
    """
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    python = [sys.executable, "-I", "-S", "-c", CODE, here]
    return [*python, str(report), str(number), orders.hex(), program, *argv]


def main() -> None:
    _, _, report, number, orders, program, *argv = sys.argv
    warden = socket.socket(fileno=int(report))
    warden.set_inheritable(False)
    try:
        words = marshal.loads(bytes.fromhex(orders))  # noqa: S302 - the warden's
        listener = confine(words, int(number))
        socket.send_fds(warden, [b"+"], [listener])
        os.close(listener)
        os.execve(program, argv, os.environ)  # noqa: S606 - that is what it is for
    except OSError as exc:
        sys.exit(f"{program}: {os.strerror(exc.errno or 0)}")
