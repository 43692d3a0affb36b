"""What MCP leaves to extensions and passes through: capabilities, methods, notifications."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import allowed
from multitap.config.documents import is_table
from multitap.errors import LONGEST_QUOTE, MultitapError, shortened
from multitap.events import LinkState
from multitap.gateway import client_errors
from multitap.gateway.client import Client, ClientRequest
from multitap.gateway.private_links import PrivateLinks
from multitap.gateway.variants import Variants
from multitap.gateway.view import View
from multitap.names import ToolNames
from multitap.tasks import Tasks
from multitap.trust.questions import SERVER_KEY
from multitap.upstream.link import Link
from multitap.wire.jsonrpc import (
    CLIENT_CAPABILITIES_KEY,
    EMPTY,
    UNPARSABLE,
    Result,
    RpcError,
    parse_table,
    text_of,
)

if TYPE_CHECKING:
    from multitap.gateway.calls import ClientLookup

_OURS = frozenset(
    {
        "completion",
        "elicitation",
        "groups",
        "initialize",
        "logging",
        "ping",
        "prompts",
        "resources",
        "roots",
        "sampling",
        "server",
        "skills",
        "subscriptions",
        "tasks",
        "tools",
    }
)
"""The first words of methods that are answered or refused here: no server sees them unread."""
_OUR_NOTIFICATIONS = _OURS | {"cancelled", "initialized", "message", "progress"}
_NOTIFICATIONS = "notifications/"


def is_custom(method: str) -> bool:
    """Whether a request or a notification is defined by an extension, and not by MCP."""
    if method.startswith(_NOTIFICATIONS):
        return method.removeprefix(_NOTIFICATIONS).partition("/")[0] not in _OUR_NOTIFICATIONS
    return method.partition("/")[0] not in _OURS


def merge_capabilities(
    declared: Iterator[Mapping[str, Any]], left_out: frozenset[str]
) -> dict[str, Any]:
    """The capabilities of several servers as those of one; what the first one says counts.

    Args:
        declared: What each of them declares besides MCP's own capabilities.
        left_out: Extensions that are not passed on, but offered by the gateway or not at all.
    """
    merged: dict[str, Any] = {}
    for capabilities in declared:
        for name, value in capabilities.items():
            if not is_table(value):
                continue
            members = merged.setdefault(name, {})
            hidden = left_out if name == "extensions" else ()
            for key, settings in value.items():
                if key not in hidden:
                    members.setdefault(key, settings)
    # an empty table says something for a capability, and nothing for a set of them
    return {
        name: value
        for name, value in merged.items()
        if value or name not in {"extensions", "experimental"}
    }


class SendRequest(Protocol):
    """Sends a request of a client to a server, in turn and in the era of both."""

    def __call__(
        self, request: ClientRequest, link: Link, method: str, params: dict[str, Any]
    ) -> Awaitable[Result]: ...


class PassThrough:
    """Passes on what only a client and one of its servers understand.

    The server is the one that the client names in `_meta`, the only one that declares a capability
    named like the method, or the only one that the client sees: nothing is sent to a server for
    which it may not be meant. Filters and policy apply as to a tool of that name.

    Args:
        lookup: Waits for servers that still start.
        variants: The sessions of clients with extensions of their own.
        view: Returns what clients of an audience see.
        private: Sessions of single clients.
        send: Sends a request.
        tasks: Runs what is sent without an answer.
    """

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        lookup: "ClientLookup",
        variants: Variants,
        view: Callable[[Audience], View],
        private: PrivateLinks,
        send: SendRequest,
        tasks: Tasks,
    ) -> None:
        self._lookup = lookup
        self._variants = variants
        self._view = view
        self._private = private
        self._send = send
        self._tasks = tasks

    def capabilities(self, audience: Audience, left_out: frozenset[str]) -> dict[str, Any]:
        """What the servers that an audience sees declare besides MCP's own capabilities."""
        declared = (_declared(link) for link in self._links(audience))
        return merge_capabilities(declared, left_out)

    async def answer(self, request: ClientRequest, method: str, params: Raw) -> Result:
        """The answer of a server to a method that MCP does not define.

        Raises:
            RpcError: It is not clear which server is meant, or the server refuses.
            MultitapError: The server cannot be asked.
        """
        table = parse_table(params) if len(params) else {}
        audience, meta = request.client.audience, request.params.meta

        def choose() -> Link | None:
            try:
                return self._choose(audience, method, meta)
            except RpcError:
                return None

        # what a server declares is known once it is up
        link = await self._lookup.wait_for(request, choose) or self._choose(audience, method, meta)
        # these are added again, for servers whose era has them
        own = {
            key: table[key] for key in table.keys() - {"_meta", "requestState", "inputResponses"}
        }
        return await self._send(request, link, method, own)

    def on_notification(self, client: Client, method: str, params: Raw) -> None:
        """Pass a notification on; never waits."""
        try:
            table = parse_table(params) if len(params) else {}
            meta = parse_table(table.get("_meta", EMPTY))
        except UNPARSABLE:
            return  # a notification has no answer that could say so
        # a client without a session says in each message what it can do
        able = meta.get(CLIENT_CAPABILITIES_KEY, client.capabilities).copy()
        copied = {key: value.copy() for key, value in table.items()}
        self._tasks.start_apart(self._tell, client, method, copied, able)

    async def _tell(
        self, client: Client, method: str, params: Mapping[str, Raw], able: Raw
    ) -> None:
        # as for a request: the session that the client's next request uses may still be starting
        await self._variants.wait_ready(client.audience.declared)
        try:
            meta = parse_table(params.get("_meta", EMPTY))
            link = self._choose(client.audience, method, meta)
            if not self._private.shares(client, link):
                link = await self._private.link(client, link)
        except (MultitapError, RpcError):
            return
        await link.requests.notify(method, params, able)

    def _links(self, audience: Audience) -> Iterator[Link]:
        view = self._view(audience)
        # of the view: some clients have other sessions with the same servers
        for link in view.catalog.links.values():
            # servers in this process are ours, and have no methods of their own
            if (
                view.has(link.name)
                and link.state is not LinkState.DISABLED
                and link.config.transport != "local"
            ):
                yield link

    def _choose(self, audience: Audience, method: str, meta: Mapping[str, Raw]) -> Link:
        links = [link for link in self._links(audience) if self._permits(audience, link, method)]
        if (name := text_of(meta.get(SERVER_KEY))) is not None:
            links = [link for link in links if link.name == name]
        elif len(links) > 1:
            links = [link for link in links if _names_capability(method, _declared(link))] or links
        if len(links) == 1:
            return links[0]
        message = f"Method not found: {shortened(method, LONGEST_QUOTE)}"
        if not links:
            raise RpcError(client_errors.NO_METHOD, message)
        hint = f"name the server in `_meta`, as {SERVER_KEY!r}"
        data = {"reason": "ambiguous", "hint": hint, "servers": [link.name for link in links]}
        raise RpcError(client_errors.NO_METHOD, f"{message}; {hint}", data)

    def _permits(self, audience: Audience, link: Link, method: str) -> bool:
        """Whether filters and policy would let a tool pass that is named like the method."""
        view, names = self._view(audience), ToolNames(method, method, link.name)
        if not view.limits.shows(names):
            return False
        if not allowed(names, link.config.filter, servers=(link.name,)):
            return False
        policy = view.defaults.policy
        # nobody can be asked about it, so whatever the policy would guard is refused
        return policy is None or policy.guard(names, link.config, {}) is None


def _declared(link: Link) -> Mapping[str, Any]:
    return {} if link.offers is None else link.offers.capabilities


def _names_capability(method: str, declared: Mapping[str, Any]) -> bool:
    """Whether a method belongs to one of a server's capabilities, by its name.

    `acme/echo` belongs to the capability `acme`, and to the extension `com.example/acme`.
    """
    method = method.removeprefix(_NOTIFICATIONS)
    keys = {*declared}
    for name in ("extensions", "experimental"):
        if is_table(table := declared.get(name)):
            keys |= table.keys()
    return any(method.startswith((f"{key}/", f"{key.rpartition('/')[2]}/")) for key in keys)
