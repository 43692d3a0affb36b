"""The first messages to a server: its era, identity, capabilities, protocol version."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.config.documents import is_table
from multitap.errors import LONGEST_QUOTE, AnswerInvalid, WireFault, quoted, shortened, ungrouped
from multitap.upstream.questions import Handlers
from multitap.version import VERSION
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError
from multitap.wire.request import make_request
from multitap.wire.wire import Wire

_OURSELVES = {"name": "multitap", "version": VERSION}
_LOOK = 0.05  # seconds between two looks whether a program has read its input
_SECOND_ANSWER = 1.5  # seconds for the answer to `initialize` after that to an earlier request


class Era(StrEnum):
    HANDSHAKE = "handshake"
    """Up to 2025-11-25: `initialize`, then a session."""
    STATELESS = "stateless"
    """From 2026-07-28: every request is self-contained."""


def era_of(version: str) -> Era:
    """The era of a protocol version."""
    return Era.STATELESS if version in jsonrpc.STATELESS_VERSIONS else Era.HANDSHAKE


class EraMixed(WireFault):
    """The server may be in a handshake session, although it has only agreed to the stateless era.

    It has to be started again, in the stateless era.
    """


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
    others: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any], name=" others")
    """What we do not implement ourselves, as declared: clients get to see it."""


_OWN = frozenset({"tools", "resources", "prompts", "logging", "completions", "tasks"})
"""Capabilities that we declare to clients ourselves."""
_MOST_OTHERS = 64 * 1024
"""Bytes of capabilities beyond which the others are ignored: every client would get them."""


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


class _Declared(msgspec.Struct):
    capabilities: Raw


class _Supported(msgspec.Struct):
    supported: list[str]


# not strict: some servers send booleans as texts or numbers
_parse_initialized = msgspec.json.Decoder(_Initialized, strict=False).decode
_parse_discovered = msgspec.json.Decoder(_Discovered, strict=False).decode
_parse_declared = msgspec.json.Decoder(_Declared).decode


def _with_others(capabilities: Capabilities, answer: Raw) -> Capabilities:
    declared = _parse_declared(answer).capabilities
    if len(declared) > _MOST_OTHERS:
        return capabilities
    others = {
        name: value
        for name, value in jsonrpc.decode(declared, type=dict[str, Any]).items()
        if name not in _OWN and is_table(value)
    }
    return msgspec.structs.replace(capabilities, others=others)


class SessionTerms(msgspec.Struct, frozen=True):
    """The result of the handshake."""

    protocol_version: str
    capabilities: Capabilities
    instructions: str | None
    title: str | None
    """The server's own name and version."""


class Handshake:
    """Negotiates with one server; each request has `timeout` seconds.

    `extensions` are capabilities besides MCP's own, in place of those of the handlers.
    """

    def __init__(
        self,
        wire: Wire,
        handlers: Handlers,
        *,
        timeout: float,
        extensions: Mapping[str, Any] | None = None,
    ) -> None:
        self._wire = wire
        self._capabilities = {
            **capabilities(handlers),
            **(handlers.extensions if extensions is None else extensions),
        }
        self._timeout = timeout
        self._discovered: SessionTerms | None = None
        self._is_probed = anyio.Event()
        """Set once the first request to a server of unknown era is answered."""

    async def negotiate(self, era: Era | None, probe: float) -> SessionTerms:
        """Agree with the server, in its era if that is known.

        A server of unknown era has `probe` seconds to answer `server/discover`, from when it has
        read it, before the handshake is tried.

        Raises:
            RpcError: The server refuses.
            BadHandshake: Its answer is incomplete.
            EraMixed: It answered only the first of two requests.
            WireFault: The wire failed, or the answer cannot be used.
        """
        with ungrouped():
            if era is None:
                return await self._negotiate_unknown(probe)
            if era is Era.STATELESS and (terms := await self.discover()) is not None:
                return terms
            try:
                return await self.initialize()
            except RpcError:
                # a stateless server that was too busy for the first probe may answer the next one
                if (terms := await self.discover()) is None:
                    raise
                return terms

    async def _negotiate_unknown(self, probe: float) -> SessionTerms:
        """Try the stateless era; without an answer in a moment, the handshake instead.

        A server that speaks both eras is in a handshake session from `initialize` on. So once that
        is sent, only its answer counts: a late answer to the first request does not, unless the
        server refuses the second.
        """
        async with anyio.create_task_group() as tasks:
            clock = anyio.CancelScope()

            async def discover() -> None:
                self._discovered = await self.discover()
                self._is_probed.set()
                if self._discovered is not None:
                    clock.deadline = anyio.current_time() + _SECOND_ANSWER

            tasks.start_soon(discover)
            await self._wait_probed(probe)
            if self._discovered is not None:
                return self._discovered
            with clock:
                clock.deadline = math.inf
                try:
                    terms = await self.initialize()
                except RpcError:
                    clock.deadline = math.inf
                    await self._is_probed.wait()  # it may refuse this while it handles the first
                    again = self._discovered or await self.discover()
                    if again is None:
                        raise
                    return again
                tasks.cancel_scope.cancel()
                return terms
        raise EraMixed("it answered `server/discover`, but not `initialize`", sent=True)

    async def _wait_probed(self, seconds: float) -> None:
        # servers of the handshake era may stay silent, and programs may take long to start
        while not self._wire.evidence().has_read:
            with anyio.move_on_after(_LOOK):
                await self._is_probed.wait()
                return
        with anyio.move_on_after(seconds):
            await self._is_probed.wait()

    def introduction(self, version: str) -> dict[str, Any]:
        """The `_meta` members that describe us in every stateless request."""
        return {
            jsonrpc.PROTOCOL_VERSION_KEY: version,
            jsonrpc.CLIENT_INFO_KEY: _OURSELVES,
            jsonrpc.CLIENT_CAPABILITIES_KEY: self._capabilities,
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
            "protocolVersion": jsonrpc.HANDSHAKE_VERSIONS[-1],
            "capabilities": self._capabilities,
            "clientInfo": _OURSELVES,
        }
        result = await self._ask("initialize", params)
        try:
            answer = _parse_initialized(result)
            declared = _with_others(answer.capabilities, result)
        except jsonrpc.UNPARSABLE as exc:
            raise BadHandshake(str(exc)) from None
        version = answer.protocol_version
        if version not in jsonrpc.HANDSHAKE_VERSIONS:
            raise AnswerInvalid(
                f"it speaks version {quoted(version)}, which is not known", sent=True
            )
        headers = {jsonrpc.VERSION_HEADER: version}
        # with the header: the wire learns the version after this, but servers already check it
        await self._wire.notify("notifications/initialized", None, headers=headers)
        title = _title(answer.server_info)
        return SessionTerms(version, declared, answer.instructions, title)

    async def discover(self) -> SessionTerms | None:
        """Discover a stateless server; None if it does not support this era.

        Raises:
            WireFault: The wire failed.
        """
        try:
            try:
                result = await self._probe(jsonrpc.STATELESS_VERSIONS[-1])
            except RpcError as exc:
                # any other refusal means the handshake era, which has no defined error for this
                if (common := _common(exc)) is None:
                    return None
                result = await self._probe(common)
            answer = _parse_discovered(result)
            declared = _with_others(answer.capabilities, result)
        # servers of the handshake era may answer an unknown method with anything
        except (RpcError, AnswerInvalid, *jsonrpc.UNPARSABLE):
            return None
        version = _newest(answer.supported_versions)
        if version is None:
            return None
        title = _stamped_title(answer.meta or {})
        return SessionTerms(version, declared, answer.instructions, title)

    async def _probe(self, version: str) -> Raw:
        method = "server/discover"
        headers = {jsonrpc.VERSION_HEADER: version, jsonrpc.METHOD_HEADER: method}
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
    declared: dict[str, Any] = {}
    # a handshake is before all calls, so it cannot tell which of them will answer
    asks_callers = handlers.callers_answer_within is not None
    if asks_callers or handlers.sample is not None:
        options = {"context": handlers.sample_context, "tools": handlers.sample_tools}
        declared["sampling"] = {name: {} for name, on in options.items() if on}
    if asks_callers or handlers.elicit is not None:
        declared["elicitation"] = {"form": {}, "url": {}}
    if handlers.roots is not None:
        declared["roots"] = {"listChanged": True}
    return declared


def _newest(versions: list[str]) -> str | None:
    """The newest of these stateless versions that we support."""
    ours = reversed(jsonrpc.STATELESS_VERSIONS)
    return next((version for version in ours if version in versions), None)


def _common(exc: RpcError) -> str | None:
    """A version to try instead of a refused one."""
    if exc.code != jsonrpc.UNSUPPORTED_VERSION:
        return None
    try:
        return _newest(msgspec.convert(exc.data, _Supported).supported)
    except msgspec.ValidationError:
        return None


def _stamped_title(meta: Mapping[str, Any]) -> str | None:
    """The name of a stateless server, for display; a malformed one is ignored."""
    try:
        return _title(msgspec.convert(meta.get(jsonrpc.SERVER_INFO_KEY), _Info))
    except msgspec.ValidationError:
        return None


def _title(info: _Info) -> str:
    return shortened(f"{info.title or info.name} {info.version}".strip(), LONGEST_QUOTE)
