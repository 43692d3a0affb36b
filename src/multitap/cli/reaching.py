"""Finds who has a tool, a resource or a prompt, and wakes no other server than needed."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio

from multitap.cli.progress import progress
from multitap.errors import Unavailable, ungrouped
from multitap.events import LinkState, ServerSnapshot
from multitap.hub import Hub


class Offered(Protocol):
    @property
    def server(self) -> str: ...


_Offered = TypeVar("_Offered", bound=Offered)
Find = Callable[[Hub], _Offered | None]
"""Looks for something in the hub's catalog."""


async def reach(hub: Hub, find: Find[_Offered]) -> _Offered | None:
    """What is looked for, at a server that is up; None: no server that answered has it.

    What the servers had the last time tells which one to start. Where that is not enough, all are.

    Raises:
        Unavailable: The server that has it does not come up.
    """
    async with progress(hub):
        if find(hub) is None:
            await until(hub, lambda: find(hub))
        if find(hub) is None:
            for server in hub.snapshot().servers:
                if server.stale:
                    hub.restart(server.name)
            await until(hub, lambda: find(hub))
        if (found := find(hub)) is None:
            return None
        return await _fresh(hub, find, found)


def missing(loaded: Loaded, hub: Hub, name: str) -> MultitapError:
    """Why there is no tool, prompt or resource of that name."""
    for server in hub.snapshot().servers:
        if server.failure is not None and slug(server.name) in name:
            return _unavailable(server, server.failure)
    for server_name, problems in loaded.broken.items():
        if slug(server_name) in name:
            return ConfigError(str(problems[0]), hint=problems[0].hint)
    ...


async def until(hub: Hub, holds: Callable[[], object]) -> None:
    """Wait until it holds, or every server has answered, failed or timed out."""
    with ungrouped(), hub.events.subscribe() as events:
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                if not holds():
                    async for _ in events:
                        if holds():
                            break
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await hub.settled()
            tasks.cancel_scope.cancel()


async def _fresh(hub: Hub, find: Find[_Offered], found: _Offered) -> _Offered | None:
    """The same thing as the server describes it today."""
    name = found.server
    if not hub.snapshot().server(name).stale:
        return found
    hub.restart(name)
    await until(hub, lambda: _decided(hub.snapshot().server(name)))
    server = hub.snapshot().server(name)
    if server.failure is not None and server.state is not LinkState.CONNECTED:
        raise Unavailable(
            name, str(server.failure), hint=server.failure.hint, failure=server.failure
        )
    return find(hub)


def _decided(server: ServerSnapshot) -> bool:
    return server.state is LinkState.CONNECTED or server.failure is not None
