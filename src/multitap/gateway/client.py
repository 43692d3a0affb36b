"""A client of the gateway, and its requests."""

import asyncio
import secrets
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import EVERYBODY, Audience
from multitap.config.documents import is_list, is_table
from multitap.http.server.request import RequestHead
from multitap.principal import ANONYMOUS, Principal
from multitap.results import ToolResult
from multitap.upstream.questions import CallContext
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import (
    EMPTY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_ERROR,
    ClientMessage,
    RequestParams,
    Result,
    RpcError,
    notification,
    parse_error,
    parse_table,
    text_of,
)
from multitap.wire.wire import OnProgress

if TYPE_CHECKING:
    from multitap.gateway.fronts.sessions import KnownCall

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
USUAL_LEVEL = "info"
"""The log level for clients of the handshake era that have not set one."""
ASK_TIMEOUT = 600.0
"""Seconds a client, or its user, has to answer a question."""
MOST_ASKED = 64
"""Requests to one client that may be unanswered at the same time."""

DEFERRING = frozenset({"claude-code", "codex-mcp-client", "opencode", "Visual Studio Code"})
"""Programs that search tools by themselves, by the names that they give themselves."""
_MOST_APPS = 64  # callers of one stateless client whose pages are remembered
_LONGEST_WORD = 100  # characters of a client's name that are shown
_ABILITIES = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class _LogParams(msgspec.Struct):
    level: str = "info"


_parse_log = msgspec.json.Decoder(_LogParams).decode


class Stoppable(Protocol):
    """A request in progress."""

    def cancel(self) -> None:
        """Cancel it."""
        ...


class Outlet(Protocol):
    """Takes messages to a client."""

    def send(self, message: bytes) -> bool:
        """Queue one message without waiting; False if it cannot be delivered."""
        ...


class OnOtherReplica(Exception):
    """Only another replica can answer the request; the front relays it there."""

    def __init__(self, replica: str) -> None:
        super().__init__(replica)
        self.replica = replica


class OtherReplicas(Protocol):
    """The other replicas of a cluster, as far as one client is concerned."""

    name: str
    """The name of this replica, with which the ids of its own requests begin."""
    session_id: str

    @property
    def is_remote(self) -> bool:
        """Whether another replica notifies the client of changes."""
        ...

    async def save(self) -> None:
        """Publish the current state of the client to the other replicas."""
        ...

    async def request(self, method: str, params: Raw) -> Result | None:
        """The answer of the replica that notifies the client; None if it is this one."""
        ...

    def cancel(self, request_id: Raw) -> None:
        """Tell the other replicas to cancel a request."""
        ...

    def take_answer(self, message: ClientMessage) -> None:
        """Send an answer to the replica that asked."""
        ...


class Client:
    """A client, for as long as it is connected or its session lives.

    Args:
        outlet: Takes messages that do not belong to one of its own requests.
        principal: Who asks, by its credentials or its connection.
        holder: The holder whose share it uses; the key of its principal by default.
        audience: The clients that see the same.
        alone: Whether no other client can use its connection.
        only: Whether the gateway has no other client, either.
        first_id: The id of the first question to it; two gateways that one client has in turn
            must not use the same ones.
    """

    def __init__(
        self,
        outlet: Outlet,
        *,
        principal: Principal = ANONYMOUS,
        holder: str = "",
        audience: Audience = EVERYBODY,
        alone: bool = False,
        only: bool = False,
        first_id: int = 1,
    ) -> None:
        self._alone = alone
        self.outlet = outlet
        self.principal = principal
        self.holder = holder or principal.key
        owner = principal.account_owner
        self.audience = audience if owner is None else audience._replace(person=owner)
        self.slot_holder: object = None if only else principal.key or self
        """Its name among those that use the same server; None if there are no others.

        Clients without a name share an address, but no server's time.
        """
        self.version = ""
        """Its protocol version after the handshake; empty in the stateless era."""
        self.info: Mapping[str, Any] = {}
        self._last_info: tuple[Raw, str] | None = None
        self.caller = _caller({}, principal)
        """A label for people: its name, its version, and its principal."""
        self.capabilities = EMPTY
        self.can_be_asked = False
        """Whether the handshake is done and it can answer any kind of question."""
        self.log_level: str | None = None
        self.apps: dict[str, list[str]] = {}
        """The servers whose MCP app pages it has read, the last one last, by caller.

        The pages call their own server's tools. Several programs may share a stateless client, and
        say who they are in each request.
        """
        self.followed: set[str] = set()
        """The resources that it subscribed to in its session, by the URIs it uses."""
        self.scopes: dict[bytes, Stoppable] = {}
        """Its requests in progress, by id."""
        self.has_left = False
        """Whether it has disconnected, or its session has ended."""
        self._asked: dict[bytes, asyncio.Future[Raw]] = {}
        self._ids = count(first_id)
        self.replicas: OtherReplicas | None = None
        """The rest of the cluster, if there is one."""

    def introduce(self, version: str, capabilities: Raw, info: Mapping[str, Any]) -> None:
        """Record what the client says in the handshake."""
        self.version, self.capabilities, self.info = version, capabilities, info
        self.audience = self.audience._replace(declared=declared_extensions(capabilities))
        self.caller = _caller(info, self.principal)
        # by its bytes: too much does no harm, since `able` decides about each question
        encoded = bytes(capabilities)
        self.can_be_asked = any(
            b'"%b"' % ability.encode() in encoded for ability in _ABILITIES.values()
        )

    def caller_of(self, info: Raw) -> str:
        """The label for a client that describes itself in a request."""
        if self._last_info is None or self._last_info[0] != info:
            try:
                client_info = msgspec.json.decode(info, type=dict[str, Any])
            except jsonrpc.UNPARSABLE:
                client_info = {}
            self._last_info = (info.copy(), _caller(client_info, self.principal))
        return self._last_info[1]

    @property
    def single(self) -> bool:
        """Whether all its requests are known to come from one program."""
        return self._alone or self.shook_hands or bool(self.principal.key)

    @property
    def shook_hands(self) -> bool:
        return bool(self.version)

    async def ask(
        self, method: str, params: Mapping[str, Any], outlet: Outlet | None = None
    ) -> Raw:
        """Ask the client; only in the handshake era.

        Args:
            method: The method.
            params: Its parameters.
            outlet: The outlet of the client's request that the question belongs to, if any.

        Raises:
            RpcError: It refuses, cannot be asked, or does not answer.
        """
        # others are of extensions, and the client itself refuses what it does not know
        if method in _ABILITIES:
            params = fit(self.capabilities, method, params)
        if params.get("mode") == "url":  # optional in the stateless era, required in this one
            params = {"elicitationId": secrets.token_urlsafe(12), **params}
        # a server may ask any number of questions, and each is kept until it is answered
        if len(self._asked) >= MOST_ASKED:
            raise RpcError(SERVER_ERROR, "too many requests to the client at once")
        number: int | str = next(self._ids)
        if self.replicas is not None:  # the answer may come to any replica
            number = f"{self.replicas.name}.{number}"
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        key = jsonrpc.encode(number)
        self._asked[key] = answer
        message = jsonrpc.request(number, method, params)
        try:
            # on the stream of its own request first: many clients listen to no other
            sent = outlet is not None and outlet.send(message)
            if not sent and not self.outlet.send(message):
                raise RpcError(SERVER_ERROR, "the client cannot be reached")
            with anyio.fail_after(ASK_TIMEOUT):
                return await answer
        except TimeoutError:
            self.outlet.send(jsonrpc.notification("notifications/cancelled", {"requestId": number}))
            raise RpcError(
                SERVER_ERROR, f"the client did not answer within {ASK_TIMEOUT:g} s"
            ) from None
        # tells the client, so that it can close its dialog
        except asyncio.CancelledError:
            self.outlet.send(jsonrpc.notification("notifications/cancelled", {"requestId": number}))
            raise
        finally:
            del self._asked[key]

    def take_answer(self, message: ClientMessage) -> None:
        """Handle its answer to a request of ours; answers to unknown requests are dropped."""
        waiting = self._asked.get(bytes(message.id))
        if waiting is None and self.replicas is not None:
            self.replicas.take_answer(message)
        if waiting is None or waiting.done():
            return
        if not len(message.error):
            waiting.set_result(message.result)
            return
        try:
            error = parse_error(message.error)
        except jsonrpc.UNPARSABLE:
            waiting.set_exception(RpcError(INTERNAL_ERROR, "the client's error cannot be read"))
        else:
            waiting.set_exception(RpcError(error.code, error.message, error.data))

    def cancel(self, request_id: Raw, *, is_here: bool = False) -> None:
        """Cancel one of its requests, at all replicas or only here."""
        if (scope := self.scopes.get(bytes(request_id))) is not None:
            scope.cancel()
        elif self.replicas is not None and not is_here:
            self.replicas.cancel(request_id)

    def leave(self) -> None:
        """Cancel its requests and fail the questions to it: it has disconnected."""
        self.has_left = True  # first: the requests that end below say so
        # a copy: cancelled requests remove themselves, perhaps at once
        for scope in tuple(self.scopes.values()):
            scope.cancel()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(RpcError(SERVER_ERROR, "the client is gone"))


UI: Final = "io.modelcontextprotocol/ui"
"""The extension for pages that servers show in the client."""
APP_PAGE: Final = "text/html;profile=mcp-app"
SHOWS_PAGES: Final[Mapping[str, Any]] = {"extensions": {UI: {"mimeTypes": [APP_PAGE]}}}
"""What we declare to servers, so that those with pages for clients offer them."""
_SHOWS_PAGES = jsonrpc.encode(SHOWS_PAGES).decode()
_CONCERN_US = frozenset(
    {
        jsonrpc.TASKS,
        "io.modelcontextprotocol/oauth-client-credentials",
        "io.modelcontextprotocol/enterprise-managed-authorization",
    }
)
"""Extensions that end here: they are about the connection to us, or are bridged."""


def declared_extensions(capabilities: Raw) -> str:
    """What a client declares beyond MCP's own capabilities, as JSON; the same text for the same."""
    encoded = bytes(capabilities)
    if b'"extensions"' not in encoded and b'"experimental"' not in encoded:
        return ""  # most clients
    return _declared_in(encoded)


@lru_cache(maxsize=256)
def _declared_in(capabilities: bytes) -> str:
    try:
        table = msgspec.json.decode(capabilities, type=dict[str, Any])
    except jsonrpc.UNPARSABLE:
        return ""
    extensions, experimental = table.get("extensions"), table.get("experimental")
    declared: dict[str, Any] = {}
    if is_table(extensions):
        declared["extensions"] = {
            name: value for name, value in extensions.items() if name not in _CONCERN_US
        }
    if is_table(experimental):
        declared["experimental"] = experimental
    declared = {name: value for name, value in declared.items() if value}
    if declared.keys() == {"extensions"} and declared["extensions"].keys() == {UI}:
        settings = declared["extensions"][UI]
        types = settings.get("mimeTypes") if is_table(settings) else None
        # without types, the usual one is meant
        if not is_list(types) or APP_PAGE in types:
            return _SHOWS_PAGES
    return msgspec.json.encode(declared, order="sorted").decode() if declared else ""


def shows_pages(declared: str) -> bool:
    """Whether a client that declares this shows the pages of MCP apps."""
    return f'"{UI}"' in declared


def abilities(capabilities: Raw) -> tuple[str, ...]:
    """The kinds of questions that a client can answer."""
    try:
        declared = parse_table(capabilities)
    except jsonrpc.UNPARSABLE:
        return ()
    return tuple(ability for ability in _ABILITIES.values() if ability in declared)


def able(capabilities: Raw, method: str, params: Mapping[str, Any]) -> bool:
    """Whether a client with these capabilities can answer this question."""
    ability = _ABILITIES.get(method, "")
    try:
        if ability not in parse_table(capabilities):
            return False
        modes = _declaration(capabilities, ability)
    except jsonrpc.UNPARSABLE:
        return False
    match ability:
        case "elicitation":
            mode = params.get("mode", "form")
            return mode in modes or (mode == "form" and not modes)
        case "sampling":
            return "tools" in modes or not (params.get("tools") or params.get("toolChoice"))
        case _:
            return True


def fit(capabilities: Raw, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a question, reduced to what a client with these capabilities supports.

    Raises:
        RpcError: It cannot be asked this.
    """
    if not able(capabilities, method, params):
        ability = _ABILITIES.get(method, method)
        mode = params.get("mode") or ("tools" if params.get("tools") else "")
        reason = f"the client does not support {ability} {mode}".strip()
        raise RpcError(METHOD_NOT_FOUND, reason)
    if "includeContext" in params and "context" not in _declaration(capabilities, "sampling"):
        return {key: value for key, value in params.items() if key != "includeContext"}
    return params


def _declaration(capabilities: Raw, ability: str) -> Mapping[str, Raw]:
    return parse_table(parse_table(capabilities).get(ability, EMPTY))


def level_of(name: str | None) -> int:
    """The severity of a log level as a number; unknown levels are the most severe."""
    return LEVELS.index(name) if name in LEVELS else len(LEVELS)


def is_grave(message: Raw, least: str) -> bool:
    """Whether a log message has at least the given level."""
    try:
        return level_of(_parse_log(message).level) >= level_of(least)
    except jsonrpc.UNPARSABLE:
        return False


def wants_log(client: Client, message: Raw) -> bool:
    """Whether a handshake client wants a log message; without a level set, the server decides."""
    return client.log_level is None or is_grave(message, client.log_level)


def _caller(info: Mapping[str, Any], principal: Principal) -> str:
    label = principal.name if principal.key else ""
    parts = (info.get("title") or info.get("name"), info.get("version"))
    name = " ".join(word[:_LONGEST_WORD] for word in parts if isinstance(word, str) and word)
    return f"{name} ({label})" if name and label else name or label


def log_level(value: Raw | None) -> str | None:
    """A log level a client asks for.

    Raises:
        RpcError: There is no such level.
    """
    name = text_of(value)
    if value is not None and name not in LEVELS:
        raise RpcError(INVALID_PARAMS, f"no such log level; expected one of {', '.join(LEVELS)}")
    return name


_REMOVED = frozenset({"notifications/elicitation/complete"})
"""Notifications that the stateless era has removed."""


class ClientRequest(msgspec.Struct, eq=False, kw_only=True):
    """The client, the id and the outlet of a request; an `OnBehalfOf` to servers."""

    client: Client
    """The client that sent it."""
    slot_holder: object
    """The holder whose share of the server's slots it uses."""
    request_id: Raw
    """Its JSON-RPC id, undecoded."""
    outlet: Outlet
    """Takes messages that precede the answer."""
    params: RequestParams
    """Its parameters."""
    capabilities: Raw
    log_level: str | None
    principal: Principal
    caller: str
    is_stateless: bool = False
    """Whether it belongs to the stateless era."""
    script: str | None = None
    """The script that makes it, if it is not the client itself."""
    is_approved: bool = False
    """Whether a person has approved this call of a script."""
    head: RequestHead | None = None
    """The head of its HTTP request; None on a stream."""
    result: ToolResult | None = None
    """What a server answered to its call, once it has."""

    @property
    def program(self) -> str:
        """The name that the client gives itself; empty if it gives none."""
        info: Mapping[str, Any] = self.client.info
        if (encoded := self.params.meta.get(jsonrpc.CLIENT_INFO_KEY)) is not None:
            try:
                info = msgspec.json.decode(encoded, type=dict[str, Any])
            except jsonrpc.UNPARSABLE:
                return ""
        name = info.get("name")
        return name if isinstance(name, str) else ""

    @property
    def drives_rounds(self) -> bool:
        """Whether the client itself answers what servers ask back."""
        return self.is_stateless

    @property
    def can_be_asked_now(self) -> bool:
        # one that can answer nothing has nothing to be asked
        return not self.is_stateless or self.capabilities == EMPTY

    @property
    def holder(self) -> str:
        return self.client.holder

    @property
    def owner(self) -> object:
        # without a session, two requests of one token may come from two programs
        return self.client if self.client.single else self

    def on_page_read(self, server: str) -> None:
        """Note that the client shows a page of a server from now on."""
        apps = self.client.apps
        if self._app_key not in apps and len(apps) >= _MOST_APPS:
            del apps[next(iter(apps))]
        servers = apps.setdefault(self._app_key, [])
        if server in servers:
            servers.remove(server)
        servers.append(server)

    def app_rank(self, server: str) -> int:
        """How recently the client read a page of a server; 0: never."""
        servers = self.client.apps.get(self._app_key, [])
        return servers.index(server) + 1 if server in servers else 0

    @property
    def last_app(self) -> str | None:
        """The server whose page the client read last."""
        servers = self.client.apps.get(self._app_key)
        return servers[-1] if servers else None

    @property
    def _app_key(self) -> str:
        return "" if self.client.single else self.caller

    def context(self) -> CallContext:
        """The context of the calls made for it."""
        on_progress = self.on_progress() if self.params.meta else None
        return CallContext(
            client=self,
            on_progress=on_progress,
            session_id=self.script,
            approved=self.is_approved,
        )

    def on_progress(self) -> OnProgress | None:
        """Sends progress to the client; None if it did not ask for it."""
        token = self.params.meta.get("progressToken")
        if token is None:
            return None

        def report(progress: float, total: float | None, message: str | None) -> None:
            progress_params: dict[str, Any] = {"progressToken": token, "progress": _plain(progress)}
            if total is not None:
                progress_params["total"] = _plain(total)
            if message is not None:
                progress_params["message"] = message
            self.outlet.send(notification("notifications/progress", progress_params))

        return report

    def on_notification(self, method: str, params: Raw) -> None:
        is_wanted = not (self.is_stateless and method in _REMOVED)
        if method == "notifications/message":
            is_wanted = self._wants(params)
        if is_wanted:
            self.outlet.send(notification(method, params))

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        if self.is_stateless:
            # raises a better reason if the client could not answer at all
            fit(self.capabilities, method, params)
            raise RpcError(METHOD_NOT_FOUND, "the client cannot be asked during this request")
        return await self.client.ask(method, params, self.outlet)

    def _wants(self, params: Raw) -> bool:
        if not self.is_stateless:
            return wants_log(self.client, params)
        return self.log_level is not None and is_grave(params, self.log_level)


def _plain(number: float) -> float | int:
    # a count as the server wrote it: `3`, not `3.0`
    return int(number) if number.is_integer() else number


def session_request(
    client: Client,
    request_id: Raw,
    outlet: Outlet,
    params: RequestParams,
    *,
    head: RequestHead | None = None,
) -> ClientRequest:
    """A request of the handshake era; the capabilities are those of the handshake."""
    return ClientRequest(
        client=client,
        slot_holder=client.slot_holder,
        request_id=request_id,
        outlet=outlet,
        params=params,
        capabilities=client.capabilities,
        log_level=client.log_level or USUAL_LEVEL,
        principal=client.principal,
        caller=client.caller,
        head=head,
    )


def stateless_request(
    client: Client,
    request_id: Raw,
    outlet: Outlet,
    params: RequestParams,
    *,
    cached: "KnownCall | None" = None,
    head: RequestHead | None = None,
) -> ClientRequest:
    """A request of the stateless era, which carries its client's capabilities.

    Args:
        client: The client.
        request_id: Its JSON-RPC id.
        outlet: Takes messages that precede the answer.
        params: Its parameters.
        cached: The last call with the same `_meta`, which is then not decoded again.
        head: The head of its HTTP request; None on a stream.
    """
    if cached is not None:
        capabilities, level, caller = cached.capabilities, cached.log_level, cached.caller
    else:
        meta = params.meta
        capabilities = meta.get(jsonrpc.CLIENT_CAPABILITIES_KEY, EMPTY)
        encoded, info = meta.get(jsonrpc.LOG_LEVEL_KEY), meta.get(jsonrpc.CLIENT_INFO_KEY)
        level = None if encoded is None else log_level(encoded)
        caller = client.caller if info is None else client.caller_of(info)
    return ClientRequest(
        client=client,
        slot_holder=client.slot_holder,
        request_id=request_id,
        outlet=outlet,
        params=params,
        capabilities=capabilities,
        log_level=level,
        principal=client.principal,
        caller=caller,
        is_stateless=True,
        head=head,
    )
