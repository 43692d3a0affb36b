"""The log level asked of each server: the most verbose one that a client wants."""

import logging
from collections.abc import Callable, Iterable

import anyio

from multitap.errors import MultitapError
from multitap.gateway.client import USUAL_LEVEL, Client, level_of
from multitap.hub.hub import Hub
from multitap.tasks import Tasks
from multitap.upstream.link import Link

logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds a client waits for servers to set its log level; slower ones set it later."""


class LogLevels:
    """Owns the log level that is set at each server.

    Args:
        hub: Has the servers.
        seeing: The clients whose profile shows a server.
        tasks: Runs the requests to servers, so that none waits for another.
    """

    def __init__(self, hub: Hub, seeing: Callable[[str], Iterable[Client]], tasks: Tasks) -> None:
        self._hub = hub
        self._seeing = seeing
        self._tasks = tasks
        self._matter = False
        """Whether any client has ever set a log level."""

    async def on_changed(self) -> None:
        """A client has changed its level: set the most verbose one at each server."""
        self._matter = True
        told = anyio.Event()
        # goes on without the client: one server that hangs must not hold up its answer
        self._tasks.start_soon(self._want_all, told)
        with anyio.move_on_after(PATIENCE):
            await told.wait()

    async def ensure_level(self, level: str | None, link: Link) -> None:
        """Have a server log at least at the level that one request asks for."""
        if level is None:
            return
        # never less than others want: a server has one level for all of its clients
        current = link.notifications.log_level
        usual = current or self._wanted_of(link.name) or USUAL_LEVEL
        if level_of(level) < level_of(usual) or current is None:
            await self._want(link, min(level, usual, key=level_of))

    def on_connected(self, server: str) -> None:
        """A server is up: set the log level that clients want."""
        link, level = self._hub.links.get(server), self._wanted_of(server)
        if link is not None and level is not None and link.notifications.log_level is None:
            self._tasks.start_soon(self._want, link, level)

    def _wanted_of(self, server: str) -> str | None:
        """The lowest level that any client of a server wants; None: the server decides."""
        levels = [one.log_level or USUAL_LEVEL for one in self._seeing(server)]
        return min(levels, key=level_of) if levels and self._matter else None

    async def _want_all(self, told: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            for link in self._hub.links.values():
                if (level := self._wanted_of(link.name)) is not None:
                    tasks.start_soon(self._want, link, level)
        told.set()

    async def _want(self, link: Link, level: str) -> None:
        try:
            await link.notifications.want_logs(level)
        except MultitapError as exc:
            logger.info("%s", exc)
