"""Finds who has a tool, a resource or a prompt, and wakes no other server than needed."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio

from multitap.cli.problems import line
from multitap.cli.progress import progress
from multitap.config import Loaded
from multitap.errors import ConfigError, Unavailable, ungrouped
from multitap.events import Failure, LinkState, ServerSnapshot
from multitap.hub import Hub
from multitap.names import Naming, likely_owners


class Offered(Protocol):
    """Something of a server's."""

    @property
    def server(self) -> str: ...


_Offered = TypeVar("_Offered", bound=Offered)


async def reach(hub: Hub, find: Callable[[], _Offered | None]) -> _Offered | None:
    """What is looked for, as a server that is up describes it; None: no server has it.

    What the servers had the last time tells which one to start. Where that is not enough, all are.

    Args:
        hub: Where all servers are lazy.
        find: Looks for it in the hub's catalog.

    Raises:
        Unavailable: The server that had it does not come up.
    """
    async with progress(hub):
        await until(hub, find)
        if find() is None:
            for server in hub.snapshot().servers:
                if server.stale and server.state is not LinkState.DISABLED:
                    hub.restart(server.name)
            await until(hub, find)
        found = find()
        if found is not None and hub.snapshot().server(found.server).stale:
            await _wake(hub, found.server)
        return find()


async def until(hub: Hub, holds: Callable[[], object]) -> None:
    """Wait until it holds, or every server has answered, failed or timed out."""
    with ungrouped(), hub.events.subscribe() as events:
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while not holds():
                    await anext(events)
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await hub.settled()
            tasks.cancel_scope.cancel()


def check_owner(loaded: Loaded, hub: Hub, name: str) -> None:
    """Make sure that a tool or prompt is not missing only because its server is.

    Raises:
        Unavailable: The server that it belongs to by its name is down.
        ConfigError: It cannot be used as it is written.
    """
    naming = loaded.settings.naming
    failures = {server.name: server.failure for server in hub.snapshot().servers}
    for owner in likely_owners(name, [*failures, *loaded.broken], naming):
        if naming is Naming.BARE:
            break
        if (failure := failures.get(owner)) is not None:
            raise _unavailable(owner, failure)
        if problems := loaded.broken.get(owner):
            raise ConfigError(line(problems[0]), hint=problems[0].hint)


def check_up(hub: Hub, server: str) -> None:
    """Make sure that a server is up.

    Raises:
        Unavailable: It is not.
    """
    if failure := hub.snapshot().server(server).failure:
        raise _unavailable(server, failure)


async def _wake(hub: Hub, name: str) -> None:
    def now() -> ServerSnapshot:
        return hub.snapshot().server(name)

    hub.restart(name)
    await until(hub, lambda: now().state is LinkState.CONNECTED or now().failure)
    if now().state is not LinkState.CONNECTED and (failure := now().failure):
        raise _unavailable(name, failure)


def _unavailable(name: str, failure: Failure) -> Unavailable:
    return Unavailable(name, str(failure), hint=failure.hint, failure=failure)
