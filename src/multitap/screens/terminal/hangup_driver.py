"""Textual's driver for terminals, made to survive one that is gone."""

from textual.drivers.linux_driver import LinuxDriver


class HangupDriver(LinuxDriver):
    """Writes to the terminal as long as there is one.

    Textual's own writes in a thread, which dies of the first error, and hands texts over by a
    queue of 30. Once that is full, the next write waits forever, and the whole program with it.
    """

    def write(self, data: str) -> None:
        if self._can_write():
            super().write(data)

    def close(self) -> None:
        if self._can_write():
            super().close()

    def _can_write(self) -> bool:
        # it was not started yet, or it still runs; `None` is the driver's own mistake to report
        return self._writer_thread is None or self._writer_thread.is_alive()
