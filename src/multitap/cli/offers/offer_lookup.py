"""Finds the server of a tool, resource or prompt, and starts no others."""

from collections.abc import Callable
from typing import TypeVar

import anyio

from multitap.cli.configuration.problem_lines import line
from multitap.cli.offers.offer_listing import ServerOffer
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.progress import progress
from multitap.config import Loaded
from multitap.errors import ConfigError, Unavailable, ungrouped
from multitap.events import LinkState, ServerSnapshot
from multitap.hub.hub import Hub
from multitap.names import Naming, likely_owners

Owns = Callable[[str], bool]
"""Whether a server, by its name, must have the requested item."""
_Offered = TypeVar("_Offered", bound=ServerOffer)


def owner_by_name(loaded: Loaded, name: str) -> Owns:
    """The owner of a tool or prompt, as far as its name tells."""
    naming = loaded.settings.naming
    if naming is Naming.BARE:
        is_only = len(loaded.settings.servers) == 1
        return lambda _: is_only
    return lambda server: bool(likely_owners(name, [server], naming))


async def reach(
    hub: Hub, options: CommonOptions, find: Callable[[], _Offered | None], *, owns: Owns
) -> _Offered | None:
    """Find an item of a connected server; None if no server has it.

    The catalog of the last run tells which server to start. If that is not enough, all are started.

    Args:
        hub: A hub with only lazy servers.
        options: How long to wait for servers that may have it.
        find: Looks for it in the hub's catalog.
        owns: Selects servers that are always waited for.

    Raises:
        Unavailable: The server that had it does not come up.
    """
    async with progress(hub):
        await _until(hub, options, find, owns)
        if find() is None:
            for server in hub.snapshot().servers:
                # not in the stored catalog, which may be outdated
                if server.stale and server.state is not LinkState.DISABLED:
                    hub.restart(server.name)
            await _until(hub, options, find, owns)
        found = find()
        if found is not None and hub.snapshot().server(found.server).stale:
            await _wake(hub, found.server)
        return find()


def check_missing(loaded: Loaded, hub: Hub, owns: Owns) -> None:
    """Check that an item is not missing only because its server is down.

    Raises:
        Unavailable: Its server is down, or one that may have it is still starting.
        ConfigError: The server that must have it cannot be used as it is written, or comes with a
            project that is not trusted.
    """
    down = [one for one in hub.snapshot().servers if one.failure and owns(one.name)]
    for server in sorted(down, key=lambda one: len(one.name), reverse=True):  # the likeliest first
        raise Unavailable.because(server.name, server.failure, "it is down")
    for name, pending in loaded.held.items():
        if owns(name):
            raise pending.refusal()
    for broken, problems in loaded.broken.items():
        if owns(broken):
            raise ConfigError(line(problems[0]), hint=problems[0].hint)
    if starting := [link.name for link in hub.links.values() if not link.is_settled]:
        # the likely owner is named first
        first, *others = sorted(starting, key=owns, reverse=True)
        also = f" (so may {', '.join(others)})" if others else ""
        raise Unavailable(
            first,
            f"it is still starting and may have it{also}",
            hint="use `--wait 1m` to wait longer",
        )


async def _until(hub: Hub, options: CommonOptions, holds: Callable[[], object], owns: Owns) -> None:
    """Wait for a condition, or for the servers; owners get as long as they need.

    The start of a server is always bounded.
    """

    def is_over() -> object:
        owners = [link for link in hub.links.values() if owns(link.name)]
        return holds() or all(link.is_settled for link in owners)

    with anyio.move_on_after(options.patience()):
        await _wait_settled(hub, holds)
    if not is_over():
        await _wait_settled(hub, is_over)


async def _wait_settled(hub: Hub, holds: Callable[[], object]) -> None:
    """Wait for a condition, or until every server has answered, failed or timed out."""
    with ungrouped(), hub.events.subscribe() as events:
        async with anyio.create_task_group() as tasks:
            # checked after each event: the condition changes only with events
            async def watch() -> None:
                while not holds():
                    await anext(events)
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await hub.settled()
            tasks.cancel_scope.cancel()


async def _wake(hub: Hub, name: str) -> None:
    def now() -> ServerSnapshot:
        return hub.snapshot().server(name)

    hub.restart(name)
    await _wait_settled(hub, lambda: now().state is LinkState.CONNECTED or now().failure)
    if now().state is not LinkState.CONNECTED and (failure := now().failure):
        raise Unavailable.because(name, failure, "it is down")
