"""Received bytes that wait for a later turn of the loop to be parsed."""

from collections import deque
from collections.abc import Callable

from multitap.pace import FULL_READ, Budget, Pace, Readable

_SLICE = 64 * 1024
"""Bytes parsed at a time: in chunks of one byte, that takes most of a millisecond."""


class UnparsedBytes:
    """Owns the unparsed bytes, and pauses reading.

    Reading is paused while its own `Pace` or the reader of the response is behind.

    Args:
        parse: Parses bytes, a bounded piece at a time.
        on_end: Called once everything is parsed and nothing more arrives, with the reason.
    """

    __slots__ = ("_ended", "_is_behind", "_on_end", "_parse", "_pieces", "_transport", "pace")

    def __init__(
        self,
        parse: Callable[[bytes | memoryview], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self.pace = Pace(self._work)
        self._parse = parse
        self._on_end = on_end
        self._transport: Readable | None = None
        self._pieces: deque[memoryview] = deque()
        self._is_behind = False  # whether the reader of the response is behind
        self._ended: tuple[Exception | None] | None = None

    def __len__(self) -> int:
        return len(self._pieces)

    def open(self, transport: Readable) -> None:
        """Read from `transport`."""
        self._transport = transport
        self.pace.reads(self)

    def take(self, data: bytes) -> None:
        """Parse received bytes, now or in a later turn."""
        if self.pace.holding:
            self._pieces.append(memoryview(data))  # TLS passes on what it has already read
        elif len(data) < FULL_READ:
            self._parse(data)
        else:
            self._pieces.append(memoryview(data))
            self._work()
            self.pace.hold()

    def end(self, exc: Exception | None) -> None:
        """Note that nothing more arrives; unparsed bytes may contain the end of the response."""
        self._transport = None
        if self._pieces:
            self._ended = (exc,)
        else:
            self._on_end(exc)

    def clear(self) -> None:
        """Drop all unparsed bytes."""
        self._pieces.clear()
        self._ended = None
        self.pace.stop()

    def fall_behind(self) -> None:
        """Pause reading: the reader of the response is behind."""
        if not self._is_behind and self._transport is not None and not self.is_closing():
            self._is_behind = True
            self._transport.pause_reading()

    def catch_up(self) -> None:
        """Resume reading: the reader of the response has caught up."""
        if self._is_behind and self._transport is not None:
            self._is_behind = False
            if not self.pace.holding:
                self._transport.resume_reading()

    def is_closing(self) -> bool:
        """For its pace: whether the transport is closing."""
        return self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """For its pace: stop reading."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """For its pace: resume reading, unless the reader of the response is behind."""
        if self._transport is not None and not self._is_behind:
            self._transport.resume_reading()

    def _work(self) -> bool:
        """Parse within the budget of this turn; returns whether bytes are left."""
        pieces, budget = self._pieces, Budget()
        while pieces:
            piece = pieces.popleft()
            if len(piece) > _SLICE:
                pieces.appendleft(piece[_SLICE:])
                piece = piece[:_SLICE]
            self._parse(piece)
            if budget.spent():
                break
        if self._ended is not None and not pieces:
            (exc,), self._ended = self._ended, None
            self._on_end(exc)
        return bool(pieces)
