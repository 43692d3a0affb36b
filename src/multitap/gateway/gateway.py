"""The hub, served to MCP clients as one server."""

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import EVERYBODY, Audience
from multitap.catalog.catalog import Catalog
from multitap.config.sources import state_directory
from multitap.errors import LONGEST_QUOTE, MultitapError, shortened, ungrouped
from multitap.events import LinkState, withheld_note
from multitap.gateway import client_errors
from multitap.gateway.calls import ClientLookup, JobRunner, OfferRequests, ToolCalls
from multitap.gateway.client import (
    SHOWS_PAGES,
    Client,
    ClientRequest,
    declared_extensions,
    log_level,
    shows_pages,
)
from multitap.gateway.connections import AccountConnections, ConnectLinks
from multitap.gateway.lists import ClientLists, Cursors
from multitap.gateway.logins import ClientLogins
from multitap.gateway.metrics import GatewayMetrics
from multitap.gateway.parked_calls import TTL, ParkedCalls
from multitap.gateway.pass_through import PassThrough, is_custom
from multitap.gateway.person_questions import PersonQuestions
from multitap.gateway.private_links import ExclusiveUse, PrivateLinks
from multitap.gateway.questions import ServerRequests
from multitap.gateway.quotas import FILE as QUOTA_FILE
from multitap.gateway.quotas import Quotas
from multitap.gateway.readiness import LONGEST, report, wait_for_servers
from multitap.gateway.shaping import ResultShaper
from multitap.gateway.skills import SKILLS, SkillRequests
from multitap.gateway.subscriptions import Subscriptions
from multitap.gateway.task_calls import TaskCalls, TaskPlaces
from multitap.gateway.task_dialects import TaskIds
from multitap.gateway.tasks import ClientTasks
from multitap.gateway.tool_search import ToolSearch
from multitap.gateway.traces import RequestTraces
from multitap.gateway.variants import Variants
from multitap.gateway.view import GROUPING, View
from multitap.hub.hub import Hub
from multitap.limits import Shares
from multitap.principal import Person
from multitap.tasks import Tasks, keep_going
from multitap.upstream.link import Link
from multitap.upstream.questions import Handlers
from multitap.version import VERSION
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import EMPTY, UNPARSABLE, ClientMessage, Result, RpcError, parse_table

if TYPE_CHECKING:
    from multitap.cluster import bus as replica_bus

_CAPABILITIES: Mapping[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
_NOT_PASSED = frozenset({jsonrpc.TASKS, SKILLS, GROUPING})
"""Extensions of servers that clients do not see as such: we have them ourselves, or not at all."""
_SHOWS_PAGES = Raw(jsonrpc.encode(SHOWS_PAGES))
_TASKS: Mapping[str, Any] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
_LATEST = jsonrpc.HANDSHAKE_VERSIONS[-1]
_HANDSHAKE = 64 * 1024
"""Bytes of a client's handshake, which are kept as long as the client is connected."""


class _Initialize(msgspec.Struct):
    protocolVersion: str = ""  # noqa: N815 - the wire's spelling
    capabilities: Raw = EMPTY
    clientInfo: dict[str, Any] = {}  # noqa: N815 - a struct copies its defaults


OURSELVES: Mapping[str, str] = {"name": "multitap", "title": "Multitap", "version": VERSION}


class Introduction:
    """Answers `initialize` and `server/discover`: identity, capabilities and instructions."""

    def __init__(
        self,
        hub: Hub,
        view: Callable[[Audience], View],
        info: Mapping[str, str],
        pass_through: PassThrough,
        skills: SkillRequests,
    ) -> None:
        self._hub = hub
        self._view = view
        self._info = info
        self._pass_through = pass_through
        self._skills = skills

    async def initialize(self, request: ClientRequest, params: Raw) -> Result:
        if len(params) > _HANDSHAKE:
            raise RpcError(
                client_errors.INVALID_PARAMS, f"a handshake has at most {_HANDSHAKE} bytes"
            )
        hello = msgspec.json.decode(params, type=_Initialize)
        is_supported = hello.protocolVersion in jsonrpc.HANDSHAKE_VERSIONS
        # an unknown version gets our latest (as MCP says): the client decides whether to go on
        version = hello.protocolVersion if is_supported else _LATEST
        capabilities = hello.capabilities.copy()  # or it would keep the whole request
        client = request.client
        client.introduce(version, capabilities, hello.clientInfo)
        if client.replicas is not None:
            try:
                await client.replicas.save()
            except MultitapError:
                client.version = ""  # or it would be unknown
                raise
        description = self._describe(request)
        if version == _LATEST:  # the only version of this era that has tasks
            tasks: Mapping[str, Any] = _TASKS
            if client.principal.task_owner:
                tasks = {**_TASKS, "list": {}}
            description["capabilities"] = {**description["capabilities"], "tasks": tasks}
        return jsonrpc.encode({"protocolVersion": version, **description})

    async def discover(self, request: ClientRequest, _: Raw) -> Result:
        description = self._describe(request)
        capabilities = description["capabilities"]
        extensions: dict[str, Any] = {**capabilities.get("extensions", {}), jsonrpc.TASKS: {}}
        description["capabilities"] = {**capabilities, "extensions": extensions}
        info = description.pop("serverInfo")
        return jsonrpc.encode(
            {
                "resultType": "complete",
                # not kept: servers come and go, and what they declare is part of it
                "ttlMs": 0,
                "cacheScope": "private",
                "supportedVersions": [*jsonrpc.STATELESS_VERSIONS],
                **description,
                "_meta": {jsonrpc.SERVER_INFO_KEY: info},
            }
        )

    def _describe(self, request: ClientRequest) -> dict[str, Any]:
        audience = request.client.audience
        others = self._pass_through.capabilities(audience, _NOT_PASSED)
        others["extensions"] = {**others.get("extensions", {}), GROUPING: {}}
        if (settings := self._skills.capability(audience)) is not None:
            others["extensions"] = {**others.get("extensions", {}), SKILLS: settings}
        description: dict[str, Any] = {
            "capabilities": {**others, **_CAPABILITIES},
            "serverInfo": self._info,
        }
        if instructions := self._instructions(request.client.audience):
            description["instructions"] = instructions
        return description

    def _instructions(self, audience: Audience) -> str:
        """The instructions of each server under its name, or why they are missing."""
        view = self._view(audience)
        sections = [
            f"# {link.name}\n{text}"
            for link in view.catalog.links.values()
            if view.has(link.name) and (text := _about(link, view.catalog.mute))
        ]
        if note := withheld_note(self._hub.withheld):
            sections.append(f"# multitap\n{note}.")
        return "\n\n".join(sections)


def _about(link: Link, mute: Collection[str]) -> str | None:
    if link.session is not None:
        return None if link.name in mute else link.session.instructions
    if link.state is LinkState.NEEDS_AUTH and link.failure is not None and link.failure.hint:
        return f"This server waits for a login: {link.failure.hint}."
    return None


MOST_REQUESTS = 16_384
"""Requests of all clients on streams that may be in progress at the same time."""

_IN_SESSIONS = frozenset(
    {"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)
"""Methods that are answered without waiting: the next request may depend on them."""
_AT_HOME = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that only one replica handles: the one that notifies the client of changes."""
_VIEWS = 256
"""Views that are cached; beyond that, all are built again."""


class Gateway:
    """One hub, shown to any number of clients; made by `open_gateway`.

    Args:
        hub: Has the servers.
        tasks: Runs calls that outlive a client's request.
        key: Seals what stateless clients carry for us.
        patience: Seconds a call waits for its client to return with an answer.
        info: The name and version shown to clients.
        person: Answers questions that no client can, while a screen is open.
        bus: The other replicas of a cluster.
    """

    def __init__(  # noqa: PLR0915 - puts everything together
        self,
        hub: Hub,
        tasks: Tasks,
        *,
        key: bytes | None = None,
        patience: float = TTL,
        info: Mapping[str, str] = OURSELVES,
        person: PersonQuestions | None = None,
        bus: "replica_bus.ReplicaBus | None" = None,
    ) -> None:
        self.hub = hub
        self.tasks = tasks
        self.bus = bus
        self.on_rooted: Callable[[str], None] = lambda _: None
        """Called with the name of a server that knows the roots of a client from now on."""
        self.started = time.time()
        self.is_leaving = False
        """Whether this replica is shutting down, so that clients should use another one."""
        self.metrics = GatewayMetrics(hub)
        """What monitoring reads, besides the hub's own counters."""
        self.person = person or PersonQuestions()
        """Questions for the person who runs the gateway."""
        name = "" if bus is None else bus.name
        self.parked_calls = ParkedCalls(tasks, key, ttl=patience, replica=name)
        self.subscriptions = Subscriptions(hub, self.view, tasks)
        self.private = PrivateLinks(hub, tasks)
        self.variants = Variants(hub, self.private, declared_extensions(_SHOWS_PAGES))
        """What there is for clients that declare other extensions."""
        self.exclusive_use = ExclusiveUse(self.private, tasks)
        self.under_way = Shares(MOST_REQUESTS, "requests at a time")
        """Limits the requests of clients on streams, which are not limited by connections."""
        check_seat: Callable[[Client, str], Awaitable[None]] | None = None
        if bus is not None:
            from multitap.cluster.gateways import SessionAffinity  # noqa: PLC0415 - in a cluster only

            check_seat = SessionAffinity(bus).check
        lookup = ClientLookup(hub, self.view, self.variants)
        jobs = JobRunner(
            self.view,
            self.private,
            self.exclusive_use,
            self.parked_calls,
            self.subscriptions,
            check_seat=check_seat,
        )
        self._complete_view = anyio.Event()  # set once the first lists can be sent
        shaper = ResultShaper(self.view, self.metrics.on_shaped, replica=name)
        self.logins = ClientLogins(hub, tasks)
        self.connections = AccountConnections(hub, ConnectLinks(key or os.urandom(32)))
        """Has people connect their own accounts at servers."""
        search = ToolSearch(hub, self.view, self._complete_view.wait)
        if hub.settings.serve.search_model is not None:
            tasks.start_apart(search.learn, hub.settings.serve.search_model)
        self.calls = ToolCalls(
            hub,
            self.view,
            lookup,
            jobs,
            self.private,
            self.parked_calls,
            self.logins,
            search,
            shaper,
            self.connections,
        )
        """Answers `tools/call`."""
        self._traces = None if hub.spans is None else RequestTraces(hub.spans)
        self.calls.traces = self._traces
        self.calls.on_rejected = self.metrics.on_rejected
        state = state_directory(hub.settings.state_dir)
        shared = None if bus is None else bus.coordinator
        quotas = Quotas(hub.settings.serve.quota, state / QUOTA_FILE, shared)
        if quotas.is_limited:
            self.calls.quotas = quotas
            tasks.start_soon(quotas.run)
        ids, is_alive = TaskIds(key, state), None if bus is None else bus.is_alive
        places = TaskPlaces()
        self.task_calls = TaskCalls(
            hub.runs, self.calls, jobs, self.parked_calls, ids, places=places
        )
        """Makes tasks of calls."""
        self.calls.take_task = self.task_calls.call
        cursors = Cursors(lambda: self.parked_calls.seal)
        self.client_tasks = ClientTasks(
            hub, self.view, jobs, ids, places=places, cursors=cursors, is_alive=is_alive
        )
        """Answers what clients ask about their tasks."""
        self.subscriptions.tasks = self.client_tasks
        offers = OfferRequests(
            hub, lookup, jobs, self.subscriptions, shaper, self.parked_calls, self.connections
        )
        self.pass_through = PassThrough(
            lookup, self.variants, self.view, self.private, offers.send, tasks
        )
        """Passes on what MCP does not define."""
        skills = SkillRequests(self.view, lookup, self._wait_complete, cursors)
        lists = ClientLists(self.view, cursors, self._wait_complete)
        introduction = Introduction(hub, self.view, info, self.pass_through, skills)
        self._views: dict[Audience, View] = {}
        self._methods: Mapping[str, Callable[[ClientRequest, Raw], Awaitable[Result]]] = {
            "initialize": introduction.initialize,
            "ping": self._ping,
            "server/discover": introduction.discover,
            "prompts/get": offers.prompt,
            "resources/read": offers.read,
            "completion/complete": offers.complete,
            "logging/setLevel": self._set_level,
            "resources/subscribe": offers.subscribe,
            "resources/unsubscribe": offers.unsubscribe,
            "subscriptions/listen": offers.listen,
            **lists.methods,
            **self.client_tasks.methods,
            "skills/list": skills.list,
            "skills/get": skills.get,
            "resources/directory/read": skills.read_directory,
        }

    @property
    def is_ready(self) -> bool:
        """Whether clients should use it now: it has its first lists, and does not shut down."""
        return self._complete_view.is_set() and not self.is_leaving

    def view(self, audience: Audience = EVERYBODY) -> View:
        """What clients of an audience see now."""
        view, hub = self._views.get(audience), self.hub
        if (
            view is not None
            and view.basis is hub.catalog
            and view.defaults is hub.gateway_defaults
            # a person's catalog can change without the hub's: it is looked up each time
            and (hub.people is None or not hub.people.is_needed)
        ):
            return view
        return self._follow_changes(audience, view)

    def _follow_changes(self, audience: Audience, view: View | None) -> View:
        """The view of an audience, which may depend on more than the hub's catalog."""
        hub = self.hub
        if (
            view is None
            or view.catalog is not self._catalog(audience)
            or view.profiles is not hub.settings.profiles
            or view.defaults is not hub.gateway_defaults
        ):
            view = self._renew_view(audience, view)
        is_usual = view.catalog is hub.catalog and self.variants.is_usual(audience.declared)
        view.basis = hub.catalog if is_usual else None
        return view

    def _catalog(self, audience: Audience) -> Catalog:
        """The catalog of an audience: a person's own, or that for the extensions they declare."""
        people = self.hub.people
        if audience.person is not None and people is not None and people.is_needed:
            return people.catalog(audience.person, self.hub.catalog)
        return self.variants.catalog(audience.declared)

    async def _wait_complete(self, audience: Audience) -> None:
        """Wait until the lists of an audience can be sent."""
        people = self.hub.people
        # one limit for both: each alone is what clients have patience for
        with anyio.move_on_after(LONGEST):
            await self._complete_view.wait()
            if audience.person is not None and people is not None and people.is_needed:
                await people.wait_ready(audience.person)
            else:
                await self.variants.wait_ready(audience.declared)

    def _renew_view(self, audience: Audience, view: View | None) -> View:
        hub, profiles = self.hub, self.hub.settings.profiles
        catalog, defaults = self._catalog(audience), hub.gateway_defaults
        if audience.person is not None and not (hub.people and hub.people.is_needed):
            # nothing is this person's own: all with the same rights share one view
            if len(self._views) >= _VIEWS:
                self._views.clear()
            view = self._views[audience] = self.view(audience._replace(person=None))
            self.subscriptions.on_shown(audience, view)
            return view
        limits = audience.limits(profiles)
        if (
            view is not None
            and (view.catalog is catalog and view.defaults is defaults)
            and view.limits == limits
        ):
            # a reload makes all profiles again, and most of them are as before
            view.profiles = profiles
            return view
        if len(self._views) >= _VIEWS:  # tokens come and go
            self._views.clear()
        view = self._views[audience] = View(
            catalog,
            limits,
            profiles,
            defaults,
            hub.settings.serve,
            shows_pages=shows_pages(audience.declared),
            shows_groups=f'"{GROUPING}"' in audience.declared,
        )
        self.subscriptions.on_shown(audience, view)
        return view

    async def answer(self, request: ClientRequest, message: ClientMessage) -> Result:
        """The result of a client's request, other than of `tools/call`.

        Raises:
            RpcError: There is none, and why.
        """
        began, failure = perf_counter(), None
        traces = self._traces
        try:
            if traces is None or (span := traces.begin(request, message.method)) is None:
                return await self._answer(request, message)
            return await traces.serve(span, request, lambda it: self._answer(it, message))
        except BaseException as exc:
            failure = exc
            raise
        finally:
            self.metrics.on_request(message.method, perf_counter() - began, failure)
            failure = None  # breaks the reference cycle of error and frame

    async def _answer(self, request: ClientRequest, message: ClientMessage) -> Result:
        method, params = message.method, message.params
        handler = self._methods.get(method)
        if request.is_stateless and method in _IN_SESSIONS:  # they need a session
            raise RpcError(
                client_errors.NO_METHOD, f"Method not found: {shortened(method, LONGEST_QUOTE)}"
            )
        try:
            if method in _AT_HOME and (replicas := request.client.replicas) is not None:
                if (result := await replicas.request(method, params)) is not None:
                    return result
                result = await self._methods[method](request, params)
                await replicas.save()
                return result
            if handler is not None:
                return await handler(request, params)
            if is_custom(method):
                return await self.pass_through.answer(request, method, params)
        except MultitapError as exc:
            raise client_errors.refusal_of(exc) from None
        except UNPARSABLE as exc:
            raise RpcError(
                client_errors.INVALID_PARAMS, f"the parameters cannot be read: {exc}"
            ) from None
        raise RpcError(
            client_errors.NO_METHOD, f"Method not found: {shortened(method, LONGEST_QUOTE)}"
        )

    def on_answered(self, request: ClientRequest | None, arrived: float) -> None:
        """Count what we added to a call whose answer has just been written.

        Args:
            request: The client's request; None if it could not be read.
            arrived: When its last bytes were read, by `perf_counter`.
        """
        if request is not None and (result := request.result) is not None and result.waited:
            added = perf_counter() - arrived - result.waited
            self.hub.metrics.on_answered((result.server, result.tool, added))

    def on_notification(self, client: Client, method: str, params: Raw) -> None:
        """Take a client's notification."""
        if self._traces is not None:
            self._traces.on_notification(client, method, params)
        if method == "notifications/cancelled":
            try:
                client.cancel(parse_table(params).get("requestId", Raw(b"")))
            except UNPARSABLE:
                return
        elif method in {"notifications/initialized", "notifications/roots/list_changed"}:
            self.subscriptions.on_joined(client)
            # in a task: notifications come in callbacks
            self.tasks.start_apart(self._roots_changed, client)
        elif is_custom(method):
            self.pass_through.on_notification(client, method, params)

    async def watch_start(self) -> None:
        """Make the first lists wait for servers whose offers are not known from an earlier run."""
        await wait_for_servers(self.hub)
        self.subscriptions.begin()
        self._complete_view.set()

    async def on_left(self, client: Client) -> None:
        """Drop everything that belongs to a client that has left."""
        client.leave()
        self.private.drop(client)
        await self.subscriptions.on_left(client)

    async def _roots_changed(self, client: Client) -> None:
        """Have servers ask for roots again, if it is certain which client they ask."""
        if b'"roots"' not in bytes(client.capabilities):
            return
        for link in self.hub.links.values():
            if self.subscriptions.only(link.name) is client:
                await link.requests.tell("notifications/roots/list_changed")

    async def _ping(self, request: ClientRequest, params: Raw) -> Result:  # noqa: ARG002 - one of many
        return b"{}"

    async def _set_level(self, request: ClientRequest, params: Raw) -> Result:
        level = log_level(parse_table(params).get("level", Raw(b"null")))
        request.client.log_level = level
        self.subscriptions.on_joined(request.client)
        await self.subscriptions.log_levels.on_changed()
        await self.variants.agree_on_logs(request.client.audience.declared)
        return b"{}"


class _ConnectedClients:
    """The connected clients, for handlers that are made before the gateway."""

    def __init__(self) -> None:
        self.gateway: Gateway | None = None

    def only(self, server: str, person: Person | None = None) -> Client | None:
        return self.gateway.subscriptions.only(server, person) if self.gateway else None

    def handlers_for(self, person: Person) -> Handlers:
        # no client of another person, and not the one who runs the gateway, is asked
        return ServerRequests(partial(self.only, person=person), self.sees).handlers()

    def on_rooted(self, server: str) -> None:
        if self.gateway is not None:
            self.gateway.on_rooted(server)

    def sees(self, client: Client, server: str) -> bool:
        return self.gateway is not None and self.gateway.view(client.audience).has(server)


@asynccontextmanager
async def open_gateway(
    open_hub: Callable[[Handlers], Any],
    *,
    host: Handlers = Handlers(),
    key: bytes | None = None,
    patience: float = TTL,
    info: Mapping[str, str] = OURSELVES,
    replica: "replica_bus.ReplicaIdentity | None" = None,
) -> AsyncGenerator[Gateway]:
    """A running gateway; leaving the block ends every call it works on.

    Args:
        open_hub: Opens the hub with the given handlers.
        host: Answers what no client can.
        key: Seals what stateless clients carry for us; replicas share it.
        patience: Seconds a call waits for a stateless client to return with an answer.
        info: The name and version shown to clients.
        replica: The identity of this replica in a cluster.
    """
    # a screen shows the questions of all workers together
    clients, person = (
        _ConnectedClients(),
        PersonQuestions(1 if replica is None else os.getpid() << 24),
    )
    with ungrouped():
        async with (
            open_hub(
                ServerRequests(
                    clients.only, clients.sees, host, person, clients.on_rooted
                ).handlers()
            ) as hub,
            Tasks() as tasks,
        ):
            bus = None
            if replica is not None:
                from multitap.cluster import bus as replica_bus  # noqa: PLC0415 - in a cluster only

                key, bus = replica.key, replica_bus.ReplicaBus(replica, tasks)
                tasks.start_soon(bus.run)
            gateway = clients.gateway = Gateway(
                hub, tasks, key=key, patience=patience, info=info, person=person, bus=bus
            )
            if bus is not None:
                from multitap.cluster import gateways  # noqa: PLC0415 - in a cluster only

                # whatever a client began at one replica may go on at any other
                gateways.share_restarts(bus, hub)
                hub.runs.records, hub.runs.runner = gateways.SharedTasks(bus), bus.name
                hub.calls.permissions.continuations.share(bus.coordinator.records, bus.seal)
                gateway.calls.shared = bus.coordinator.records, bus.seal
                # otherwise each process writes its own entries: all have the same disk
                if bus.coordinator.outlives_us:
                    hub.store.audit_relay = audit = gateways.SharedAudit(bus, hub.store)
                    tasks.start_soon(audit.run)
                    tasks.start_soon(audit.keep_sending)
                # before any client is served: its first answer may arrive at another replica
                await bus.wait_listening()
            if hub.people is not None:
                hub.people.common.handlers_for = clients.handlers_for
            tasks.start_soon(gateway.subscriptions.follow)
            tasks.start_soon(gateway.private.follow)
            tasks.start_soon(gateway.watch_start)
            tasks.start_soon(keep_going, report, hub)
            try:
                yield gateway
            finally:
                # streams get their final message before their tasks are cancelled
                gateway.subscriptions.close()
                await gateway.calls.close()
