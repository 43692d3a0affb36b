"""One session with a connected server, in its era."""

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.config.documents import is_table
from multitap.config.models import LogLevel
from multitap.errors import AnswerInvalid, quoted
from multitap.redaction import Redactor
from multitap.trust.questions import QuestionRefused
from multitap.upstream.handshake import Era, Handshake, SessionTerms, era_of
from multitap.upstream.questions import Handlers, OnBehalfOf, RequestOrigin, client_of
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError
from multitap.wire.request import Request, make_request, members
from multitap.wire.wire import DirectWire, Inbound, Wire

OnNotification = Callable[[str, Raw, object | None], None]
"""Called with a notification and its call, if that is certain."""

MAX_ROUNDS = 10
"""How often a server may ask back before it must answer a call."""

MAX_INSTRUCTIONS = 64 * 1024

_QUESTIONS = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
_MOST_HEADERS = 128  # cached headers, for as many tools
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_HOST_ANSWERS = "multitap.upstream.host_answers"
_COMPLETE = b'{"resultType":"complete"'


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

    `introduction` has the `_meta` members of every stateless request. `redact` removes the server's
    secrets from all that it says about itself, and asks; what it returns stays as it is.
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
        self.era = era_of(version)
        self.capabilities = terms.capabilities
        self.instructions = terms.instructions and redact(terms.instructions[:MAX_INSTRUCTIONS])
        self.title = terms.title and redact(terms.title)
        self._redact = redact
        self._name = name
        self._handlers = handlers
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}
        self._plain_headers: dict[tuple[str, str | None], Mapping[str, str]] = {}
        self._has_headers = wire.kind == "streamable-http"
        self._introduction = introduction
        self._last_guest: tuple[Raw, str | None, bytes] | None = None
        self._stamp = members(introduction)  # encoded once: every stateless request carries it
        self.travel(wire)

    def travel(self, wire: Wire) -> None:
        """Use another wire to the same server from now on."""
        self.wire = wire
        self.direct = wire if isinstance(wire, DirectWire) else None
        """The wire, if it sends requests without a task."""
        # an attribute, not a method: the handshake era adds nothing, and so costs no frame
        self.request = wire.request if self.era is Era.HANDSHAKE else self._request
        """Sends a request; the host's handlers answer what the server asks back."""

    def address(self, request: Request) -> None:
        """Add what each request to a stateless server carries."""
        client = client_of(request.call)
        if request.takes_task:
            request.stamp = self._stamp_with_tasks(client)
        else:
            request.stamp = self._stamp if client is None else self._stamp_of(client)
        if self._has_headers:
            request.headers = self._headers(request)

    def is_final(self, request: Request, result: Raw) -> bool:
        """Whether a stateless server's result is one as it is, and asks nothing back."""
        if _is_complete(result):
            return True
        try:
            if not _drives_rounds(request):
                return not _asks_back(result)
            if _begins_complete(result) and not _may_ask_back(result):
                return True
            # its clients refuse one without a kind, and are asked by one of another
            return _kind_of(result) == "complete"
        except AnswerInvalid:
            return False

    async def _request(self, request: Request) -> Raw:
        """Send a request to a stateless server.

        Each round in which it asks back renews the deadline.

        Raises:
            RpcError: It answered with an error.
            WireFault: There is no usable answer.
        """
        if request.is_relayed:
            return await self.wire.request(request)
        if request.pending is None:
            self.address(request)
        result = await self.wire.request(request)
        if _drives_rounds(request):
            # the client answers itself, and has to know which server asks
            return result if _is_complete(result) else self._check_kind(result)
        if not _asks_back(result):
            return result
        # the answers come from people and other servers
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
        await load_answers()
        from multitap.upstream import host_answers  # noqa: PLC0415 - imported just above

        params, pause = request.params, _FIRST_PAUSE
        origin = RequestOrigin(self._name, request.call)
        for _ in range(MAX_ROUNDS):
            questions = host_answers.questions(self._screen(result, for_client=False))
            extra: dict[str, Any] = {}
            if questions.request_state is not None:
                extra["requestState"] = questions.request_state
            if questions.input_requests:
                extra["inputResponses"] = await host_answers.fulfil(
                    self._handlers, origin, questions.input_requests
                )
            else:
                # no questions: the server only wants another request
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            request.deadline.renew(anyio.current_time())
            request.params = b",".join(part for part in (params, members(extra)) if part)
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
            decoded = jsonrpc.decode(result)
        except jsonrpc.UNPARSABLE as exc:
            raise AnswerInvalid(f"the answer cannot be read: {exc}", sent=True) from None
        questions = decoded.get("inputRequests")
        if not is_table(questions):
            return result
        screened = {
            key: _screen_request(
                self._handlers, self._name, self._redact.data(question), for_client=for_client
            )
            for key, question in questions.items()
        }
        return Raw(jsonrpc.encode({**decoded, "inputRequests": screened}))

    async def ask(self, method: str, params: Mapping[str, Any], *, timeout: float | None) -> Raw:
        """Send a request of our own; without a `timeout` in seconds, there is no limit."""
        return await self.request(make_request(method, params, timeout))

    async def notify(self, method: str, params: Mapping[str, Raw], capabilities: Raw) -> None:
        """Send a client's notification."""
        if self.era is Era.HANDSHAKE:
            await self.wire.notify(method, params or None)
            return
        own_meta = jsonrpc.parse_table(params.get("_meta", jsonrpc.EMPTY))
        meta = {
            **{key: own_meta[key] for key in own_meta.keys() - jsonrpc.RESERVED_KEYS},
            **self._introduction,
            jsonrpc.CLIENT_CAPABILITIES_KEY: _strip_tasks(capabilities),
        }
        headers = self._name_header(method, None) if self._has_headers else None
        await self.wire.notify(method, {**params, "_meta": meta}, headers=headers)

    def _stamp_of(self, client: OnBehalfOf) -> bytes:
        """The `_meta` members that describe the client of a forwarded request, in place of us."""
        capabilities, level = client.capabilities, client.log_level
        last = self._last_guest
        if last is None or last[0] != capabilities or last[1] != level:
            introduction = {
                **self._introduction,
                jsonrpc.CLIENT_CAPABILITIES_KEY: _strip_tasks(capabilities),
            }
            introduction.pop(jsonrpc.LOG_LEVEL_KEY, None)
            if level is not None:
                introduction[jsonrpc.LOG_LEVEL_KEY] = level
            last = self._last_guest = (capabilities, level, members(introduction))
        return last[2]

    def _stamp_with_tasks(self, client: OnBehalfOf | None) -> bytes:
        """The same for a request that the server may answer with a task."""
        stamp = self._stamp if client is None else self._stamp_of(client)
        meta = jsonrpc.parse_table(b"{%b}" % stamp)
        declared = jsonrpc.decode(meta[jsonrpc.CLIENT_CAPABILITIES_KEY])
        extensions: dict[str, Any] = {**declared.get("extensions", {}), jsonrpc.TASKS: {}}
        return members(
            {**meta, jsonrpc.CLIENT_CAPABILITIES_KEY: {**declared, "extensions": extensions}}
        )

    async def answer_inputs(self, call: object | None, questions: Raw) -> dict[str, Any]:
        """The host's answers to the questions of a task, by key.

        Raises:
            RpcError: One is refused.
        """
        await load_answers()
        from multitap.upstream import host_answers  # noqa: PLC0415 - imported just above

        result = Raw(b'{"resultType":"input_required","inputRequests":%b}' % questions)
        required = host_answers.questions(self._screen(result, for_client=False))
        origin = RequestOrigin(self._name, call)
        return await host_answers.fulfil(self._handlers, origin, required.input_requests or {})

    def screen_inputs(self, questions: Raw) -> Raw:
        """The questions of a task, in the form in which a client may see them.

        Raises:
            RpcError: They must not be asked.
        """
        result = Raw(b'{"inputRequests":%b}' % questions)
        return jsonrpc.parse_table(self._screen(result, for_client=True))["inputRequests"]

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

    def learn_headers(
        self, tools: list[dict[str, Any]], *, is_marked: bool
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Learn which arguments are also sent as headers.

        Returns the tools that can be used, and warnings about those with invalid marks.
        """
        self._header_maps.clear()
        if self.era is not Era.STATELESS or not is_marked:  # walking all schemas takes a while
            return tools, []
        from mcp.shared import inbound  # noqa: PLC0415 - slow to import, and seldom needed

        usable: list[dict[str, Any]] = []
        warnings: list[str] = []
        for tool in tools:
            schema = tool.get("inputSchema")
            name = tool.get("name")
            if (reason := inbound.find_invalid_x_mcp_header(schema)) is not None:
                warnings.append(f"tool {quoted(name)} is skipped: its x-mcp-header {reason}")
                continue
            if isinstance(name, str) and (header_map := inbound.x_mcp_header_map(schema)):
                self._header_maps[name] = header_map
            usable.append(tool)
        return usable, warnings

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
            from mcp.shared import inbound  # noqa: PLC0415 - see `learn_headers`

            return {**headers, **inbound.mcp_param_headers(header_map, params.arguments)}
        return headers

    def _name_header(self, method: str, name: str | None) -> Mapping[str, str]:
        headers = {
            jsonrpc.VERSION_HEADER: self.protocol_version,
            jsonrpc.METHOD_HEADER: method,
        }
        if name is not None:
            headers[jsonrpc.NAME_HEADER] = jsonrpc.to_header(name)
        return headers


def _screen_request(handlers: Handlers, server: str, request: Any, *, for_client: bool) -> Any:
    """Screen one question of a result; malformed ones are reported later."""
    method, params = (
        (request.get("method"), request.get("params")) if is_table(request) else ("", "")
    )
    if not isinstance(method, str) or not is_table(params):
        return request
    screened = screen_question(handlers, server, method, params, for_client=for_client)
    return {**request, "params": screened}


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
        raise RpcError(jsonrpc.SERVER_ERROR, str(exc)) from None


def _strip_tasks(capabilities: Raw) -> Raw:
    """A client's capabilities without tasks: their ids would lead nowhere through us."""
    if b'"extensions"' not in bytes(capabilities):
        return capabilities
    try:
        declared = jsonrpc.decode(capabilities)
    except jsonrpc.UNPARSABLE:  # a client's own text, which nobody has decoded before
        return jsonrpc.EMPTY
    extensions = declared.get("extensions") if is_table(declared) else None
    if not is_table(declared) or not is_table(extensions):
        return capabilities
    others = {name: value for name, value in extensions.items() if name != jsonrpc.TASKS}
    return Raw(jsonrpc.encode({**declared, "extensions": others}))


def _without_task(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """A question without the server's own id of the task that asks it: nobody else knows that."""
    meta = params.get("_meta")
    if not is_table(meta) or jsonrpc.RELATED_TASK_KEY not in meta:
        return params
    rest = {key: value for key, value in meta.items() if key != jsonrpc.RELATED_TASK_KEY}
    return (
        {**params, "_meta": rest}
        if rest
        else {key: params[key] for key in params if key != "_meta"}
    )


def _drives_rounds(request: Request) -> bool:
    """Whether the client of a request itself answers what servers ask back."""
    client = client_of(request.call)
    return client is not None and client.drives_rounds


def _is_complete(result: Raw) -> bool:
    """Whether a result says at its end that it is one, where most servers say it."""
    # the last such member counts, so the end is enough
    return _ends_complete(memoryview(result)[-_END:]) is not None


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
    except jsonrpc.UNPARSABLE as exc:
        raise AnswerInvalid(f"the answer cannot be read: {exc}", sent=True) from None


def _add_kind(result: Raw) -> Raw:
    """A result with the `resultType` that it lacks."""
    rest = bytes(result)[1:].lstrip()
    return Raw(b"%b%b%b" % (_COMPLETE, b"" if rest[:1] == b"}" else b",", rest))


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
        self.version = jsonrpc.HANDSHAKE_VERSIONS[-1]
        """The server's protocol version; before it is known, the last handshake version."""
        self._on_notification = on_notification
        self.on_unaddressed = on_unaddressed

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        self._on_notification(method, params, call)

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        if method == "ping" and era_of(self.version) is Era.HANDSHAKE:
            return {}
        if method not in _QUESTIONS:
            if self._handlers.custom is None:
                raise RpcError(jsonrpc.METHOD_NOT_FOUND, "Method not found", method)
            origin = RequestOrigin(self._name, call)
            return await self._handlers.custom(origin, method, self._redact.raw(params))
        try:
            decoded = self._redact.data(jsonrpc.decode(params)) if len(params) else None
        except jsonrpc.UNPARSABLE as exc:
            raise RpcError(jsonrpc.INVALID_PARAMS, f"Invalid params: {exc}") from None
        if is_table(decoded):
            decoded = _without_task(decoded)
            decoded = screen_question(self._handlers, self._name, method, decoded, for_client=False)
        await load_answers()
        from multitap.upstream import host_answers  # noqa: PLC0415 - imported just above

        origin = RequestOrigin(self._name, call)
        return await host_answers.answer(
            self._handlers, origin, method, decoded, version=self.version
        )


async def load_answers() -> None:
    """Import what answers a server's questions, in a thread: it takes 0.4 s of CPU, and 15 MB."""
    # a function of it, not the module: another task may have begun to import it
    if not hasattr(sys.modules.get(_HOST_ANSWERS), "answer"):
        await to_thread.run_sync(import_module, _HOST_ANSWERS)


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
    extensions: Mapping[str, Any] | None = None,
) -> Session:
    """Do the handshake with a server over an entered wire; see `Handshake.negotiate`.

    `on_notification` is called with every notification, and must not block; `on_unaddressed` when
    the server asks without naming the call. A stateless server sends log messages from `log_level`
    on.
    """
    inbound = _FromServer(name, handlers, on_notification, on_unaddressed, redact)
    # before the first request: some servers ask or log during the handshake
    wire.attach(inbound)
    handshake = Handshake(wire, handlers, timeout=timeout, extensions=extensions)
    terms = await handshake.negotiate(era, probe)
    inbound.version = terms.protocol_version
    introduction = handshake.introduction(terms.protocol_version)
    if log_level is not None:
        introduction[jsonrpc.LOG_LEVEL_KEY] = log_level
    session = Session(name, wire, terms, introduction, handlers, inbound=inbound, redact=redact)
    wire.establish(session.protocol_version, stateless=session.era is Era.STATELESS)
    return session
