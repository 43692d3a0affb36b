"""The first messages to a server: identity, capabilities, protocol version."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.errors import LONGEST_QUOTE, quoted, shortened
from multitap.faults import AnswerInvalid
from multitap.records import dataclass
from multitap.upstream.handlers import Handlers
from multitap.version import VERSION
from multitap.wire.jsonrpc import envelope, vocabulary
from multitap.wire.jsonrpc.request import make_request
from multitap.wire.wire import RpcError, Wire

_OURSELVES = {"name": "multitap", "version": VERSION}


class BadHandshake(Exception):
    """A server's answer to the handshake lacks required fields."""


class ListCapability(msgspec.Struct, frozen=True, rename="camel"):
    """A capability with a list, such as tools."""

    list_changed: bool | None = None
    """Whether it sends a notification when the list changes."""


class PlainCapability(msgspec.Struct, frozen=True):
    """A capability without options."""


class Capabilities(msgspec.Struct, frozen=True, rename="camel"):
    """The capabilities of a server that matter to us."""

    tools: ListCapability | None = None
    resources: ListCapability | None = None
    prompts: ListCapability | None = None
    logging: PlainCapability | None = None


class _Info(msgspec.Struct):
    name: str
    version: str
    title: str | None = None


class _Initialized(msgspec.Struct, rename="camel"):
    protocol_version: str
    capabilities: Capabilities
    server_info: _Info
    instructions: str | None = None


class _Discovered(msgspec.Struct, rename="camel"):
    supported_versions: list[str]
    capabilities: Capabilities
    instructions: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class _Supported(msgspec.Struct):
    supported: list[str]


# not strict: some servers send booleans as texts or numbers
_parse_initialized = msgspec.json.Decoder(_Initialized, strict=False).decode
_parse_discovered = msgspec.json.Decoder(_Discovered, strict=False).decode


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """The result of the handshake."""

    protocol_version: str
    capabilities: Capabilities
    instructions: str | None
    title: str | None
    """The server's own name and version."""


class Handshake:
    """Negotiates with one server.

    Args:
        wire: The wire.
        handlers: The host's handlers, which determine our capabilities.
        timeout: Seconds for each request.
    """

    def __init__(self, wire: Wire, handlers: Handlers, *, timeout: float) -> None:
        self._wire = wire
        self._capabilities = capabilities(handlers)
        self._timeout = timeout

    def introduction(self, version: str) -> dict[str, Any]:
        """The `_meta` members that describe us in every stateless request."""
        return {
            vocabulary.PROTOCOL_VERSION_KEY: version,
            vocabulary.CLIENT_INFO_KEY: _OURSELVES,
            vocabulary.CLIENT_CAPABILITIES_KEY: self._capabilities,
        }

    async def initialize(self) -> SessionTerms:
        """Do the handshake of the handshake era.

        Raises:
            BadHandshake: The answer is incomplete.
            AnswerInvalid: The server wants a version that we do not speak.
            RpcError: The server refuses.
            WireFault: The wire failed.
        """
        params = {
            "protocolVersion": vocabulary.HANDSHAKE_VERSIONS[-1],
            "capabilities": self._capabilities,
            "clientInfo": _OURSELVES,
        }
        result = await self._ask("initialize", params)
        try:
            told = _parse_initialized(result)
        except envelope.UNPARSABLE as exc:
            raise BadHandshake(str(exc)) from None
        version = told.protocol_version
        if version not in vocabulary.HANDSHAKE_VERSIONS:
            raise AnswerInvalid(
                f"it speaks version {quoted(version)}, which is not known", sent=True
            )
        headers = {vocabulary.VERSION_HEADER: version}
        # with the header: the wire learns the version after this, but servers already check it
        await self._wire.notify("notifications/initialized", None, headers=headers)
        return SessionTerms(version, told.capabilities, told.instructions, _title(told.server_info))

    async def discover(self) -> SessionTerms | None:
        """Discover a stateless server; None if it does not support this era.

        Raises:
            WireFault: The wire failed.
        """
        version = vocabulary.STATELESS_VERSIONS[-1]
        try:
            try:
                result = await self._probe(version)
            except RpcError as exc:
                # any other refusal means the older era, which has no defined error for this
                if (common := _common(exc)) is None:
                    return None
                result = await self._probe(common)
            told = _parse_discovered(result)
        # older servers may answer an unknown method with anything
        except (RpcError, AnswerInvalid, *envelope.UNPARSABLE):
            return None
        spoken = _newest(told.supported_versions)
        if spoken is None:
            return None
        title = _stamped_title(told.meta or {})
        return SessionTerms(spoken, told.capabilities, told.instructions, title)

    async def _probe(self, version: str) -> Raw:
        method = "server/discover"
        headers = {vocabulary.VERSION_HEADER: version, vocabulary.METHOD_HEADER: method}
        return await self._ask(method, {"_meta": self.introduction(version)}, headers)

    async def _ask(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Raw:
        # never cancelled: MCP forbids it for `initialize`, and a late answer to a probe still
        # counts
        return await self._wire.request(
            make_request(method, params, self._timeout, headers=headers, cancellable=False)
        )


def capabilities(handlers: Handlers) -> dict[str, Any]:
    """Our capabilities, by the handlers that are set."""
    told: dict[str, Any] = {}
    if handlers.sample is not None:
        given = {"context": handlers.sample_context, "tools": handlers.sample_tools}
        told["sampling"] = {name: {} for name, on in given.items() if on}
    if handlers.elicit is not None:
        told["elicitation"] = {"form": {}, "url": {}}
    if handlers.roots is not None:
        told["roots"] = {"listChanged": True}
    return told


def _newest(versions: list[str]) -> str | None:
    """The newest of these stateless versions that we support."""
    return next((one for one in reversed(vocabulary.STATELESS_VERSIONS) if one in versions), None)


def _common(exc: RpcError) -> str | None:
    """A version to try instead of a refused one."""
    if exc.code != vocabulary.UNSUPPORTED_VERSION:
        return None
    try:
        return _newest(msgspec.convert(exc.data, _Supported).supported)
    except msgspec.ValidationError:
        return None


def _stamped_title(meta: Mapping[str, Any]) -> str | None:
    """The name of a stateless server, for display; a malformed one is ignored."""
    try:
        return _title(msgspec.convert(meta.get(vocabulary.SERVER_INFO_KEY), _Info))
    except msgspec.ValidationError:
        return None


def _title(info: _Info) -> str:
    return shortened(f"{info.title or info.name} {info.version}".strip(), LONGEST_QUOTE)
