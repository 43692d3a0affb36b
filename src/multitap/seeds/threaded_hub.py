"""A hub on its own thread, with servers added and removed one by one.

A hub is a block, left by the task that entered it. The seeds' classes have no block: they are
connected here and closed there, from any task, loop or thread.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TypeVar

import anyio
from anyio import to_thread

from multitap.catalog.catalog import Catalog, Tool
from multitap.config import ServerConfig, Settings
from multitap.errors import HubClosed, Unavailable
from multitap.events import LinkState, ServerSnapshot, Withheld
from multitap.hub.hub import Hub
from multitap.hub.sync import SyncHub
from multitap.results import ToolResult
from multitap.tools.tool import NOBODY, Arguments
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext

_T = TypeVar("_T")


class ThreadedHub:
    """Opens a hub with the first server, and closes it with the last.

    Args:
        settings: The hub's settings; `plug` adds its servers.
        withheld: Parts of its configuration that nobody has trusted.
    """

    def __init__(
        self, settings: Settings | None = None, *, withheld: tuple[Withheld, ...] = ()
    ) -> None:
        self.settings = settings or Settings()
        self.withheld = withheld
        """Parts of its configuration that nobody has trusted."""
        self._hub: SyncHub | None = None
        self._block = ExitStack()
        # A lock of threads, not of tasks, because callers come from any loop. Held only in worker
        # threads, which may block.
        self._lock = threading.Lock()

    @property
    def catalog(self) -> Catalog:
        hub = self._hub  # another thread may close it meanwhile
        return hub.catalog if hub else Catalog()

    @property
    def servers(self) -> Mapping[str, ServerSnapshot]:
        """The current state of the plugged-in servers."""
        hub = self._hub
        servers = hub.snapshot().servers if hub else ()
        return {server.name: server for server in servers}

    @property
    def connected(self) -> list[str]:
        """The names of the servers that are up."""
        servers = self.servers.values()
        return [server.name for server in servers if server.state is LinkState.CONNECTED]

    async def connect(self, name: str, config: ServerConfig) -> None:
        """Plug in one server, in place of one with the same name.

        Raises:
            Unavailable: It does not come up, and is pulled out again.
        """
        await self.pull(name)
        try:
            servers = await self.plug({name: config})
            _refuse_unless_connected(name, servers.get(name))
        except BaseException:
            # otherwise another one has taken its place
            if self.settings.servers.get(name) is config:
                # Shielded: if the server is not pulled out now, its process stays.
                with anyio.CancelScope(shield=True):
                    await self.pull(name)
            raise

    async def plug(self, servers: Mapping[str, ServerConfig]) -> Mapping[str, ServerSnapshot]:
        """Plug in servers and wait until each has answered or failed; they stay either way."""
        if not servers:
            return {}
        hub = await to_thread.run_sync(self._extend, servers)
        await _ask(hub, lambda inner: _wait_answered(inner, servers))
        return {name: server for name, server in self.servers.items() if name in servers}

    async def pull(self, name: str) -> None:
        """Pull out a server; ignores unknown names."""
        if name in self.settings.servers:
            await to_thread.run_sync(self._reduce, {name})

    async def close(self) -> None:
        """Pull out all servers, and wait until they have ended."""
        await to_thread.run_sync(self._reduce, set(self.settings.servers))

    async def call(
        self, name: str, arguments: Arguments | None = None, *, context: CallContext = NOBODY
    ) -> ToolResult:
        """See `Hub.call`."""
        return await _ask(self._running(), lambda hub: hub.call(name, arguments, context=context))

    def call_and_wait(self, name: str, arguments: Arguments) -> ToolResult:
        """Like `call`, for code that does not await, inside or outside a running loop."""
        return self._running().call(name, arguments)

    def tools_of(self, server: str) -> Mapping[str, Tool]:
        """A server's tools by its own names, also while it is down."""
        catalog = self.catalog
        # the present ones last: they replace an absent tool of the same name
        tools = (*catalog.absent.values(), *catalog.tools.values())
        return {tool.raw_name: tool for tool in tools if tool.server == server}

    def _running(self) -> SyncHub:
        if self._hub is None:
            raise HubClosed("no server is connected", hint="connect one first")
        return self._hub

    def _extend(self, servers: Mapping[str, ServerConfig]) -> SyncHub:
        with self._lock:
            extended = self.settings.with_servers({**self.settings.servers, **servers})
            if self._hub is None:
                self._hub = self._block.enter_context(SyncHub(extended))
            else:
                self._hub.apply(extended)
            # only now: if the hub does not open, no server is plugged in
            self.settings = extended
            return self._hub

    def _reduce(self, names: Iterable[str]) -> None:
        with self._lock:
            gone = set(names)
            rest = {
                name: server for name, server in self.settings.servers.items() if name not in gone
            }
            self.settings = self.settings.with_servers(rest)
            if rest and self._hub is not None:
                self._hub.apply(self.settings)
            else:
                # first: readers take no lock, and closing waits for the servers to end
                self._hub = None
                self._block.close()


def _refuse_unless_connected(name: str, server: ServerSnapshot | None) -> None:
    if server is None:
        raise Unavailable(name, "it was disconnected before it was up")
    if server.state is not LinkState.CONNECTED:
        raise Unavailable.because(name, server.failure, f"it is {server.state}")


async def _wait_answered(hub: Hub, names: Iterable[str]) -> None:
    """Wait until each of these servers has answered, failed, or been pulled out."""
    awaited = [link for name in names if (link := hub.links.get(name))]
    # before the first look, so that no answer falls between the two
    with hub.events.subscribe() as events:
        while any(hub.links.get(link.name) is link and not _has_answered(link) for link in awaited):
            await anext(events)


def _has_answered(link: Link) -> bool:
    return link.is_settled or link.availability.first_settled.is_set()


async def _ask(hub: SyncHub, verb: Callable[[Hub], Awaitable[_T]]) -> _T:
    """Await in this loop the result of a coroutine in the hub's loop."""
    future = hub.submit(verb)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        # Two cancellations look alike here: that of our own task goes on, that of the future means
        # that the hub was closed.
        if task is not None and task.cancelling():
            raise
        raise HubClosed("the hub was closed during the call") from None
