"""Our end of a pipe, as a file that a loop's transport closes exactly once."""

import asyncio
import os
from typing import Self


class PipeEnd:
    """What `connect_read_pipe` and `connect_write_pipe` take in place of a file.

    asyncio's transports close the file that they were given. Those of uvloop close the descriptor
    themselves and then the file. In between, a thread that does not hold the interpreter's lock may
    have opened a file under the same number, such as the database.

    Args:
        fd: The descriptor, which the transport owns from now on.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_closed_by_loop = not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)

    @classmethod
    def copy(cls, fd: int) -> Self:
        """The same pipe under a number of its own; `fd` stays open."""
        return cls(os.dup(fd))

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if not self._is_closed_by_loop and self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
