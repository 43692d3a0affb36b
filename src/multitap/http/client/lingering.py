"""Gives answered streams a moment to end, so that their connections can be reused."""

import asyncio

from multitap.http.client.response import Response

_LINGER = 0.1  # seconds at least, twice that at most, since one timer serves all


class Lingering:
    """Closes streams that do not end in time; connections of those that do can be reused."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until: dict[Response, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until)

    def add(self, response: Response) -> None:
        """Close a response soon, unless it ends before."""
        if response.ended:
            return
        self._until[response] = self._loop.time() + _LINGER
        self._listen(response)
        if self._timer is None:
            self._timer = self._loop.call_later(_LINGER, self._look)

    def close(self) -> None:
        """Close them all."""
        if self._timer is not None:
            self._timer.cancel()
        # a copy: one that is closed removes itself
        for response in tuple(self._until):
            response.close()

    def _listen(self, response: Response) -> None:
        def heard() -> None:
            if response.ended:
                self._until.pop(response, None)
            else:
                response.heed(heard)

        response.heed(heard)

    # One timer for all: setting and cancelling one for each costs more.
    def _look(self) -> None:
        now = self._loop.time()
        for response, until in tuple(self._until.items()):
            if until <= now:
                response.close()
        self._timer = self._loop.call_later(_LINGER, self._look) if self._until else None
