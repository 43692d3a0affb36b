"""The stream of changes for all open pages: read once, serialized once, shared by all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from multitap.control.service import ControlService
from multitap.errors import MultitapError
from multitap.screens.view import (
    RecentCalls,
    ServerRow,
    client_rows,
    server_rows,
    token_costs,
    trust_command,
)
from multitap.tasks import Tasks

logger = logging.getLogger(__name__)

TICK = 0.25
"""Seconds between two readings of the counters."""
LOOK = 1.0
"""Seconds between two readings of everything else."""
SHARE = 25
"""The pause after a reading, as a multiple of its duration: at most 4 % of the time."""
MOST_CALLS = 30
"""Calls in one frame, more than anyone can read; the counters are always exact."""
FIRST_CALLS = 200
"""Calls in the first frame."""
MOST_STREAMS = 64
"""Open pages at a time; each has a connection, and further ones are refused."""
PING = 15.0
"""Seconds between keep-alives of a silent stream, which proxies would close."""

Write = Callable[[bytes], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


class PageFeed:
    """Reads one gateway while a page is open."""

    def __init__(self, control: ControlService, tasks: Tasks) -> None:
        self._control = control
        self._tasks = tasks
        self.recent = RecentCalls()
        self._costs: tuple[int, Mapping[str, int]] = (-1, {})
        self._streams = 0
        self._is_looking = False
        self._is_closed = False
        self._number = 0
        self._frame = b""
        self._first: tuple[int, bytes] = (-1, b"")
        self._parts: dict[str, bytes] = {}
        """The latest values, as JSON."""
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self._streams >= MOST_STREAMS

    @property
    def is_watched(self) -> bool:
        return self._streams > 0

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._changed.set()

    async def pour(self, write: Write) -> None:
        """Send everything, then changes, as server-sent events.

        Each frame has the newest values. A browser that reads slowly gets fewer of them, and
        nothing waits for it.

        Args:
            write: Sends to the browser, no faster than it reads.
        """
        self._streams += 1
        try:
            if not self._is_looking:
                # before the first await: a second page must not start another reader
                self._is_looking = True
                try:
                    await self._look(self.recent.made)
                except BaseException:
                    self._is_looking = False
                    raise
                self._tasks.start_soon(self._keep_looking, name="page feed")
            seen = self._number
            await write(self._whole())
            while not self._is_closed:
                # read before the number is compared: `_publish` replaces it, and sets the old one
                changed = self._changed
                if seen == self._number:
                    try:
                        async with asyncio.timeout(PING):
                            await changed.wait()
                    except TimeoutError:
                        await write(b": ping\n\n")
                        continue
                # a page that missed a frame gets everything
                missed, seen = self._number - seen, self._number
                if missed:
                    await write(self._frame if missed == 1 else self._whole())
        finally:
            self._streams -= 1

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        looked = loop.time()
        pause = TICK
        try:
            while self._streams and not self._is_closed:
                await asyncio.sleep(pause)
                started = loop.time()
                changed = await self._take_pulse()
                if started - looked >= LOOK:
                    changed |= await self._look(self.recent.made)
                    looked = started
                if changed:
                    self._publish(changed)
                # a large gateway takes longer to read, and must not be slowed down by its pages
                pause = max(TICK, (loop.time() - started) * SHARE)
        finally:
            # the last page was closed; the next one starts the reader again
            self._is_looking = False

    def _publish(self, changed: Mapping[str, bytes]) -> None:
        self._number += 1
        self._frame = _event(changed)
        # replaced before it is set: a waiter that wakes up then waits for the next frame
        waited_for, self._changed = self._changed, asyncio.Event()
        waited_for.set()

    async def _take_pulse(self) -> dict[str, bytes]:
        seen = self.recent.made
        pulse = await self._control.pulse(seen, MOST_CALLS)
        if not self.recent.take(pulse):
            return {}
        counters = {"made": pulse.made, "inFlight": pulse.in_flight, "revision": pulse.revision}
        self._parts["counters"] = _encode(counters)
        return {
            "counters": self._parts["counters"],
            "calls": _encode(pulse.records),
        }

    async def _look(self, seen: int) -> dict[str, bytes]:
        """Read values that change rarely; returns those that are new."""
        try:
            values = await self._find(seen)
        except MultitapError as exc:
            values = {"trouble": [str(exc)]}
        encoded = {name: _sound(value) for name, value in values.items()}
        # compared as bytes: most readings find no change, and send nothing
        new = {name: data for name, data in encoded.items() if self._parts.get(name) != data}
        self._parts |= new
        return new

    async def _find(self, seen: int) -> dict[str, Any]:
        control = self._control
        if "counters" not in self._parts:
            self.recent.take(await control.pulse(seen, FIRST_CALLS))
            counters = {"made": self.recent.made, "inFlight": self.recent.in_flight}
            self._parts["counters"] = _encode(counters)
        overview = await control.overview()
        state, figures = overview.state, overview.figures
        revision = state.snapshot.revision
        # counting tokens takes long for thousands of tools, and only a new catalog changes them
        if revision != self._costs[0]:
            tools = await control.tools()
            self._costs = (revision, token_costs(tools))
        rows = server_rows(state, figures, self._costs[1])
        return {
            "about": overview.about,
            "servers": [self._row(row) for row in rows],
            "figures": figures,
            "clients": client_rows(figures, self.recent),
            "questions": overview.questions,
            "trouble": state.degraded,
            "untrusted": [
                {"project": project, "fix": trust_command(project)}
                for project in dict.fromkeys(part.project for part in state.snapshot.withheld)
            ],
            "revision": revision,
        }

    def _row(self, row: ServerRow) -> dict[str, Any]:
        return {**msgspec.to_builtins(row), "speed": self.recent.speed(row.name)}

    def _whole(self) -> bytes:
        """Everything that a new page needs, serialized once for concurrent pages."""
        if self._first[0] != self._number:
            latest = [*islice(reversed(self.recent.records), FIRST_CALLS)][::-1]
            whole = _event({**self._parts, "all": _encode(latest)})
            self._first = (self._number, whole)
        return self._first[1]


def _sound(value: Any) -> bytes:
    try:
        return _encode(value)
    except (UnicodeEncodeError, TypeError, ValueError) as exc:
        # a lone surrogate from a server: show the rest of the page
        logger.warning("a part of the page cannot be shown: %s", exc)
        return b"null"


def _event(parts: Mapping[str, bytes]) -> bytes:
    data = _encode({name: Raw(part) for name, part in parts.items()})
    return b"event: frame\ndata: %b\n\n" % data
