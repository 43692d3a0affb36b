"""Textual's driver for terminals, made to survive a lost terminal."""

from textual.drivers.linux_driver import LinuxDriver


class HangupDriver(LinuxDriver):
    """Writes to the terminal while it exists.

    Textual's own driver writes in a thread, which ends at the first error, and passes texts through
    a queue of 30. When that is full, the next write blocks the whole program forever.
    """

    def write(self, data: str) -> None:
        if self._can_write():
            super().write(data)

    def close(self) -> None:
        if self._can_write():
            super().close()

    def _can_write(self) -> bool:
        # not started yet, or still running; the driver itself reports a missing thread
        return self._writer_thread is None or self._writer_thread.is_alive()
