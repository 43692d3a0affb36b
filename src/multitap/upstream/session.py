"""One session with a connected server, in its era."""

import math
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from msgspec import Raw

from multitap.config.documents import is_table
from multitap.config.models import LogLevel
from multitap.errors import quoted, ungrouped
from multitap.faults import AnswerInvalid, AnswerTimeout, RequestFailed, WireFault
from multitap.later import Later, load
from multitap.redaction import Redactor
from multitap.tasks import in_task
from multitap.trust.questions.questions import QuestionRefused
from multitap.upstream.handlers import Handlers, RequestOrigin
from multitap.upstream.handshake import Handshake, SessionTerms
from multitap.upstream.offer_lists import Definition, Offers, Pages, fetch
from multitap.upstream.on_behalf_of import CallContext, OnBehalfOf
from multitap.wire.jsonrpc import envelope, vocabulary
from multitap.wire.jsonrpc.request import Request, make_request, members
from multitap.wire.wire import Inbound, RpcError, Wire

if TYPE_CHECKING:
    from mcp.shared import inbound

    from multitap.upstream import host_answers
else:
    inbound = Later("mcp.shared.inbound")
    host_answers = Later("multitap.upstream.host_answers")

OnNotification = Callable[[str, Raw, object | None], None]
"""Called with a notification and its call, if that is certain."""

MAX_ROUNDS = 10
"""How often a server may ask back before it must answer a call."""

EXTRA_TIMEOUT = 5.0
"""Seconds for each list other than tools."""
MAX_INSTRUCTIONS = 64 * 1024

_HEADER_MARK = vocabulary.ARGUMENT_HEADER_KEY.encode()
_QUESTIONS = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
_MOST_HEADERS = 128  # cached headers, for as many tools
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_LOOK = 0.05  # seconds between two looks whether a program has read its input
_SECOND_ANSWER = 1.5  # seconds for the answer to `initialize` after that to an earlier request
_COMPLETE = b'{"resultType":"complete"'


class Era(StrEnum):
    HANDSHAKE = "handshake"
    """Up to 2025-11-25: `initialize`, then a session."""
    STATELESS = "stateless"
    """From 2026-07-28: every request is self-contained."""


class EraMixed(WireFault):
    """The server may be in a handshake session, although it has only agreed to the newer era."""


class _Kind(msgspec.Struct):
    resultType: str = ""  # noqa: N815 - the wire's spelling


class _Arguments(msgspec.Struct):
    arguments: dict[str, Any] = {}


_parse_arguments = msgspec.json.Decoder(_Arguments).decode
_parse_kind = msgspec.json.Decoder(_Kind).decode
_begins_complete = re.compile(rb'\{\s*"resultType"\s*:\s*"complete"').match
_ends_complete = re.compile(rb'[,{]\s*"resultType"\s*:\s*"complete"\s*\}\Z').search
"""Both match only a member of the result itself: no other brace is in between."""
_END = 64
_escaped = re.compile(rb"\\u00(?:5[fF]|6[459eE]|7[01245])").search
"""An escaped letter of `input_required`, which only an attacker would write."""


class Session:
    """A session with a server; made by `open_session`.

    Args:
        name: The server's configured name.
        wire: The wire.
        terms: The result of the handshake.
        introduction: The `_meta` members of every stateless request.
        handlers: Answer what the server asks back.
        inbound: Receives the server's own messages.
        redact: Removes the server's secrets from all that it says about itself, and asks. What it
            returns stays as it is.
    """

    def __init__(
        self,
        name: str,
        wire: Wire,
        terms: SessionTerms,
        introduction: Mapping[str, Any],
        handlers: Handlers,
        *,
        inbound: Inbound,
        redact: Redactor,
    ) -> None:
        version = terms.protocol_version
        self.inbound = inbound
        self.protocol_version = version
        self.era = _era(version)
        self.capabilities = terms.capabilities
        self.instructions = terms.instructions and redact(terms.instructions[:MAX_INSTRUCTIONS])
        self.title = terms.title and redact(terms.title)
        self._redact = redact
        self._name = name
        self._handlers = handlers
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}
        self._plain_headers: dict[tuple[str, str | None], Mapping[str, str]] = {}
        self._marked = False
        self._has_headers = wire.kind == "streamable-http"
        self._introduction = introduction
        self._last_guest: tuple[Raw, str | None, bytes] | None = None
        self._stamp = members(introduction)  # encoded once: every stateless request carries it
        self.travel(wire)

    def travel(self, wire: Wire) -> None:
        """Use another wire to the same server from now on."""
        self.wire = wire
        # bound once: the handshake era adds nothing to a request, and so costs nothing
        self.request = wire.request if self.era is Era.HANDSHAKE else self._request
        """Sends a request; the host's handlers answer what the server asks back."""

    async def _request(self, request: Request) -> Raw:
        """Send a request to a stateless server.

        Each round in which it asks back renews the deadline.

        Raises:
            RpcError: It answered with an error.
            WireFault: There is no usable answer.
        """
        if request.is_relayed:
            return await self.wire.request(request)
        call = request.call
        client = call.client if isinstance(call, CallContext) else None
        request.stamp = self._stamp if client is None else self._stamp_of(client)
        if self._has_headers:
            request.headers = self._headers(request)
        result = await self.wire.request(request)
        if client is not None and client.drives_rounds:
            # the client answers itself, and has to know which server asks
            # the last such member counts, and servers send it last: the end is enough
            if _ends_complete(memoryview(result)[-_END:]):
                return result
            return self._check_kind(result)
        if not _asks_back(result):
            return result
        # the answers come from people and other servers
        await in_task(request.light)
        return await self._rounds(request, result)

    def _check_kind(self, result: Raw) -> Raw:
        """A result as a client of the stateless era may see it."""
        if _begins_complete(result) and not _may_ask_back(result):
            return result
        kind = _kind_of(result)
        if kind == "input_required":
            return self._screen(result, for_client=True)
        return result if kind else _add_kind(result)  # its clients refuse one without a kind

    async def _rounds(self, request: Request, result: Raw) -> Raw:
        """Answer what the server asks back, until it returns a result."""
        await load(host_answers, "questions")
        first, pause = request.params, _FIRST_PAUSE
        for _ in range(MAX_ROUNDS):
            asked = host_answers.questions(self._screen(result, for_client=False))
            extra: dict[str, Any] = {}
            if asked.request_state is not None:
                extra["requestState"] = asked.request_state
            if asked.input_requests:
                extra["inputResponses"] = await host_answers.fulfil(
                    self._handlers, RequestOrigin(self._name, request.call), asked.input_requests
                )
            else:
                # no questions: the server only wants another request
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            request.deadline.renew(anyio.current_time())
            request.params = b",".join(part for part in (first, members(extra)) if part)
            result = await self.wire.request(request)
            if not _asks_back(result):
                return result
        raise AnswerInvalid(f"it asked for input more than {MAX_ROUNDS} times", sent=True)

    def _screen(self, result: Raw, *, for_client: bool) -> Raw:
        """The server's questions, in the form that may be asked.

        Raises:
            RpcError: They must not be asked.
        """
        try:
            found = envelope.decode(result)
        except envelope.UNPARSABLE as exc:
            raise AnswerInvalid(f"the answer cannot be read: {exc}", sent=True) from None
        asked = found.get("inputRequests")
        if not is_table(asked):
            return result
        screened = {
            key: _screen_request(
                self._handlers, self._name, self._redact.data(one), for_client=for_client
            )
            for key, one in asked.items()
        }
        return Raw(envelope.encode({**found, "inputRequests": screened}))

    async def ask(self, method: str, params: Mapping[str, Any], *, timeout: float | None) -> Raw:
        """Send a request of our own.

        Args:
            method: The method.
            params: Its parameters.
            timeout: Seconds for the answer; None: no limit.
        """
        return await self.request(make_request(method, params, timeout))

    def _stamp_of(self, client: OnBehalfOf) -> bytes:
        """The `_meta` members that describe the client of a forwarded request, in place of us."""
        capabilities, level = client.capabilities, client.log_level
        last = self._last_guest
        if last is None or last[0] != capabilities or last[1] != level:
            introduction = {
                **self._introduction,
                vocabulary.CLIENT_CAPABILITIES_KEY: _strip_tasks(capabilities),
            }
            introduction.pop(vocabulary.LOG_LEVEL_KEY, None)
            if level is not None:
                introduction[vocabulary.LOG_LEVEL_KEY] = level
            last = self._last_guest = (capabilities, level, members(introduction))
        return last[2]

    async def alive(self, timeout: float) -> None:
        """Health check: wait for any answer of the server, even an error.

        Raises:
            WireFault: It does not answer.
        """
        method = "ping" if self.era is Era.HANDSHAKE else "server/discover"
        try:
            await self.ask(method, {}, timeout=timeout)
        except RpcError:
            return

    async def offers(
        self,
        limit: int,
        timeout: float,
        *,
        known: Offers = Offers(),
        only: Collection[str] | None = None,
    ) -> Offers:
        """Fetch all lists that the server announces, in parallel.

        Args:
            limit: The most items per list.
            timeout: Seconds for each page of tools.
            known: Earlier offers, for lists that cannot be fetched or are not wanted.
            only: The lists to fetch, by key; by default, all.

        Raises:
            RpcError: It refuses to list its tools.
            WireFault: The list of tools cannot be fetched.
        """
        announced = self._lists()
        wanted = {key: method for key, method in announced.items() if only is None or key in only}
        fetched: dict[str, Pages] = {}
        missing: dict[str, str] = {}

        async def take(key: str, method: str) -> None:
            try:
                fetched[key] = await self._list_or_warn(
                    method, key, limit, min(timeout / 2, EXTRA_TIMEOUT)
                )
            except (AnswerTimeout, RequestFailed, RpcError) as exc:
                missing[key] = str(exc)

        with ungrouped():
            async with anyio.create_task_group() as tasks:
                # in this task: a server that cannot list its tools is unusable, so this error ends
                # all lists
                tools = wanted.pop("tools", None)
                for key, method in wanted.items():
                    tasks.start_soon(take, key, method)
                if tools is not None:
                    fetched["tools"] = await self._list(tools, "tools", limit, timeout)
        if "tools" in fetched:
            self._learn_headers(fetched["tools"])
        kept = known.by_key()

        def items(key: str) -> tuple[Definition, ...]:
            if key in fetched:
                redacted: list[object] = [*map(self._redact.data, fetched[key].items)]
                return tuple(dict(item) for item in redacted if is_table(item))
            return kept[key] if key in announced else ()

        return Offers(
            tools=items("tools"),
            resources=items("resources"),
            templates=items("resourceTemplates"),
            prompts=items("prompts"),
            warnings=(
                *(() if only is None else known.warnings),
                *(warning for pages in fetched.values() for warning in pages.warnings),
            ),
            missing=missing,
        )

    def _lists(self) -> dict[str, str]:
        """The announced lists, by the key of their items."""
        can = self.capabilities
        lists: dict[str, str] = {}
        if can.tools:
            lists["tools"] = "tools/list"
        if can.resources:
            lists["resources"] = "resources/list"
            lists["resourceTemplates"] = "resources/templates/list"
        if can.prompts:
            lists["prompts"] = "prompts/list"
        return lists

    async def _list(self, method: str, key: str, limit: int, timeout: float) -> Pages:
        async def ask(params: dict[str, Any]) -> Raw:
            page = await self.ask(method, params, timeout=timeout)
            self._marked |= _HEADER_MARK in bytes(page)
            return page

        return await fetch(ask, key, limit)

    async def _list_or_warn(self, method: str, key: str, limit: int, timeout: float) -> Pages:
        """Fetch an optional list; many servers announce lists that they do not have.

        Raises:
            AnswerTimeout, RequestFailed, RpcError: It may succeed later.
        """
        try:
            return await self._list(method, key, limit, timeout)
        except RpcError as exc:
            if exc.code == vocabulary.INTERNAL_ERROR:
                raise  # an internal error, which may be temporary; other errors are final
            warnings = [] if exc.code == vocabulary.METHOD_NOT_FOUND else [f"no {key}: {exc}"]
            return Pages(warnings=warnings)
        except AnswerInvalid as exc:
            return Pages(warnings=[f"no {key}: {exc}"])

    def _learn_headers(self, tools: Pages) -> None:
        """Find arguments that are also sent as headers; tools with invalid marks are skipped."""
        self._header_maps.clear()
        if self.era is not Era.STATELESS or not self._marked:  # walking all schemas takes a while
            return
        usable: list[Definition] = []
        for tool in tools.items:
            schema = tool.get("inputSchema")
            name = tool.get("name")
            if (reason := inbound.find_invalid_x_mcp_header(schema)) is not None:
                tools.warnings.append(f"tool {quoted(name)} is skipped: its x-mcp-header {reason}")
                continue
            if isinstance(name, str) and (header_map := inbound.x_mcp_header_map(schema)):
                self._header_maps[name] = header_map
            usable.append(tool)
        tools.items = usable

    def _headers(self, request: Request) -> Mapping[str, str]:
        """The headers of a request; equal ones are the same object, which the wire relies on."""
        method, name = request.method, request.name
        headers = self._plain_headers.get((method, name))
        if headers is None:
            headers = self._plain_headers[method, name] = self._name_header(method, name)
            # clients choose the names: there may be a new one for every request
            if len(self._plain_headers) > _MOST_HEADERS:
                self._plain_headers.clear()
        if name and method == "tools/call" and (header_map := self._header_maps.get(name)):
            try:
                params = _parse_arguments(b"{%b}" % (request.params or b""))
            except msgspec.ValidationError:
                return headers  # the server refuses what is not an object
            return {**headers, **inbound.mcp_param_headers(header_map, params.arguments)}
        return headers

    def _name_header(self, method: str, name: str | None) -> Mapping[str, str]:
        headers = {
            vocabulary.VERSION_HEADER: self.protocol_version,
            vocabulary.METHOD_HEADER: method,
        }
        if name is not None:
            headers[vocabulary.NAME_HEADER] = vocabulary.to_header(name)
        return headers


def _screen_request(handlers: Handlers, server: str, request: Any, *, for_client: bool) -> Any:
    """Screen one question of a result; malformed ones are reported later."""
    method, params = (
        (request.get("method"), request.get("params")) if is_table(request) else ("", "")
    )
    if not isinstance(method, str) or not is_table(params):
        return request
    told = screen_question(handlers, server, method, params, for_client=for_client)
    return {**request, "params": told}


def screen_question(
    handlers: Handlers, server: str, method: str, params: Mapping[str, Any], *, for_client: bool
) -> Mapping[str, Any]:
    """Screen a question of a server; returns the form that may be asked.

    Raises:
        RpcError: It must not be asked.
    """
    if handlers.screen is None:
        return params
    try:
        return handlers.screen(server, method, params, for_client=for_client)
    except QuestionRefused as exc:
        raise RpcError(vocabulary.SERVER_ERROR, str(exc)) from None


def _strip_tasks(capabilities: Raw) -> Raw:
    """A client's capabilities without tasks: their ids would lead nowhere through us."""
    if b'"extensions"' not in bytes(capabilities):
        return capabilities
    declared = envelope.decode(capabilities)
    extensions = declared.get("extensions")
    if not is_table(extensions):
        return capabilities
    others = {name: value for name, value in extensions.items() if name != vocabulary.TASKS}
    return Raw(envelope.encode({**declared, "extensions": others}))


def _may_ask_back(result: Raw) -> bool:
    """Whether a result may ask back, by a search for the key: results can be long."""
    data = bytes(result)
    return b"input_required" in data or (b"\\u00" in data and _escaped(data) is not None)


def _asks_back(result: Raw) -> bool:
    if _begins_complete(result) or _ends_complete(memoryview(result)[-_END:]):
        return False  # most servers put it first or last, where it is found without parsing
    return _kind_of(result) == "input_required"


def _kind_of(result: Raw) -> str:
    """The `resultType` of a result; empty if it has none."""
    try:
        return _parse_kind(result).resultType
    except envelope.UNPARSABLE as exc:
        raise AnswerInvalid(f"the answer cannot be read: {exc}", sent=True) from None


def _add_kind(result: Raw) -> Raw:
    """A result with the `resultType` that it lacks."""
    rest = bytes(result)[1:].lstrip()
    return Raw(b"%b%b%b" % (_COMPLETE, b"" if rest[:1] == b"}" else b",", rest))


def _era(version: str) -> Era:
    return Era.STATELESS if version in vocabulary.STATELESS_VERSIONS else Era.HANDSHAKE


class _FromServer:
    """Receives a server's own messages, from the first one on."""

    def __init__(
        self,
        name: str,
        handlers: Handlers,
        on_notification: OnNotification,
        on_unaddressed: Callable[[], None],
        redact: Redactor,
    ) -> None:
        self._name = name
        self._handlers = handlers
        self._redact = redact
        self.version = vocabulary.HANDSHAKE_VERSIONS[-1]
        """The server's protocol version; before it is known, the last handshake version."""
        self._on_notification = on_notification
        self.on_unaddressed = on_unaddressed

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        self._on_notification(method, params, call)

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        if method == "ping" and _era(self.version) is Era.HANDSHAKE:
            return {}
        if method not in _QUESTIONS:
            raise RpcError(vocabulary.METHOD_NOT_FOUND, "Method not found", method)
        asked = RequestOrigin(self._name, call)
        decoded = self._redact.data(envelope.decode(params)) if len(params) else None
        if is_table(decoded):
            decoded = screen_question(self._handlers, self._name, method, decoded, for_client=False)
        await load(host_answers, "answer")
        return await host_answers.answer(
            self._handlers, asked, method, decoded, version=self.version
        )


@asynccontextmanager
async def open_session(
    name: str,
    wire: Wire,
    *,
    handlers: Handlers,
    on_notification: OnNotification,
    on_unaddressed: Callable[[], None],
    redact: Redactor,
    era: Era | None,
    probe: float,
    timeout: float,
    log_level: LogLevel | None = None,
) -> AsyncGenerator[Session]:
    """Do the handshake with a server, in its era.

    Args:
        name: The server's configured name.
        wire: The wire, already entered.
        handlers: Answer what the server asks.
        on_notification: Called with every notification; must not block.
        on_unaddressed: Called when the server asks without naming the call.
        redact: Removes the server's secrets.
        era: Its era, or None if unknown.
        probe: Seconds a server of unknown era has to answer `server/discover`, from when it has
            read it, before the handshake is tried.
        timeout: Seconds for each request of the handshake.
        log_level: From which level on a stateless server should send log messages.

    Raises:
        RpcError: The server refuses.
        BadHandshake: Its answer is incomplete.
        EraMixed: It has to be started again, in the stateless era.
        WireFault: The wire failed, or the answer cannot be used.
    """
    inbound = _FromServer(name, handlers, on_notification, on_unaddressed, redact)
    # before the first request: some servers ask or log during the handshake
    wire.attach(inbound)
    greeter = Handshake(wire, handlers, timeout=timeout)
    with ungrouped():
        waiting = _Probe(probe, lambda: wire.evidence().has_read)
        terms = await _negotiate(greeter, era, waiting)
    inbound.version = terms.protocol_version
    introduction = greeter.introduction(terms.protocol_version)
    if log_level is not None:
        introduction[vocabulary.LOG_LEVEL_KEY] = log_level
    session = Session(name, wire, terms, introduction, handlers, inbound=inbound, redact=redact)
    wire.establish(session.protocol_version, stateless=session.era is Era.STATELESS)
    yield session


async def _negotiate(greeter: Handshake, era: Era | None, probe: "_Probe") -> SessionTerms:
    if era is None:
        return await _negotiate_unknown(greeter, probe)
    if era is Era.STATELESS and (terms := await greeter.discover()) is not None:
        return terms
    return await _initialize(greeter)


async def _initialize(greeter: Handshake) -> SessionTerms:
    try:
        return await greeter.initialize()
    except RpcError:
        # a stateless server that was too busy for the first probe may answer the next one
        if (terms := await greeter.discover()) is None:
            raise
        return terms


async def _negotiate_unknown(greeter: Handshake, probe: "_Probe") -> SessionTerms:
    """Try the stateless era; without an answer in a moment, the handshake instead.

    A server that speaks both eras is in a handshake session from `initialize` on. So once that is
    sent, only its answer counts: a late answer to the first request does not, unless the server
    refuses the second.

    Raises:
        EraMixed: It answered only the first request, after the second was sent.
    """
    discovered: SessionTerms | None = None
    async with anyio.create_task_group() as tasks:
        clock = anyio.CancelScope()

        async def discover() -> None:
            nonlocal discovered
            discovered = await greeter.discover()
            probe.answered.set()
            if discovered is not None:
                clock.deadline = anyio.current_time() + _SECOND_ANSWER

        tasks.start_soon(discover)
        await probe.wait()
        if discovered is not None:
            return discovered
        with clock:
            clock.deadline = math.inf
            try:
                terms = await greeter.initialize()
            except RpcError:
                clock.deadline = math.inf
                await probe.answered.wait()  # it may refuse this while it handles the first
                again = discovered or await greeter.discover()
                if again is None:
                    raise
                return again
            tasks.cancel_scope.cancel()
            return terms
    raise EraMixed("it answered `server/discover`, but not `initialize`", sent=True)


class _Probe:
    """Waits for the answer to the first request, which a server of the older era may not send.

    Args:
        seconds: How long it has to answer, from when it has read the request.
        has_read: Whether it has read anything; programs may take long to start.
    """

    def __init__(self, seconds: float, has_read: Callable[[], bool]) -> None:
        self.answered = anyio.Event()
        self._seconds = seconds
        self._has_read = has_read

    async def wait(self) -> None:
        while not self._has_read():
            with anyio.move_on_after(_LOOK):
                await self.answered.wait()
                return
        with anyio.move_on_after(self._seconds):
            await self.answered.wait()
