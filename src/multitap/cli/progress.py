"""Progress on the terminal while a person waits; it is erased afterwards."""

import shutil
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
import click

from multitap.cli.terminal import can_draw, cut, one_line
from multitap.errors import counted, ungrouped
from multitap.events import LinkState, ServerSnapshot

if TYPE_CHECKING:
    from multitap.hub.hub import Hub
    from multitap.wire.wire import OnProgress

PATIENCE = 0.3
"""Seconds before anything is shown: most servers are faster."""
INTERVAL = 0.1  # seconds between two drawings


@asynccontextmanager
async def progress(hub: "Hub") -> AsyncGenerator[None]:
    """One line per server while they start and the block runs."""
    if not can_draw(sys.stderr):
        yield
        return
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_draw, hub)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()


def lines(servers: Sequence[ServerSnapshot], *, now: float, rows: int, columns: int) -> list[str]:
    """The lines to show, servers that are still starting first if not all fit."""
    starting = [server for server in servers if server.state is not LinkState.DISABLED]
    starting.sort(key=lambda server: server.state is not LinkState.CONNECTING)
    width = max((len(one_line(server.name)) for server in starting), default=0)
    all_lines = [
        cut(f"{one_line(server.name):<{width}}  {_words(server, now)}", columns)
        for server in starting
    ]
    if len(all_lines) <= rows:
        return all_lines
    return [*all_lines[: rows - 1], f"and {len(all_lines) - rows + 1} more"]


def _words(server: ServerSnapshot, now: float) -> str:
    match server.state:
        case LinkState.CONNECTED:
            return f"ready, {counted(server.tools, 'tool')}"
        case LinkState.CONNECTING:
            return f"starting, {now - server.since:.0f} s"
        case _ if server.failure is not None:
            return one_line(str(server.failure))
        case _:
            return "waiting"


@contextmanager
def ticker() -> Generator["OnProgress"]:
    """Show a call's progress in one line while the block runs."""
    visible = can_draw(sys.stderr)

    def tick(done: float, total: float | None, message: str | None) -> None:
        if visible:
            share = f"{done:g}/{total:g}" if total else f"{done:g}"
            text = one_line(f"{share} {message or ''}")
            # one column less: a full row wraps, and `\r` only goes back to the second of the two
            _write(f"\r\x1b[K{cut(text, shutil.get_terminal_size().columns - 1)}")

    try:
        yield tick
    finally:
        if visible:
            _write("\r\x1b[K")


async def _draw(hub: "Hub") -> None:
    with drawing() as draw:
        await anyio.sleep(PATIENCE)
        while True:
            draw(hub.snapshot().servers)
            await anyio.sleep(INTERVAL)


@contextmanager
def drawing() -> Generator[Callable[[Sequence[ServerSnapshot]], None]]:
    """While entered, the function shows servers in the same place each time; if it can be seen."""
    visible = can_draw(sys.stderr)
    drawn = 0

    def draw(servers: Sequence[ServerSnapshot]) -> None:
        nonlocal drawn
        if not visible:
            return
        # asked each time, because a window may be resized while servers start
        columns, rows = shutil.get_terminal_size()
        # one row less, for the cursor below the last line; one column less, because a line that
        # wraps takes more rows than `_erase` counts
        new = lines(servers, now=time.time(), rows=rows - 1, columns=columns - 1)
        _write(_erase(drawn) + "".join(f"{line}\n" for line in new))
        drawn = len(new)

    try:
        yield draw
    finally:
        _write(_erase(drawn))


def _erase(count: int) -> str:
    """Move to the first of our lines, and erase all of them."""
    return f"\x1b[{count}F\x1b[J" if count else ""


def _write(text: str) -> None:
    click.echo(text, nl=False, err=True)
