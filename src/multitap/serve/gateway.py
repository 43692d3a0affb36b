"""Every server as one: what a client asks for, whatever era it and the servers speak."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import version as installed_version
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog import Tool
from multitap.config import Profile
from multitap.errors import (
    LONGEST_QUOTE,
    BadArguments,
    MultitapError,
    NotAllowed,
    UnknownName,
    quoted,
    shortened,
    ungrouped,
)
from multitap.hub import Hub
from multitap.passage import OnPassed, Passage
from multitap.router import look_up, unknown
from multitap.serve import faults
from multitap.serve.asking import Asking
from multitap.serve.changes import Changes, parse_wanted
from multitap.serve.degradation import report
from multitap.serve.errands import TTL, Errands, Work
from multitap.serve.floor import Floors
from multitap.serve.message import (
    EMPTY,
    UNPARSABLE,
    Refused,
    legacy,
    modern,
    parse_table,
    passed_on,
    text_of,
)
from multitap.serve.peer import Peer, log_level
from multitap.serve.private import PrivateLinks
from multitap.serve.turn import Turn
from multitap.serve.view import View
from multitap.shares import Shares
from multitap.tasks import Tasks
from multitap.upstream.caller import CallContext
from multitap.upstream.handlers import Handlers
from multitap.upstream.link import Link
from multitap.upstream.session import Era
from multitap.wire import envelope, vocabulary

Result = Raw | bytes
_Found = TypeVar("_Found")

MOST_REQUESTS = 16_384
"""Requests of clients on streams, all together, that are worked on at the same time."""
FIRST_LIST = 5.0
"""Seconds the first lists wait for servers that were never seen before: few clients look twice."""
QUIET = 1.0
"""Seconds without news after which they do not wait any longer, if some are up."""

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
            "tools/call": self._call,
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
        if view is None or view.catalog is not catalog or view.profile != wanted:
            view = self._views[profile] = View(catalog, wanted)
            self.changes.shown(profile, view)
        return view

    async def answer(self, turn: Turn, method: str, params: Raw) -> Result:
        """The result of a client's request.

        Args:
            turn: The request.
            method: What it asks for.
            params: Its parameters.

        Raises:
            Refused: It can not be had, and why.
        """
        handler = self._methods.get(method)
        if turn.modern and method in _IN_SESSIONS:  # its peer is everybody of one principal
            raise Refused(faults.NO_METHOD, f"Method not found: {shortened(method, LONGEST_QUOTE)}")
        try:
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

    def launch(self, turn: Turn, on_end: OnPassed) -> Passage | None:
        """Begin a call that takes nothing but its server; None where it may take more.

        It ends as `answer` would, with a result or with an exception; None: it was cancelled.
        """
        params, peer = turn.params, turn.peer
        view = self.view(peer.profile)
        tool = view.tools.get(params.name)
        if tool is None or not self.private.shares(peer, tool.link):
            return None
        era = tool.link.era
        if era is None or (peer.rival is not None and tool.link.may_mix(tool.raw_name)):
            return None
        if turn.modern:
            if self.errands.issued(params.request_state):
                return None
            if era is Era.HANDSHAKE:
                # it might have to be parked until the client answers what the server asks
                if turn.log_level is not None or bytes(turn.capabilities) != b"{}":
                    return None
                on_end = _translated(on_end, modern)
        elif era is Era.STATELESS:
            on_end = _translated(on_end, legacy)
        if (references := view.references(tool.server)) is not None:
            on_end = _translated(on_end, references.in_result)
        extra = _extra(turn, tool.link)
        return self.hub.launch(tool, params.arguments, extra, context=turn.context(), on_end=on_end)

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
        """Let the first lists wait for servers whose offers are not known from an earlier run.

        Not for the slowest: where some are up and nothing changes any more, the others hang.
        """
        with anyio.move_on_after(FIRST_LIST):
            while any(link.offers is None and not link.settled for link in self.hub.links.values()):
                some_up = any(link.offers is not None for link in self.hub.links.values())
                with anyio.move_on_after(QUIET if some_up else FIRST_LIST) as quiet:
                    await self.hub.changed()
                if quiet.cancelled_caught:
                    break
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
                "version": _version(),
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

    async def _call(self, turn: Turn, _: Raw) -> Result:
        params = turn.params
        since: float | None = anyio.current_time()
        tool = await self._tool(turn, params.name)
        link = tool.link
        if not self.private.shares(turn.peer, link):
            link = await self.private.link(turn.peer, link)
            tool = replace(tool, link=link)

        async def work(context: CallContext) -> Result:
            nonlocal since
            # once a person has been elsewhere, its time begins again
            began, since = since or anyio.current_time(), None
            defaults, subject = self.hub.gateway_defaults, tool.raw_name
            deadline = defaults.deadline(link.config, context=context, since=began, tool=subject)
            holder, extra = turn.peer.holder, _extra(turn, link)
            async with self.floors.turn(link, subject, context, holder, deadline) as found:
                its = tool if found is tool.link else replace(tool, link=found)
                result = await self.hub.pass_on(
                    its, params.arguments, extra, context=context, since=began
                )
            return self._referring(turn, link, result)

        try:
            return await self._rounds(turn, "tools/call", tool.name, link, work)
        except BadArguments as exc:
            failed = faults.failed_call(exc)
            return modern(failed) if turn.modern else failed

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
        subject: str,
        since: float | None,
    ) -> Result:
        """Ask a server for something that changes nothing there."""
        target = link
        if link.config.session != "shared":
            target = await self.private.link(turn.peer, link)

        async def work(context: CallContext) -> Result:
            nonlocal since
            began, since = since or anyio.current_time(), None
            defaults, holder = self.hub.gateway_defaults, turn.peer.holder
            deadline = defaults.deadline(target.config, context=context, since=began)
            async with self.floors.turn(target, method, context, holder, deadline) as found:
                result = await found.request(
                    method,
                    {**params, **_extra(turn, found)},
                    deadline=deadline,
                    on_progress=context.on_progress,
                    call=context,
                    repeatable=True,
                )
            return self._referring(turn, target, result)

        return await self._rounds(turn, method, subject, target, work)

    def _referring(self, turn: Turn, link: Link, result: Result) -> Result:
        """A result whose references are addresses that the client knows."""
        references = self.view(turn.peer.profile).references(link.name)
        return result if references is None else references.in_result(result)

    async def _rounds(
        self, turn: Turn, method: str, subject: str, link: Link, work: Work
    ) -> Result:
        """Do what a client asks for, in as many rounds as the server's questions take."""
        subject = f"{method} {subject}"
        if turn.modern and self.errands.issued(turn.params.request_state):
            return await self.errands.resume(turn, subject)
        if link.era is Era.STATELESS or not turn.modern:
            result = await work(turn.context())
            return result if turn.modern or link.era is not Era.STATELESS else legacy(result)

        async def translated(context: CallContext) -> Result:
            result = await work(context)
            if link.era is Era.STATELESS:  # it was not known before
                return result
            return modern(result, kept=method == "resources/read")

        await self.changes.curious(turn.log_level, link)
        if bytes(turn.capabilities) == b"{}":
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
        link, raw = self._resource(turn, uri)
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
        return await self.changes.listen(turn, wanted, lambda uri: self._resource(turn, uri))


def _translated(on_end: OnPassed, translate: Callable[[Result], Result]) -> OnPassed:
    """Results in the words of the other era."""

    def ended(became: Result | Exception | None) -> None:
        try:
            if became is not None and not isinstance(became, Exception):
                became = translate(became)
        except UNPARSABLE as exc:
            became = exc
        on_end(became)

    return ended


@cache
def _version() -> str:
    return installed_version("multitap")  # from a file


def _extra(turn: Turn, link: Link) -> dict[str, Any]:
    """What a request says to the server besides its own parameters."""
    params = turn.params
    extra: dict[str, Any] = {}
    if params.meta and (meta := passed_on(params.meta)):
        extra["_meta"] = meta
    if link.era is Era.HANDSHAKE:  # it asks in the middle of a call, and gets its answers there
        return extra
    if params.request_state is not None:
        extra["requestState"] = params.request_state
    if len(params.input_responses):
        extra["inputResponses"] = params.input_responses
    return extra


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
