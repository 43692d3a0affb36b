"""Keeps the signals of a confined server inside, on kernels whose Landlock does not."""

from __future__ import annotations

import errno
import os
import signal

from .used_paths import to_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .calling_process import CallingProcess

_EVERYBODY = -1


class SupervisedSignals:
    """The signals of one server.

    Args:
        owns: Whether a process, or with a negative number all of a group, are of the server.
    """

    def __init__(self, owns: Callable[[int], bool]) -> None:
        self._owns = owns

    def allows(self, caller: CallingProcess, name: str, target: int) -> bool:
        """Whether a signal goes to the server's own processes.

        The kernel reads no memory to find out to whom, so the call can go on.
        """
        if name == "kill" and target == 0:
            return True  # its own group, which is in its own session
        # a thread of its own, as runtimes signal all the time
        if target > 0 and os.path.exists(f"/proc/{target}/task/{caller.pid}"):
            return True
        return target != _EVERYBODY and self._owns(target)

    def send(self, caller: CallingProcess, arguments: list[int]) -> int:
        """Send a signal by descriptor: its caller could exchange what that is about.

        Raises:
            OSError: It is refused, or fails.
        """
        ours = caller.descriptor(to_signed(arguments[0]))
        try:
            if not self.allows(caller, "pidfd_send_signal", _process_behind(ours)):
                return -errno.EPERM
            signal.pidfd_send_signal(ours, to_signed(arguments[1]))
        finally:
            os.close(ours)
        return 0


def _process_behind(fd: int) -> int:
    """The process that a descriptor of ours is about.

    Raises:
        OSError: It is about none, or that process is gone.
    """
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "Pid" and int(value) > 0:
                return int(value)
    raise ProcessLookupError(errno.ESRCH, "no process")
