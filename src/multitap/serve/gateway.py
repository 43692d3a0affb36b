"""Every server as one: what a client asks for, whatever era it and the servers speak."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog import Tool
from multitap.config import Profile
from multitap.errors import (
    LONGEST_QUOTE,
    BadAnswer,
    BadArguments,
    MultitapError,
    NotAllowed,
    UnknownName,
    quoted,
    shortened,
    ungrouped,
)
from multitap.hub import Hub
from multitap.records import dataclass
from multitap.router import Route, look_up, unknown
from multitap.serve import faults
from multitap.serve.asking import Asking
from multitap.serve.changes import Changes, parse_wanted
from multitap.serve.degradation import report
from multitap.serve.errands import TTL, Errands
from multitap.serve.first_list import wait_for_servers
from multitap.serve.floor import Floors
from multitap.serve.message import (
    EMPTY,
    RESERVED,
    UNPARSABLE,
    Refused,
    legacy,
    modern,
    parse_table,
    text_of,
)
from multitap.serve.peer import Peer, log_level
from multitap.serve.private import PrivateLinks
from multitap.serve.turn import Turn
from multitap.serve.view import View
from multitap.shares import Shares
from multitap.tasks import Tasks, in_task
from multitap.upstream.caller import CallContext, rival_of
from multitap.upstream.handlers import Handlers
from multitap.upstream.link import Link
from multitap.upstream.session import Era
from multitap.version import VERSION
from multitap.wire import envelope, vocabulary
from multitap.wire.deadline import Deadline
from multitap.wire.request import made, members

Result = Raw | bytes
_Found = TypeVar("_Found")

MOST_REQUESTS = 16_384
"""Requests of clients on streams, all together, that are worked on at the same time."""

_CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
_IN_SESSIONS = frozenset(
    {"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)
_AT_ONCE = frozenset({"initialize", "ping", "server/discover"})
"""What is answered without waiting: the next request may follow from it."""
_LATEST = vocabulary.HANDSHAKE_VERSIONS[-1]
_NOTHING = Profile(servers=())
"""What clients of a profile see that is no more."""
_APPS = "ui://"
"""How the addresses of the pages of MCP apps begin."""
_HANDSHAKE = 64 * 1024
"""Bytes a client may say about itself: they are kept for as long as it is there."""


class _Initialize(msgspec.Struct):
    protocolVersion: str = ""  # noqa: N815 - the wire's spelling
    capabilities: Raw = EMPTY
    clientInfo: dict[str, Any] = {}  # noqa: N815 - a struct copies its defaults


class _Complete(msgspec.Struct):
    ref: dict[str, Any] = {}
    argument: Raw = EMPTY
    context: Raw | msgspec.UnsetType = msgspec.UNSET


class Gateway:
    """One hub, shown to any number of clients; made by `open_gateway`.

    Args:
        hub: Whose servers.
        tasks: Where calls run that outlive a client's request.
        key: Seals what stateless clients carry for us.
        patience: Seconds a call waits for its client to come back with an answer.
    """

    def __init__(
        self, hub: Hub, tasks: Tasks, *, key: bytes | None = None, patience: float = TTL
    ) -> None:
        self.hub = hub
        self.tasks = tasks
        self.errands = Errands(tasks, key, ttl=patience)
        self.changes = Changes(hub, self.view, tasks)
        self.private = PrivateLinks(hub, tasks)
        self.floors = Floors(self.private, tasks)
        self.under_way = Shares(MOST_REQUESTS, "requests at a time")
        """Those of clients on streams, where a request holds no connection."""
        self._views: dict[str | None, View] = {}
        self._complete_view = anyio.Event()
        self._methods: Mapping[str, Callable[[Turn, Raw], Awaitable[Result]]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "server/discover": self._discover,
            "prompts/get": self._prompt,
            "resources/read": self._read,
            "completion/complete": self._complete,
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": self._listen,
        }

    def view(self, profile: str | None = None) -> View:
        """What clients of a profile see right now."""
        view, catalog = self._views.get(profile), self.hub.catalog
        wanted = None
        if profile is not None:
            wanted = self.hub.settings.profiles.get(profile, _NOTHING)
        if (
            view is None
            or view.catalog is not catalog
            or view.profile != wanted
            or view.defaults is not self.hub.gateway_defaults
        ):
            view = self._views[profile] = View(catalog, wanted, self.hub.gateway_defaults)
            self.changes.shown(profile, view)
        return view

    def answer(self, turn: Turn, method: str, params: Raw) -> Awaitable[Result]:
        """The result of a client's request.

        Args:
            turn: The request.
            method: What it asks for.
            params: Its parameters.

        Raises:
            Refused, MultitapError: There is none, and why.
        """
        return self._call(turn) if method == "tools/call" else self._answer(turn, method, params)

    async def _answer(self, turn: Turn, method: str, params: Raw) -> Result:
        handler = self._methods.get(method)
        if turn.modern and method in _IN_SESSIONS:  # its peer is everybody of one principal
            raise Refused(faults.NO_METHOD, f"Method not found: {shortened(method, LONGEST_QUOTE)}")
        try:
            if method not in _AT_ONCE:
                await in_task(turn.light)
            if handler is not None:
                return await handler(turn, params)
            await self._complete_view.wait()
            listed = self.view(turn.peer.profile).listed(method, modern=turn.modern)
        except MultitapError as exc:
            raise faults.refusal_of(exc) from None
        except UNPARSABLE as exc:
            raise Refused(faults.INVALID_PARAMS, f"the parameters can not be read: {exc}") from None
        if listed is None:
            raise Refused(faults.NO_METHOD, f"Method not found: {shortened(method, LONGEST_QUOTE)}")
        return listed

    def notified(self, peer: Peer, method: str, params: Raw) -> None:
        """Take a client's notification."""
        if method == "notifications/cancelled":
            try:
                peer.cancel(parse_table(params).get("requestId", Raw(b"")))
            except UNPARSABLE:
                return
        elif method in {"notifications/initialized", "notifications/roots/list_changed"}:
            self.changes.joined(peer)
            self.tasks.start_soon(self._roots_changed, peer)

    async def watch_start(self) -> None:
        """Let the first lists wait for servers whose offers are not known from an earlier run."""
        await wait_for_servers(self.hub)
        self.changes.begin()
        self._complete_view.set()

    async def left(self, peer: Peer) -> None:
        """A client is gone for good: nothing of it stays."""
        peer.leave()
        self.private.drop(peer)
        await self.changes.left(peer)

    async def _roots_changed(self, peer: Peer) -> None:
        """Have servers ask for roots again, where it is certain whose they get."""
        if b'"roots"' not in bytes(peer.capabilities):
            return
        for link in self.hub.links.values():
            if self.changes.only(link.name) is peer:
                await link.tell("notifications/roots/list_changed")

    async def _initialize(self, turn: Turn, params: Raw) -> Result:
        if len(params) > _HANDSHAKE:
            raise Refused(faults.INVALID_PARAMS, f"a handshake has at most {_HANDSHAKE} bytes")
        asked = msgspec.json.decode(params, type=_Initialize)
        known = asked.protocolVersion in vocabulary.HANDSHAKE_VERSIONS
        version = asked.protocolVersion if known else _LATEST
        capabilities = asked.capabilities.copy()  # or it would keep the whole request
        turn.peer.introduce(version, capabilities, asked.clientInfo)
        return envelope.encode({"protocolVersion": version, **self._introduction(turn)})

    async def _discover(self, turn: Turn, _: Raw) -> Result:
        told = self._introduction(turn)
        info = told.pop("serverInfo")
        return envelope.encode(
            {
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
                "supportedVersions": [*vocabulary.STATELESS_VERSIONS],
                **told,
                "_meta": {vocabulary.SERVER_INFO_KEY: info},
            }
        )

    def _introduction(self, turn: Turn) -> dict[str, Any]:
        told: dict[str, Any] = {
            "capabilities": _CAPABILITIES,
            "serverInfo": {
                "name": "multitap",
                "title": "Multitap",
                "version": VERSION,
            },
        }
        if instructions := self._instructions(turn.peer.profile):
            told["instructions"] = instructions
        return told

    def _instructions(self, profile: str | None) -> str:
        """What the servers say about themselves, each under its name."""
        view = self.view(profile)
        told = [
            f"# {link.name}\n{link.session.instructions}"
            for link in self.hub.links.values()
            if link.session and link.session.instructions and view.has(link.name)
        ]
        return "\n\n".join(told)

    async def _ping(self, turn: Turn, params: Raw) -> Result:  # noqa: ARG002 - one of many
        return b"{}"

    async def _call(self, turn: Turn) -> Result:
        params, peer = turn.params, turn.peer
        view, since = self.view(peer.profile), None
        route = view.routes.get(params.name)
        if route is None:
            await in_task(turn.light)
            since = anyio.current_time()
            route = self.view(peer.profile).route(await self._tool(turn, params.name))
        try:
            if not self._is_plain(turn, route):
                await in_task(turn.light)
                return await self._call_in_turn(turn, route, since)
            link = route.link
            context = turn.context() if params.meta else CallContext(guest=turn)
            deadline = None if since is None else route.deadline(context, since)
            meta = extra = b""
            if params.meta or params.request_state is not None:
                meta, extra = _extra(turn, link)
            called = await self.hub.calls.make(
                route, params.arguments, context, deadline, turn.light, meta, extra
            )
        except BadArguments as exc:
            failed = faults.failed_call(exc)
            return modern(failed) if turn.modern else failed
        if turn.modern is (link.era is Era.STATELESS) and link.name not in view.renaming:
            return called.raw
        try:
            return self._translated(turn, link, called.raw)
        except UNPARSABLE as exc:
            words = f"the result can not be read: {exc}"
            raise BadAnswer(link.name, words) from None

    def _translated(self, turn: Turn, link: Link, result: Result) -> Result:
        """A result in the words of its client's era, with the addresses that it knows."""
        references = self.view(turn.peer.profile).references(link.name)
        if references is not None:
            result = references.in_result(result)
        if turn.modern is (link.era is Era.STATELESS):
            return result
        return modern(result) if turn.modern else legacy(result)

    def _is_plain(self, turn: Turn, route: Route) -> bool:
        """Whether a call waits for nothing but its server.

        Others wait for their turn, for a session of their client's own, or for answers of a client
        that can only be asked in between.
        """
        link = route.link
        era = link.era
        if era is None or not route.is_shared:
            return False
        if turn.peer.can_be_asked and not self.private.shares(turn.peer, link):
            return False
        if turn.rival is not None and link.may_mix(route.tool.raw_name):
            return False
        if not turn.modern:
            return True
        if era is Era.HANDSHAKE and (turn.log_level is not None or turn.can_be_asked):
            return False
        return not self.errands.issued(turn.params.request_state)

    async def _call_in_turn(self, turn: Turn, route: Route, since: float | None) -> Result:
        link, arguments = await self._session(turn, route.link), turn.params.arguments

        async def call(found: Link, context: CallContext, deadline: Deadline) -> Result:
            meta, extra = _extra(turn, found)
            way = route.over(found)
            called = await self.hub.calls.make(way, arguments, context, deadline, None, meta, extra)
            return called.raw

        job = _Job("tools/call", route.tool.name, link, route.tool.raw_name, route.deadline, call)
        return await self._in_turn(turn, job, since)

    async def _tool(self, turn: Turn, name: str) -> Tool:
        profile, apps = turn.peer.profile, turn.peer.apps

        def find() -> Tool | None:
            view = self.view(profile)
            return view.tools.get(name) or look_up(
                view.catalog, name, shows=view.shows, prefers=lambda tool: tool.server in apps
            )

        tool = await self._wait_for(turn, find, name)
        view = self.view(profile)
        if tool is None:
            raise unknown(view.tools, name)
        if not view.shows(tool):
            raise NotAllowed(f"the tool {quoted(name)} is hidden from this client")
        return tool

    async def _wait_for(
        self, turn: Turn, find: Callable[[], _Found | None], name: str | None
    ) -> _Found | None:
        """What a client means, once the servers are up that may have it; see `Hub.wait_for`."""
        return await self.hub.wait_for(
            find,
            name,
            defaults=self.hub.gateway_defaults,
            has=lambda server: self.view(turn.peer.profile).has(server),
        )

    async def _prompt(self, turn: Turn, _: Raw) -> Result:
        name, profile, since = turn.params.name, turn.peer.profile, anyio.current_time()
        prompt = await self._wait_for(turn, lambda: self.view(profile).prompts.get(name), name)
        if prompt is None:
            raise UnknownName(f"no prompt named {quoted(name)}")
        params = {"name": prompt.raw_name, "arguments": turn.params.arguments}
        return await self._request(turn, prompt.link, "prompts/get", params, name, since)

    async def _read(self, turn: Turn, _: Raw) -> Result:
        asked, profile, since = turn.params.uri, turn.peer.profile, anyio.current_time()
        await self._wait_for(turn, lambda: self.view(profile).resource(asked), None)
        link, uri = self._resource(turn, asked)
        if asked.startswith(_APPS) and turn.peer.single:
            turn.peer.apps.add(link.name)
        return await self._request(turn, link, "resources/read", {"uri": uri}, uri, since)

    async def _complete(self, turn: Turn, params: Raw) -> Result:
        asked = msgspec.json.decode(params, type=_Complete)
        view, ref = self.view(turn.peer.profile), asked.ref
        if ref.get("type") == "ref/prompt":
            prompt = view.prompts.get(str(ref.get("name", "")))
            if prompt is None:
                raise UnknownName(f"no prompt named {quoted(ref.get('name'))}")
            link, ref = prompt.link, {**ref, "name": prompt.raw_name}
        else:
            found = view.template(str(ref.get("uri", "")))
            if found is None:
                raise UnknownName(f"no resource template {quoted(ref.get('uri'))}")
            link, uri = found
            ref = {**ref, "uri": uri}
        told: dict[str, Any] = {"ref": ref, "argument": asked.argument}
        if asked.context is not msgspec.UNSET:
            told["context"] = asked.context
        since = anyio.current_time()
        return await self._request(turn, link, "completion/complete", told, "", since)

    async def _request(  # noqa: PLR0917 - each of its few callers gives them all
        self,
        turn: Turn,
        link: Link,
        method: str,
        params: dict[str, Any],
        name: str,
        since: float | None,
    ) -> Result:
        """Ask a server for something that changes nothing there."""
        link = await self._session(turn, link)
        defaults = self.hub.gateway_defaults

        def limit(context: CallContext, since: float) -> Deadline:
            return defaults.deadline(link.config, context=context, since=since)

        async def ask(found: Link, context: CallContext, deadline: Deadline) -> Result:
            request = made(
                method,
                params,
                deadline,
                call=context,
                rival=rival_of(context),
                on_progress=context.on_progress,
                repeatable=True,
            )
            request.meta, extra = _extra(turn, found)
            request.params = b"%b%b" % (request.params or b"", extra)
            return await found.request(request)

        return await self._in_turn(turn, _Job(method, name, link, method, limit, ask), since)

    async def _session(self, turn: Turn, link: Link) -> Link:
        """The session in which a server works for a client: one for all that it asks for."""
        if self.private.shares(turn.peer, link):
            return link
        return await self.private.link(turn.peer, link)

    async def _in_turn(self, turn: Turn, job: "_Job", since: float | None) -> Result:
        """Do what a client asks for when it is its turn, in as many rounds as questions take."""
        link = job.link

        async def work(context: CallContext) -> Result:
            nonlocal since
            # once a person has been elsewhere, its time begins again
            began, since = since or anyio.current_time(), None
            deadline, holder = job.limit(context, began), turn.peer.holder
            async with self.floors.turn(link, job.subject, context, holder, deadline) as found:
                result = await job.do(found, context, deadline)
            references = self.view(turn.peer.profile).references(link.name)
            return result if references is None else references.in_result(result)

        subject = f"{job.method} {job.name}"
        if turn.modern and self.errands.issued(turn.params.request_state):
            return await self.errands.resume(turn, subject)
        if link.era is Era.STATELESS or not turn.modern:
            result = await work(turn.context())
            return result if turn.modern or link.era is not Era.STATELESS else legacy(result)

        async def translated(context: CallContext) -> Result:
            result = await work(context)
            if link.era is Era.STATELESS:  # it was not known before
                return result
            return modern(result, kept=job.method == "resources/read")

        await self.changes.curious(turn.log_level, link)
        if not turn.can_be_asked:
            return await translated(turn.context())
        return await self.errands.begin(turn, subject, translated)

    def _resource(self, turn: Turn, uri: str) -> tuple[Link, str]:
        found = self.view(turn.peer.profile).resource(uri)
        if found is None:
            code = faults.INVALID_PARAMS if turn.modern else faults.NO_RESOURCE
            raise Refused(
                code, f"Resource not found: {shortened(uri, LONGEST_QUOTE)}", {"uri": uri}
            )
        return found

    async def _set_level(self, turn: Turn, params: Raw) -> Result:
        level = log_level(parse_table(params).get("level", Raw(b"null")))
        turn.peer.log_level = level
        await self.changes.log_level(turn.peer)
        return b"{}"

    async def _subscribe(self, turn: Turn, params: Raw) -> Result:
        uri = text_of(parse_table(params).get("uri")) or ""
        link, raw = await self._followed(turn, uri)
        await self.changes.subscribe(turn.peer, uri, link, raw)
        return b"{}"

    async def _unsubscribe(self, turn: Turn, params: Raw) -> Result:
        uri = text_of(parse_table(params).get("uri")) or ""
        await self.changes.unsubscribe(turn.peer, uri)
        return b"{}"

    async def _listen(self, turn: Turn, params: Raw) -> Result:
        if not turn.modern:
            raise Refused(faults.NO_METHOD, "Method not found: subscriptions/listen")
        asked = parse_table(params).get("notifications", EMPTY)
        try:
            wanted = parse_wanted(asked)
        except UNPARSABLE:
            raise Refused(faults.INVALID_PARAMS, "these are no notifications") from None
        return await self.changes.listen(turn, wanted, lambda uri: self._followed(turn, uri))

    async def _followed(self, turn: Turn, uri: str) -> tuple[Link, str]:
        link, raw = self._resource(turn, uri)
        return await self._session(turn, link), raw


def _extra(turn: Turn, link: Link) -> tuple[bytes, bytes]:
    """What a request says to the server besides its own parameters.

    Members of its `_meta`, and of its parameters each after a comma, as JSON.
    """
    params = turn.params
    meta = params.meta
    kept = meta.keys() - RESERVED
    said = members({key: meta[key] for key in kept}) if kept else b""
    # a server of the handshake era asks in the middle of a call, and gets its answers there
    extra = b""
    if link.era is not Era.HANDSHAKE:
        if params.request_state is not None:
            extra = b',"requestState":%b' % envelope.encode(params.request_state)
        if len(params.input_responses):
            extra = b'%b,"inputResponses":%b' % (extra, params.input_responses)
    return said, extra


@dataclass(frozen=True, slots=True)
class _Job:
    """What a client's request takes of one server."""

    method: str
    name: str
    """What it is about, by the name that the client knows."""
    link: Link
    subject: str
    """What the server may be known to ask at: a tool's own name, or the method."""
    limit: Callable[[CallContext, float], Deadline]
    """When it has to be over, from the time at which it began."""
    do: Callable[[Link, CallContext, Deadline], Awaitable[Result]]
    """Does it, on the session whose turn it is."""


class _Lobby:
    """The clients there are, known before the gateway is."""

    def __init__(self) -> None:
        self.gateway: Gateway | None = None

    def only(self, server: str) -> Peer | None:
        return self.gateway.changes.only(server) if self.gateway else None

    def sees(self, peer: Peer, server: str) -> bool:
        return self.gateway is not None and self.gateway.view(peer.profile).has(server)


@asynccontextmanager
async def open_gateway(
    open_hub: Callable[[Handlers], Any],
    *,
    host: Handlers = Handlers(),
    key: bytes | None = None,
    patience: float = TTL,
) -> AsyncGenerator[Gateway]:
    """A running gateway; leaving the block ends every call it works on.

    Args:
        open_hub: Opens the hub, given who answers what servers ask.
        host: Answers what no client can.
        key: Seals what stateless clients carry for us; replicas share it.
        patience: Seconds a call waits for a stateless client to come back with an answer.
    """
    lobby = _Lobby()
    with ungrouped():
        async with (
            open_hub(Asking(lobby.only, lobby.sees, host).handlers()) as hub,
            Tasks() as tasks,
        ):
            gateway = lobby.gateway = Gateway(hub, tasks, key=key, patience=patience)
            tasks.start_soon(gateway.changes.follow)
            tasks.start_soon(gateway.private.follow)
            tasks.start_soon(gateway.watch_start)
            tasks.start_soon(report, hub)
            try:
                yield gateway
            finally:
                gateway.changes.close()
