"""Notifies clients of changes, and servers of the log levels that clients want."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import anyio
import msgspec

from multitap.catalog.audience import Audience
from multitap.errors import MultitapError
from multitap.events import (
    CatalogChanged,
    LinkChanged,
    LinkState,
    ListsAnnounced,
    Reloaded,
    ResourceUpdated,
)
from multitap.gateway.client import USUAL_LEVEL, Client, ClientRequest, Outlet, level_of
from multitap.gateway.view import View
from multitap.hub.hub import Hub
from multitap.limits import Shares
from multitap.principal import Person
from multitap.tasks import Tasks
from multitap.upstream.link import Link
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import SERVER_ERROR, RpcError, notification

logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds a client waits for servers to set its log level; slower ones set it later."""
START_PATIENCE = 5.0
"""Seconds a stream of changes waits for servers that still start; slower ones join it later."""


class LogLevels:
    """Owns the log level that is set at each server."""

    def __init__(self, hub: Hub, seeing: Callable[[str], Iterable[Client]], tasks: Tasks) -> None:
        self._hub = hub
        self._seeing = seeing
        self._tasks = tasks
        self._matter = False
        """Whether any client has ever set a log level."""

    async def on_changed(self) -> None:
        """A client has changed its level: set the most verbose one at each server."""
        self._matter = True
        started = anyio.Event()
        # goes on without the client: one server that hangs must not hold up its answer
        self._tasks.start_apart(self._want_all, started)
        with anyio.move_on_after(PATIENCE):
            await started.wait()

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
            self._tasks.start_apart(self._want, link, level)

    def _wanted_of(self, server: str) -> str | None:
        """The lowest level that any client of a server wants; None: the server decides."""
        levels = [client.log_level or USUAL_LEVEL for client in self._seeing(server)]
        return min(levels, key=level_of) if levels and self._matter else None

    async def _want_all(self, started: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            for link in self._hub.links.values():
                if (level := self._wanted_of(link.name)) is not None:
                    tasks.start_soon(self._want, link, level)
        started.set()

    async def _want(self, link: Link, level: str) -> None:
        try:
            await link.notifications.want_logs(level)
        except MultitapError as exc:
            logger.info("%s", exc)


DEBOUNCE = 0.05
"""Seconds in which changes count as one."""
BACKLOG = 4096
"""Events that wait while earlier ones are delivered."""
MOST_LISTENERS = 1024
"""Streams of changes, each of which holds a connection; further ones are refused."""
MOST_EARLY = 1000
"""Changes that wait for the acknowledgement of one stream; it ends with further ones."""
MOST_URIS = 1000
"""Resources that one client may subscribe to; in the stateless era, further ones are ignored."""
MOST_FOLLOWED = 50_000
"""Resources that all clients together may subscribe to."""
MOST_TASKS = 100
"""Tasks that one stream of a client may follow; further ones are ignored."""
LONGEST_URI = 8192
"""Characters of a URI, which is kept as long as the subscription."""

_KINDS = ("tools", "prompts", "resources")


class WantedNotifications(msgspec.Struct, rename="camel"):
    """The notifications that a stateless client subscribes to."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None


Find = Callable[[str], Awaitable[tuple[Link, str]]]
"""Resolves a client's URI to the link that has the resource, and its URI there."""

parse_wanted = msgspec.json.Decoder(WantedNotifications, strict=False).decode


class WatchedTasks(Protocol):
    """Tells clients of their tasks."""

    async def known(self, request: ClientRequest, task_ids: Sequence[str]) -> Sequence[str]:
        """Those of the ids that are of the client's tasks."""
        ...

    async def watch(self, request: ClientRequest, task_id: str, tell: Callable[..., None]) -> None:
        """Tell of every change of a task until it ends."""
        ...


class Listener:
    """One client's subscription to changes."""

    def __init__(
        self,
        outlet: Outlet,
        audience: Audience,
        holder: str,
        kinds: frozenset[str],
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.audience = audience
        self.holder = holder
        self.uris: dict[str, tuple[Link, str]] = {}
        """Its subscriptions: the link and the URI there, by the URI that the client uses."""
        self.ended = asyncio.Event()
        self._outlet = outlet
        self._kinds = kinds
        self._meta = meta or {}
        self._early: dict[bytes, None] | None = None if meta is None else {}
        """What changed before the acknowledgement, in order; None once that is sent, or needless.

        Clients drop what precedes it.
        """

    def acknowledge(self, notifications: Mapping[str, Any]) -> None:
        """Tell a stateless client what it is notified of, and of what has changed meanwhile."""
        early, self._early = self._early or {}, None
        self.tell("notifications/subscriptions/acknowledged", notifications=notifications)
        for message in early:
            self._send(message)

    def lists_changed(self, kinds: frozenset[str]) -> None:
        for kind in _KINDS:
            if kind in kinds & self._kinds:
                self.tell(f"notifications/{kind}/list_changed")

    def on_updated(self, event: ResourceUpdated) -> None:
        for uri, (link, raw) in self.uris.items():
            # of several sessions with the server, only the one that it subscribed in
            if (link.name, raw, link.report.session) == (event.server, event.uri, event.session):
                self.tell("notifications/resources/updated", event.meta, uri=uri)

    def tell(self, method: str, meta: Mapping[str, Any] | None = None, **params: Any) -> None:
        if own := {**(meta or {}), **self._meta}:
            params["_meta"] = own
        message = notification(method, params or None)
        if self._early is None:
            self._send(message)
        elif len(self._early) < MOST_EARLY:
            self._early[message] = None
        else:
            self.ended.set()

    def _send(self, message: bytes) -> None:
        if not self._outlet.send(message):
            self.ended.set()  # it does not read: it lists again when it reconnects


def _concerns(announced: ListsAnnounced, view: View) -> bool:
    """Whether a list of a view is one that a server has announced as changed."""
    link = view.catalog.links.get(announced.server)
    is_listed = link is not None and link.report.session == announced.session
    return is_listed and view.limits.is_everything and not view.searched


class Subscriptions:
    """All subscriptions of clients."""

    def __init__(
        self,
        hub: Hub,
        view: Callable[[Audience], View],
        tasks: Tasks,
        *,
        most: int = MOST_LISTENERS,
    ) -> None:
        self._hub = hub
        self._view = view
        self.log_levels = LogLevels(hub, self.seeing, tasks)
        self._clients: dict[Client, Listener] = {}
        self._streams: set[Listener] = set()
        self._stream_shares = Shares(most, "streams of changes")
        self._followed_shares = Shares(MOST_FOLLOWED, "followed resources")
        self._followers: dict[tuple[str, str], dict[Listener, Link]] = {}
        """The subscribers of each resource, each with the link of its session."""
        self._shown: dict[Audience, list[View]] = {}
        """The views that clients of an audience may have seen since the last notification."""
        self._is_listed = False
        """Whether any client can have received a list yet."""
        self.tasks: WatchedTasks | None = None
        """Clients' tasks, whose changes they may follow."""
        self.knows_all = True
        """Whether there are no clients at other replicas."""

    @property
    def clients(self) -> tuple[Client, ...]:
        """The connected clients of the handshake era."""
        return tuple(self._clients)

    def seeing(self, server: str) -> Iterator[Client]:
        """The connected clients whose audience sees a server."""
        visible: dict[Audience, bool] = {}
        for client in self._clients:
            audience = client.audience
            if audience not in visible:
                visible[audience] = self._view(audience).has(server)
            if visible[audience]:
                yield client

    def only(self, server: str, person: Person | None = None) -> Client | None:
        """The only connected client that sees a server; None if there are none or several.

        Where people have their own sessions, only clients of the `person` count.
        """
        if not self.knows_all:
            return None
        clients = [*islice(self._using(server, person), 2)]
        return clients[0] if len(clients) == 1 else None

    def _using(self, server: str, person: Person | None) -> Iterator[Client]:
        config = self._hub.settings.servers.get(server)
        is_per_user = config is not None and config.is_per_user
        for client in self.seeing(server):
            if not is_per_user or client.audience.person == person:
                yield client

    def on_joined(self, client: Client) -> None:
        """Notify a client of changes from now on: its handshake is done."""
        if client not in self._clients:
            self._clients[client] = Listener(
                client.outlet, client.audience, client.holder, frozenset(_KINDS)
            )
        self._shown.setdefault(client.audience, [self._view(client.audience)])

    def on_shown(self, audience: Audience, view: View) -> None:
        """Remember a view that clients of an audience begin to see.

        It may be replaced before they are notified; what they saw is then out of date.
        """
        if (views := self._shown.get(audience)) is not None:
            views.append(view)

    def begin(self) -> None:
        """Compare views from now on: no client has seen an earlier list."""
        self._is_listed = True
        self._shown = {audience: [self._view(audience)] for audience in self._shown}

    async def on_left(self, client: Client, *, is_elsewhere: bool = False) -> None:
        """Stop notifying a client: it has left, or another replica notifies it."""
        if (listener := self._clients.get(client)) is not None:
            if not is_elsewhere:
                del self._clients[client]
            await self._forget(listener)

    async def subscribe(self, client: Client, uri: str, link: Link, raw: str) -> None:
        """Notify a client whenever a resource changes.

        Raises:
            UpstreamError: The server refuses.
        """
        self.on_joined(client)
        await self._follow(self._clients[client], uri, link, raw)
        client.followed.add(uri)

    async def unsubscribe(self, client: Client, uri: str) -> None:
        client.followed.discard(uri)
        if (listener := self._clients.get(client)) is not None:
            await self._unfollow(listener, uri)

    async def listen(
        self,
        request: ClientRequest,
        notifications: WantedNotifications,
        find: Find,
    ) -> bytes:
        """Notify a stateless client of changes until it leaves or the gateway closes."""
        holder = request.client.holder
        if not self._stream_shares.take(holder):
            raise RpcError(SERVER_ERROR, self._stream_shares.refusal(holder))
        meta = {jsonrpc.SUBSCRIPTION_ID_KEY: request.request_id}
        kinds = {
            "tools": notifications.tools_list_changed,
            "prompts": notifications.prompts_list_changed,
            "resources": notifications.resources_list_changed,
        }
        audience = request.client.audience
        kinds_on = frozenset(kind for kind, on in kinds.items() if on)
        listener = Listener(request.outlet, audience, holder, kinds_on, meta)
        self._shown.setdefault(audience, [self._view(audience)])
        # before the servers are asked: a list that changes meanwhile must reach it
        self._streams.add(listener)
        try:
            honored = {f"{kind}ListChanged": True for kind in _KINDS if kind in kinds_on}
            uris = (notifications.resource_subscriptions or [])[:MOST_URIS]
            acknowledged: dict[str, Any] = dict(honored)
            if uris:
                acknowledged["resourceSubscriptions"] = uris
            task_ids = (notifications.task_ids or [])[:MOST_TASKS]
            if task_ids and self.tasks is not None:
                acknowledged["taskIds"] = await self.tasks.known(request, task_ids)
            async with anyio.create_task_group() as watchers:
                # acknowledged only afterwards: the client relies on every notification from then on
                are_followed = anyio.Event()
                watchers.start_soon(self._follow_all, listener, uris, find, are_followed)
                with anyio.move_on_after(START_PATIENCE):
                    await are_followed.wait()
                listener.acknowledge(acknowledged)
                for task_id in acknowledged.get("taskIds", ()):
                    watchers.start_soon(self._watch_task, request, task_id, listener)
                await listener.ended.wait()
                watchers.cancel_scope.cancel()
        finally:
            self._streams.discard(listener)
            self._stream_shares.give(holder)
            # its client is gone, which cancelled this; servers should still hear that nobody
            # listens
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self._forget(listener)
        return jsonrpc.encode({"resultType": "complete", "_meta": meta})

    async def _watch_task(self, request: ClientRequest, task_id: str, listener: Listener) -> None:
        assert self.tasks is not None  # noqa: S101 - only such ids are acknowledged
        try:
            await self.tasks.watch(request, task_id, listener.tell)
        except (MultitapError, RpcError) as exc:
            logger.info("a task is not followed any longer: %s", exc)

    async def follow(self) -> None:
        """Notify clients of what changes at the servers, until cancelled."""
        with self._hub.events.subscribe(BACKLOG, calls=False) as events:
            async for event in events:
                match event:
                    case ResourceUpdated(server, uri):
                        for listener in self._followers.get((server, uri), ()):
                            if self._view(listener.audience).has(server):
                                listener.on_updated(event)
                    case ListsAnnounced():
                        await anyio.sleep(DEBOUNCE)
                        self._tell_of_lists(event)
                    case CatalogChanged() | Reloaded():
                        # servers come up together; what happens meanwhile waits in the backlog
                        await anyio.sleep(DEBOUNCE)
                        self._tell_of_lists()
                    case LinkChanged(server, LinkState.CONNECTED):
                        self.log_levels.on_connected(server)
                    case _:
                        continue

    def close(self) -> None:
        """End all streams of changes with their final message."""
        for listener in self._streams:
            listener.ended.set()

    def _tell_of_lists(self, announced: ListsAnnounced | None = None) -> None:
        if not self._is_listed:
            return
        # no await in here: a view shown meanwhile would be missing in this comparison and the next
        for audience, seen_views in tuple(self._shown.items()):
            listeners = [
                listener for listener in self._listeners() if listener.audience == audience
            ]
            if not listeners:
                del self._shown[audience]
                continue
            view = self._view(audience)
            self._shown[audience] = [view]
            # with every view they may have seen: a tool that appeared and vanished is a change, too
            kinds = frozenset[str]().union(*(view.differences(seen) for seen in seen_views))
            if announced is not None and _concerns(announced, view):
                # only for those who see all: others must not learn of what they do not see
                kinds |= announced.kinds
            for listener in listeners:
                listener.lists_changed(kinds)

    def _listeners(self) -> tuple[Listener, ...]:
        # at one replica of a cluster only, or the client would be notified more than once
        clients = self._clients.items()
        sessions = [
            listener
            for client, listener in clients
            if client.replicas is None or not client.replicas.is_remote
        ]
        return (*sessions, *self._streams)

    async def _follow_all(
        self, listener: Listener, uris: list[str], find: Find, are_followed: anyio.Event
    ) -> None:
        """Follow resources; later changes are reported."""
        async with anyio.create_task_group() as tasks:
            for uri in uris:
                tasks.start_soon(self._try_to_follow, listener, uri, find)
        are_followed.set()

    async def _try_to_follow(self, listener: Listener, uri: str, find: Find) -> None:
        """Subscribe to a resource; errors are logged, since other resources are not affected."""
        try:
            link, raw = await find(uri)
            await self._follow(listener, uri, link, raw)
        except (MultitapError, RpcError) as exc:
            logger.info("cannot subscribe to %r: %s", uri, exc)

    async def _follow(self, listener: Listener, uri: str, link: Link, raw: str) -> None:
        if uri in listener.uris:
            return
        if len(uri) > LONGEST_URI:
            raise RpcError(SERVER_ERROR, f"an address has at most {LONGEST_URI} characters")
        if len(listener.uris) >= MOST_URIS:
            raise RpcError(SERVER_ERROR, f"a client can subscribe to at most {MOST_URIS} resources")
        if not self._followed_shares.take(listener.holder):
            raise RpcError(SERVER_ERROR, self._followed_shares.refusal(listener.holder))
        # before the server is asked: a change may come together with its answer
        listener.uris[uri] = (link, raw)
        self._followers.setdefault((link.name, raw), {})[listener] = link
        try:
            await link.notifications.subscribe(raw)
        except MultitapError:
            # this also returns the share that was taken above
            await self._unfollow(listener, uri)
            raise

    async def _unfollow(self, listener: Listener, uri: str) -> None:
        # removed before the server is notified: of two concurrent unsubscriptions, one does it
        link, raw = listener.uris.pop(uri, (None, ""))
        if link is None:
            return
        self._followed_shares.give(listener.holder)
        followers = self._followers.get((link.name, raw), {})
        followers.pop(listener, None)
        if not followers:
            self._followers.pop((link.name, raw), None)
        # others may be subscribed to it in the same session
        if link not in followers.values():
            try:
                await link.notifications.unsubscribe(raw)
            except MultitapError as exc:
                logger.info("%s", exc)

    async def _forget(self, listener: Listener) -> None:
        for uri in tuple(listener.uris):
            await self._unfollow(listener, uri)
