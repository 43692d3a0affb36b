"""Handles a server's notifications: changed lists, updated resources, log messages."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Raw

from multitap.errors import MultitapError, WireFault, quoted, shortened
from multitap.events import ListsAnnounced, ResourceUpdated, ServerLog, Warned
from multitap.tasks import Bell, Latch, now
from multitap.upstream.availability import Availability
from multitap.upstream.handshake import Era
from multitap.upstream.lists import Listing
from multitap.upstream.questions import OnUnowned, client_of
from multitap.upstream.report import ServerReport
from multitap.upstream.requests import RequestPath
from multitap.upstream.session import Session
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError

logger = logging.getLogger(__name__)

DEBOUNCE, RELIST_GAP = 0.1, 1.0
"""Seconds from a change to the new list, and the least seconds between two lists."""
FIRST_RETRY, LONGEST_RETRY = 2.0, 300.0
"""Seconds until failed lists are fetched again; doubled each time."""
RELISTEN = 1.0  # seconds before a stream of changes that ended is opened again
SUBSCRIBE_TIMEOUT = 5.0
GRANT_TIMEOUT = 1.0
"""Seconds a subscriber waits for an acknowledgement, which is optional."""
LOGS_PER_SECOND = 100  # of one server: each becomes an event

_LIST_CHANGED = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
    }
)

_CHANGES = _LIST_CHANGED | {"notifications/resources/updated"}
"""Notifications for all clients, no matter which call they arrive with."""

_LISTENING = "notifications/subscriptions/acknowledged"
"""After this, changes are reported; earlier ones show only in a new list."""


class _Updated(msgspec.Struct):
    uri: str
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class _LogNotification(msgspec.Struct):
    level: str = "info"
    logger: str | None = None
    data: Any = None


_parse_updated = msgspec.json.Decoder(_Updated).decode
_parse_log = msgspec.json.Decoder(_LogNotification).decode


class Notifications:
    """The notifications of one server, over all its sessions.

    `on_unowned` is called with what belongs to no call and does not concern everybody. Without a
    `log_level`, the server decides which log messages it sends.
    """

    def __init__(
        self,
        availability: Availability,
        requests: RequestPath,
        report: ServerReport,
        *,
        on_unowned: OnUnowned | None = None,
        log_level: str | None = None,
    ) -> None:
        self._name = report.name
        self._on_unowned = on_unowned
        self.log_level = log_level
        """The log level that was set at the server; None: the server decides."""
        self._on_event = report.tell
        self._report = report
        self._availability = availability
        self._requests = requests
        self._lists_changed = Latch()
        self._is_due = False
        """Whether somebody asked for the lists, and they are no longer fresh."""
        self._announced: set[str] = set()
        """The kinds of lists that changed, as the server said."""
        self._listed = False
        self._uris: set[str] = set()
        self._uris_changed = Bell()
        self._requested_uris: frozenset[str] = frozenset()
        """The resources that the stateless stream was last opened with."""
        self._granted_uris: frozenset[str] = frozenset()
        """The resources that the server last acknowledged."""
        self._granted = Bell()
        self._log_second = 0
        self._log_allowance = 0

    def on_notification(self, method: str, params: Raw, call: object | None) -> None:
        """Handle one notification; cheap, because a server may send a flood of them."""
        # changes go to everybody as events; the rest belongs to one client
        if method not in _CHANGES:
            self._pass_on(method, params, call)
        if method == _LISTENING:
            self._granted_uris = self._requested_uris
            self._granted.ring()
        if method in _LIST_CHANGED or (method == _LISTENING and self._listed):
            if method in _LIST_CHANGED:
                self._announced.add(method.split("/")[1])
            self._lists_changed.set()
            return
        try:
            if method == "notifications/resources/updated":
                self._on_updated(_parse_updated(params))
            elif method == "notifications/message" and self._may_log():
                log = _parse_log(params)
                text = log.data if isinstance(log.data, str) else jsonrpc.encode(log.data).decode()
                self._on_event(ServerLog(self._name, log.level, log.logger, text))
        except jsonrpc.UNPARSABLE:
            logger.debug("%s: a %s that cannot be read", self._name, shortened(method, 100))

    def _on_updated(self, updated: _Updated) -> None:
        meta = updated.meta
        if meta:
            # names our own subscription, not that of a client
            meta.pop(jsonrpc.SUBSCRIPTION_ID_KEY, None)
            meta = self._report.redact.data(meta) if meta else None
        event = ResourceUpdated(self._name, updated.uri, meta or None, self._report.session)
        self._on_event(event)

    def _pass_on(self, method: str, params: Raw, call: object | None) -> None:
        if (client := client_of(call)) is not None:
            client.on_notification(method, self._report.redact.raw(params))
        elif call is None and self._on_unowned is not None and method != _LISTENING:
            self._on_unowned(self._name, method, self._report.redact.raw(params))

    def request_lists(self) -> None:
        """Have the lists fetched again now: they are no longer fresh."""
        self._is_due = True
        self._lists_changed.set()

    async def follow_lists(self, listing: Listing, session: Session) -> None:
        """Fetch the lists again after each burst of changes; until then the old ones stay.

        As long as a list could not be fetched, they are fetched regularly.
        """
        is_complete = listing.is_complete
        self._listed = True
        pause = FIRST_RETRY
        while True:
            changed = False
            with anyio.move_on_after(None if is_complete else pause):
                await self._lists_changed.wait()
                changed = True
            if changed:
                # a server that changes ten tools sends ten notifications
                if not self._is_due:
                    await anyio.sleep(DEBOUNCE)
                self._is_due = False
                # before the lists are fetched: changes meanwhile trigger another fetch
                self._lists_changed = Latch()
            kinds, self._announced = frozenset(self._announced), set()
            before = listing.offers
            is_complete = await listing.refetch(session, changed=changed)
            # a difference shows in the catalog; a tool that came and went does not
            if kinds and listing.offers == before:
                self._on_event(ListsAnnounced(self._name, kinds, self._report.session))
            pause = FIRST_RETRY if is_complete or changed else min(2 * pause, LONGEST_RETRY)
            # some servers change their lists whenever they are listed
            await anyio.sleep(RELIST_GAP)

    @property
    def is_followed(self) -> bool:
        """Whether there are subscriptions to its resources."""
        return bool(self._uris)

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource, now and after every restart.

        Raises:
            UpstreamError: The server refuses or does not answer.
        """
        if uri not in self._uris:
            self._uris.add(uri)
            try:
                await self._change("resources/subscribe", uri)
            except (MultitapError, RpcError):
                self._uris.discard(uri)  # otherwise the next attempt would not even ask
                raise

    async def unsubscribe(self, uri: str) -> None:
        if uri in self._uris:
            self._uris.discard(uri)
            await self._change("resources/unsubscribe", uri)

    async def want_logs(self, level: str) -> None:
        """Set the level of its log messages, now and after every restart.

        Raises:
            UpstreamError: The server refuses or does not answer.
        """
        if level == self.log_level:
            return
        # first: a server that is down or refuses is asked again when it reconnects
        self.log_level = level
        session = self._availability.session
        if session is not None and session.era is Era.HANDSHAKE and session.capabilities.logging:
            await self._ask(session, "logging/setLevel", {"level": level})

    async def _change(self, method: str, uri: str) -> None:
        self._uris_changed.ring()
        session = self._availability.session
        if session is None:
            return
        if session.era is Era.HANDSHAKE:
            await self._ask(session, method, {"uri": uri})
            return
        with anyio.move_on_after(GRANT_TIMEOUT):
            while uri in self._uris and uri not in self._granted_uris:
                await self._granted.wait()

    async def _ask(self, session: Session, method: str, params: dict[str, Any]) -> None:
        try:
            await session.ask(method, params, timeout=SUBSCRIBE_TIMEOUT)
        except (RpcError, WireFault) as exc:
            raise await self._requests.public_error(exc, method) from None

    @asynccontextmanager
    async def receive(self, session: Session) -> AsyncGenerator[None]:
        """Receive notifications, in the way of the server's era.

        Entered before the first list is fetched, so that no change in between is missed.
        """
        self._listed = False
        self._granted_uris = frozenset()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._request_notifications, session)
            # lets the task begin, so that the stream is requested before the lists
            await anyio.lowlevel.checkpoint()
            yield
            tasks.cancel_scope.cancel()

    async def _request_notifications(self, session: Session) -> None:
        if session.era is Era.STATELESS:
            await self._listen(session)
        if self.log_level is not None and session.capabilities.logging is not None:
            await self._request_or_warn(session, "logging/setLevel", {"level": self.log_level})
        for uri in tuple(self._uris):
            await self._request_or_warn(session, "resources/subscribe", {"uri": uri})

    async def _request_or_warn(self, session: Session, method: str, params: dict[str, Any]) -> None:
        try:
            await session.ask(method, params, timeout=SUBSCRIBE_TIMEOUT)
        except (RpcError, WireFault) as exc:
            self._on_event(Warned(self._name, f"it refuses {method} {quoted(params)}: {exc}"))

    async def _listen(self, session: Session) -> None:
        """Keep the stateless stream of changes open, and reopen it when it ends."""
        while True:
            subscription = _subscription(session, self._uris)
            self._requested_uris = frozenset(self._uris)
            async with anyio.create_task_group() as tasks:
                if subscription:
                    tasks.start_soon(self._listen_once, session, subscription)
                # another set needs a new stream: an open one cannot be changed
                await self._uris_changed.wait()
                tasks.cancel_scope.cancel()

    async def _listen_once(self, session: Session, subscription: dict[str, Any]) -> None:
        params = {"notifications": subscription}
        try:
            await session.ask("subscriptions/listen", params, timeout=None)
        except RpcError as exc:
            # not repeated: the server would refuse again
            self._on_event(Warned(self._name, f"it does not report changes: {exc}"))
            return
        except WireFault as exc:
            logger.debug("%s: its stream of changes ended: %s", self._name, type(exc).__name__)
        await anyio.sleep(RELISTEN)
        self._lists_changed.set()  # changes may have been missed
        self._uris_changed.ring()

    def _may_log(self) -> bool:
        # a counter for each second, no queue: a flood of logs must not cost memory
        second = int(now())
        if second != self._log_second:
            self._log_second, self._log_allowance = second, LOGS_PER_SECOND
        self._log_allowance -= 1
        return self._log_allowance >= 0


def _subscription(session: Session, uris: set[str]) -> dict[str, Any]:
    """The notifications to request on the stateless stream."""
    can = session.capabilities
    subscription: dict[str, Any] = {}
    if can.tools and can.tools.list_changed:
        subscription["toolsListChanged"] = True
    if can.prompts and can.prompts.list_changed:
        subscription["promptsListChanged"] = True
    if can.resources and can.resources.list_changed:
        subscription["resourcesListChanged"] = True
    if uris:
        subscription["resourceSubscriptions"] = sorted(uris)
    return subscription
