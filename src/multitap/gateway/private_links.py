"""Sessions of single clients, for servers that keep state per session."""

import contextlib
from dataclasses import field
from typing import Literal

import anyio

from multitap.errors import MultitapError, Overloaded
from multitap.events import LinkState
from multitap.gateway.client import Client, level_of
from multitap.hub.hub import Hub
from multitap.records import dataclass
from multitap.shares import Shares
from multitap.tasks import CancelHandle, Tasks
from multitap.upstream.link import Link
from multitap.upstream.session import Era

MOST = 256
"""Private links at the same time, over all clients and servers; each may be a process."""
IDLE = 900.0
"""Seconds without a call after which one ends; the next call opens another."""
_LOOK = 15.0  # seconds, by which one may outlive `IDLE`
_HANDSHAKE = "(handshake)"
"""The holder of sessions shared by all clients that can be asked; no principal has this name."""


@dataclass(frozen=True, slots=True, eq=False)
class _PrivateLink:
    """One private link."""

    link: Link
    shared: Link
    """The shared link to the same server; the private one ends with it."""
    holder: str
    """The holder whose share it counts against."""
    scope: CancelHandle = field(default_factory=CancelHandle)


class PrivateLinks:
    """The sessions that single clients have with servers.

    Stateless clients have no session with us to bind one to, so all clients of a principal share
    theirs.
    """

    def __init__(self, hub: Hub, tasks: Tasks, *, most: int = MOST) -> None:
        self._hub = hub
        self._tasks = tasks
        self._shares = Shares(most, "sessions of single clients with servers")
        self._links: dict[tuple[object, str], _PrivateLink] = {}
        self._stateless_only: set[str] = set()

    def __len__(self) -> int:
        return len(self._links)

    def shares(self, client: Client, shared: Link) -> bool:
        """Whether a client uses the shared session with a server."""
        alone = shared.config.session != "shared"
        return not alone and not (client.can_be_asked and self._needs_handshake(shared))

    async def link(self, client: Client, shared: Link) -> Link:
        """The private link of a client, opened if there is none.

        Raises:
            Overloaded: There are too many.
        """
        if shared.config.session == "shared":
            link = await self._handshaken(shared)
        else:
            owner = client if client.shook_hands else client.principal
            link = self._own(owner, client.holder, shared, None)
        await agree_on_logs(shared, link)
        return link

    async def askable(self, shared: Link) -> Link:
        """A link over which a server can ask questions during a call, if it supports that.

        Raises:
            Overloaded: There are too many.
        """
        return await self._handshaken(shared) if self._needs_handshake(shared) else shared

    def spare(self, shared: Link, holder: str) -> Link:
        """A further session with a server, which clients use in turn.

        Raises:
            Overloaded: There are too many.
        """
        self._claim(shared, holder)
        link = self._hub.make_link(shared.name, shared.config)
        self._start((link, shared.name), _PrivateLink(link, shared, holder))
        return link

    def has(self, link: Link) -> bool:
        """Whether a private link is still open."""
        return (link, link.name) in self._links

    def end(self, link: Link) -> None:
        """End a private link."""
        if (known := self._links.get((link, link.name))) is not None:
            known.scope.cancel()

    async def follow(self) -> None:
        """End the sessions with servers that were replaced or removed, until cancelled."""
        while True:
            await self._hub.changed.wait()
            for key, private in tuple(self._links.items()):
                # by identity: a replaced server has the same name, and another link
                if self._hub.links.get(private.shared.name) is not private.shared:
                    self._forget(key)
                    self._tasks.start_soon(self._retire, private)

    async def _retire(self, private: _PrivateLink) -> None:
        await private.link.requests.drain(self._hub.settings.drain_timeout)
        private.scope.cancel()

    def _needs_handshake(self, shared: Link) -> bool:
        """Whether a server that speaks both eras needs the older one to ask clients questions.

        Many tools only ask during a call, which the stateless era does not support.
        """
        return (
            shared.era is Era.STATELESS
            and shared.config.era == "auto"
            and shared.config.transport != "local"
            and shared.name not in self._stateless_only
        )

    async def _handshaken(self, shared: Link) -> Link:
        link = self._own(_HANDSHAKE, _HANDSHAKE, shared, "handshake")
        await link.availability.first_settled.wait()
        if link.state is LinkState.CONNECTED and link.era is Era.HANDSHAKE:
            return link
        known = self._links.get((_HANDSHAKE, shared.name))
        if known is not None and known.link is link:  # or it was ended before it could settle
            # remembered: another try would start the server again for every call
            if link.state is not LinkState.NEEDS_AUTH:
                self._stateless_only.add(shared.name)
            known.scope.cancel()
        return shared

    def _own(
        self, owner: object, holder: str, shared: Link, era: Literal["handshake"] | None
    ) -> Link:
        key = (owner, shared.name)
        wanted = shared.config if era is None else shared.config.model_copy(update={"era": era})
        known = self._links.get(key)
        if known is not None and known.link.config == wanted:
            return known.link
        if known is not None:
            known.scope.cancel()
            holder = known.holder  # it takes over the share
        else:
            self._claim(shared, holder)
        link = self._hub.make_link(shared.name, wanted)
        self._start(key, _PrivateLink(link, shared, holder))
        return link

    def _claim(self, shared: Link, holder: str) -> None:
        if not self._shares.take(holder):
            raise Overloaded(
                shared.name,
                self._shares.refusal(holder),
                hint='set `session = "shared"`, or let fewer clients use it',
            )

    def _start(self, key: tuple[object, str], private: _PrivateLink) -> None:
        # known before it runs: the next call of the client must find it, not start another
        self._links[key] = private
        self._tasks.start_soon(self._run, key, private)

    def _forget(self, key: tuple[object, str]) -> None:
        self._shares.give(self._links.pop(key).holder)

    def drop(self, gone: Client | str) -> None:
        """End the links of a client, or of a principal."""
        for (owner, _), private in tuple(self._links.items()):
            if owner is gone or (isinstance(gone, str) and owner == gone):
                private.scope.cancel()

    async def _run(self, key: tuple[object, str], private: _PrivateLink) -> None:
        link = private.link
        try:
            with private.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(link.run)
                    while link.requests.idle_for() < IDLE or link.notifications.is_followed:
                        await anyio.sleep(_LOOK)
                    tasks.cancel_scope.cancel()
        finally:
            if self._links.get(key) is private:  # or another has its place and share
                self._forget(key)
            link.availability.first_settled.set()  # or callers that still wait would wait forever


async def agree_on_logs(shared: Link, link: Link) -> None:
    """Set the log level of the shared session in another session of the server."""
    level, before = shared.notifications.log_level, link.notifications.log_level
    if level is None or link is shared:
        return
    if before is None or level_of(level) < level_of(before):
        with contextlib.suppress(MultitapError):
            await link.notifications.want_logs(level)
