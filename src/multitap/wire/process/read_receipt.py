"""Finds out whether a program has read any of its input."""

import fcntl
import os
import struct
import termios

_COUNT = struct.Struct("i")


class ReadReceipt:
    """Counts the bytes written to a pipe, and asks the kernel how many are unread.

    Holds the pipe open: its reader sees no end of file before `close`.

    Args:
        fd: Our end of the pipe; must not block.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = os.dup(fd)
        self._written = 0
        self._answer = True
        self.is_open = True
        """Whether it still counts."""

    def write_first(self, data: bytes) -> bytes:
        """Write as much as fits, if nothing was written before; returns the rest.

        A transport does not say whether a write reached the pipe or came too late. The system call
        does.
        """
        if self._fd is None:
            return data
        accepted = 0
        if not self._written:
            try:
                accepted = os.write(self._fd, data)
            except OSError:  # the reader is gone; writing the rest will show that
                return data
        self._written += len(data)
        return data[accepted:]

    def is_read(self) -> bool:
        """Whether any byte was read; True if the kernel cannot tell."""
        if self._fd is None:
            return self._answer
        try:
            left = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(_COUNT.size))
        except OSError:
            return True
        return bool(_COUNT.unpack(left)[0] < self._written)

    def close(self) -> None:
        """Close the pipe; `is_read` keeps its value."""
        if self._fd is not None:
            self._answer = self.is_read()
            os.close(self._fd)
            self._fd = None
            self.is_open = False
