"""What clients are told without asking: changed lists, updated resources."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

import anyio
import msgspec

from multitap.errors import MultitapError
from multitap.events import CatalogChanged, LinkChanged, LinkState, Reloaded, ResourceUpdated
from multitap.hub import Hub
from multitap.serve.message import Refused, notification
from multitap.serve.peer import USUAL_LEVEL, Outlet, Peer, level_of
from multitap.serve.turn import Turn
from multitap.serve.view import View
from multitap.shares import Shares
from multitap.tasks import Tasks
from multitap.upstream.link import Link
from multitap.wire import envelope, vocabulary

logger = logging.getLogger(__name__)

DEBOUNCE = 0.05
"""Seconds in which changes count as one."""
BACKLOG = 4096
MOST_LISTENERS = 1024
MOST_URIS = 1000
"""Resources that one client may follow."""
MOST_FOLLOWED = 50_000
"""Resources that all of them may."""
LONGEST_URI = 8192
PATIENCE = 1.0
"""Seconds a client waits for servers to take the log level it wants."""

_BUSY = -32000
_KINDS = ("tools", "prompts", "resources")


class Wanted(msgspec.Struct, rename="camel"):
    """What a client of the stateless era wants to be told of."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


Find = Callable[[str], Awaitable[tuple[Link, str]]]
"""From what a client calls a resource to the session that has it, and its own name there."""

parse_wanted = msgspec.json.Decoder(Wanted, strict=False).decode


class Listener:
    """One client's wish to be told of changes.

    Args:
        outlet: Where it is told.
        profile: What it sees.
        holder: On whose share it counts.
        kinds: Of which lists it wants to hear.
        meta: What every message carries.
    """

    def __init__(
        self,
        outlet: Outlet,
        profile: str | None,
        holder: str,
        kinds: frozenset[str],
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.profile = profile
        self.holder = holder
        self.uris: dict[str, tuple[Link, str]] = {}
        """The resources it follows: by what it calls them, whose they are and their own name."""
        self.ended = asyncio.Event()
        self._outlet = outlet
        self._kinds = kinds
        self._meta = {"_meta": meta} if meta else {}

    def lists_changed(self, kinds: frozenset[str]) -> None:
        for kind in _KINDS:
            if kind in kinds & self._kinds:
                self.tell(f"notifications/{kind}/list_changed")

    def updated(self, server: str, uri: str) -> None:
        for told, (link, raw) in self.uris.items():
            if link.name == server and raw == uri:
                self.tell("notifications/resources/updated", uri=told)

    def tell(self, method: str, **params: Any) -> None:
        if not self._outlet.send(notification(method, {**params, **self._meta} or None)):
            self.ended.set()  # it does not read: it will list anew when it comes back


class Changes:
    """Who is to be told of what.

    Args:
        hub: What changes.
        view: What the clients of a profile see now.
        tasks: Where servers are told what clients want of them: none waits for another.
        most: Streams of changes that there may be.
    """

    def __init__(
        self,
        hub: Hub,
        view: Callable[[str | None], View],
        tasks: Tasks,
        *,
        most: int = MOST_LISTENERS,
    ) -> None:
        self._hub = hub
        self._view = view
        self._tasks = tasks
        self._peers: dict[Peer, Listener] = {}
        self._streams: set[Listener] = set()
        self._stream_shares = Shares(most, "streams of changes")
        self._followed_shares = Shares(MOST_FOLLOWED, "followed resources")
        self._followers: dict[tuple[str, str], dict[Listener, Link]] = {}
        """Who follows a resource of a server, each in a session that need not be everybody's."""
        self._shown: dict[str | None, list[View]] = {}
        """What the clients of a profile may have seen since they were last told of a change."""
        self._levels_matter = False
        """Whether any client ever said what it wants to see of logs."""
        self._is_listed = False
        """Whether anybody can have got a list yet."""

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The clients that shook hands and are still there."""
        return tuple(self._peers)

    def seeing(self, server: str) -> Iterator[Peer]:
        """Those of them whose profile shows a server."""
        shown: dict[str | None, bool] = {}
        for peer in self._peers:
            profile = peer.profile
            if profile not in shown:
                shown[profile] = self._view(profile).has(server)
            if shown[profile]:
                yield peer

    def only(self, server: str) -> Peer | None:
        """The one of them that sees a server; None: there are more, or none."""
        found = [*islice(self.seeing(server), 2)]
        return found[0] if len(found) == 1 else None

    def joined(self, peer: Peer) -> None:
        """A client has shaken hands: from here on it hears of every change."""
        if peer not in self._peers:
            self._peers[peer] = Listener(peer.outlet, peer.profile, peer.holder, frozenset(_KINDS))
            self._shown.setdefault(peer.profile, [self._view(peer.profile)])

    def shown(self, profile: str | None, view: View) -> None:
        """Clients of a profile begin to see something new.

        It may be gone before they are told of it, and what they saw is then not what there is.
        """
        if (views := self._shown.get(profile)) is not None:
            views.append(view)

    def begin(self) -> None:
        """Lists are given out from here on: what there was before, nobody has seen."""
        self._is_listed = True
        self._shown = {profile: [self._view(profile)] for profile in self._shown}

    async def left(self, peer: Peer) -> None:
        if (listener := self._peers.pop(peer, None)) is not None:
            await self._forget(listener)

    async def subscribe(self, peer: Peer, uri: str, link: Link, raw: str) -> None:
        """Tell a client whenever a resource changes.

        Raises:
            UpstreamError: The server refuses.
        """
        self.joined(peer)
        await self._follow(self._peers[peer], uri, link, raw)

    async def unsubscribe(self, peer: Peer, uri: str) -> None:
        if (listener := self._peers.get(peer)) is not None:
            await self._unfollow(listener, uri)

    async def log_level(self, peer: Peer) -> None:
        """Have servers send what the most curious client wants to see."""
        self.joined(peer)
        self._levels_matter = True
        told = anyio.Event()
        self._tasks.start_soon(self._want_all_logs, told)
        with anyio.move_on_after(PATIENCE):
            await told.wait()

    async def curious(self, level: str | None, link: Link) -> None:
        """Have a server send what one request wants to see, which others need not be told."""
        if level is None:
            return
        usual = link.log_level or self._wanted_of(link.name) or USUAL_LEVEL
        if level_of(level) < level_of(usual) or link.log_level is None:
            await self._want_logs(link, min(level, usual, key=level_of))

    def _wanted_of(self, server: str) -> str | None:
        """From which level on the clients that see a server want its logs; None: as it likes."""
        levels = [one.log_level or USUAL_LEVEL for one in self.seeing(server)]
        return min(levels, key=level_of) if levels and self._levels_matter else None

    async def _want_all_logs(self, told: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            for link in self._hub.links.values():
                if (level := self._wanted_of(link.name)) is not None:
                    tasks.start_soon(self._want_logs, link, level)
        told.set()

    async def _want_logs(self, link: Link, level: str) -> None:
        try:
            await link.want_logs(level)
        except MultitapError as exc:
            logger.info("%s", exc)

    async def listen(
        self,
        turn: Turn,
        wanted: Wanted,
        find: Find,
    ) -> bytes:
        """Tell a client of the stateless era of changes until it leaves, or the gateway closes."""
        holder = turn.peer.holder
        if not self._stream_shares.take(holder):
            raise Refused(_BUSY, self._stream_shares.refusal(holder))
        meta = {vocabulary.SUBSCRIPTION_ID_KEY: turn.request_id}
        kinds = {
            "tools": wanted.tools_list_changed,
            "prompts": wanted.prompts_list_changed,
            "resources": wanted.resources_list_changed,
        }
        profile = turn.peer.profile
        chosen = frozenset(kind for kind, on in kinds.items() if on)
        listener = Listener(turn.outlet, profile, holder, chosen, meta)
        self._shown.setdefault(profile, [self._view(profile)])
        self._streams.add(listener)
        try:
            honored = {f"{kind}ListChanged": True for kind in _KINDS if kind in chosen}
            uris = (wanted.resource_subscriptions or [])[:MOST_URIS]
            acknowledged: dict[str, Any] = dict(honored)
            if uris:
                acknowledged["resourceSubscriptions"] = uris
            await self._follow_all(listener, uris, find)
            listener.tell("notifications/subscriptions/acknowledged", notifications=acknowledged)
            await listener.ended.wait()
        finally:
            self._streams.discard(listener)
            self._stream_shares.give(holder)
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self._forget(listener)
        return envelope.encode({"resultType": "complete", "_meta": meta})

    async def follow(self) -> None:
        """Tell the clients of what happens at the servers, until cancelled."""
        with self._hub.events.subscribe(BACKLOG, calls=False) as events:
            async for event in events:
                match event:
                    case ResourceUpdated(server, uri):
                        for listener in self._followers.get((server, uri), ()):
                            if self._view(listener.profile).has(server):
                                listener.updated(server, uri)
                    case CatalogChanged() | Reloaded():
                        await anyio.sleep(DEBOUNCE)
                        self._tell_of_lists()
                    case LinkChanged(server, LinkState.CONNECTED):
                        link, level = self._hub.links.get(server), self._wanted_of(server)
                        if level is not None and link is not None and link.log_level is None:
                            self._tasks.start_soon(self._want_logs, link, level)
                    case _:
                        continue

    def close(self) -> None:
        """End every stream of changes in the orderly way."""
        for listener in self._streams:
            listener.ended.set()

    def _tell_of_lists(self) -> None:
        if not self._is_listed:
            return
        for profile, shown in tuple(self._shown.items()):
            listeners = [one for one in self._listeners() if one.profile == profile]
            if not listeners:
                del self._shown[profile]
                continue
            view = self._view(profile)
            self._shown[profile] = [view]
            kinds = frozenset[str]().union(*(view.differences(seen) for seen in shown))
            for listener in listeners:
                listener.lists_changed(kinds)

    def _listeners(self) -> tuple[Listener, ...]:
        return (*self._peers.values(), *self._streams)

    async def _follow_all(self, listener: Listener, uris: list[str], find: Find) -> None:
        """Follow resources; what changes from then on is told."""
        async with anyio.create_task_group() as tasks:
            for uri in uris:
                tasks.start_soon(self._try_to_follow, listener, uri, find)

    async def _try_to_follow(self, listener: Listener, uri: str, find: Find) -> None:
        """Follow a resource if it can be; one that is not there yet never changes."""
        try:
            link, raw = await find(uri)
            await self._follow(listener, uri, link, raw)
        except (MultitapError, Refused) as exc:
            logger.info("%r is not followed: %s", uri, exc)

    async def _follow(self, listener: Listener, uri: str, link: Link, raw: str) -> None:
        if uri in listener.uris:
            return
        if len(uri) > LONGEST_URI:
            raise Refused(_BUSY, f"an address has at most {LONGEST_URI} characters")
        if len(listener.uris) >= MOST_URIS:
            raise Refused(_BUSY, f"a client follows at most {MOST_URIS} resources")
        if not self._followed_shares.take(listener.holder):
            raise Refused(_BUSY, self._followed_shares.refusal(listener.holder))
        listener.uris[uri] = (link, raw)
        self._followers.setdefault((link.name, raw), {})[listener] = link
        try:
            await link.subscribe(raw)
        except MultitapError:
            await self._unfollow(listener, uri)
            raise

    async def _unfollow(self, listener: Listener, uri: str) -> None:
        link, raw = listener.uris.pop(uri, (None, ""))
        if link is None:
            return
        self._followed_shares.give(listener.holder)
        followers = self._followers.get((link.name, raw), {})
        followers.pop(listener, None)
        if not followers:
            self._followers.pop((link.name, raw), None)
        if link not in followers.values():
            try:
                await link.unsubscribe(raw)
            except MultitapError as exc:
                logger.info("%s", exc)

    async def _forget(self, listener: Listener) -> None:
        for uri in tuple(listener.uris):
            await self._unfollow(listener, uri)
