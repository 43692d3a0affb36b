"""Spans of what is sent to servers, and the context that tells servers about them."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from msgspec import Raw

from multitap.errors import AnswerTimeout, WireFault
from multitap.telemetry.spans import CURRENT, Span, SpanContext, Spans
from multitap.upstream.questions import CallContext
from multitap.wire.jsonrpc import UNPARSABLE, Params, RpcError, encode, parse_table
from multitap.wire.request import Request, members
from multitap.wire.wire import Evidence, Wire

TRANSPORTS: Mapping[str, str] = {"stdio": "pipe", "streamable-http": "tcp", "sse": "tcp"}
"""The `network.transport` of each kind of wire."""
NAMED: Mapping[str, str] = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
}
"""The attribute with the name of what a method concerns."""
_CONTEXT_KEYS = ("traceparent", "tracestate")


class SpanWire:
    """See `Wire`; records a CLIENT span for each message to the server, if one is wanted.

    What a client says about its trace is replaced: the server's parent is our span, not the
    client's. A request that is not recorded passes unchanged.

    Args:
        wire: Carries the messages.
        server: The server's name.
        spans: Records them.
        address: The server's host and port, if it has any.
    """

    def __init__(
        self, wire: Wire, server: str, spans: Spans, address: tuple[str, int] | None
    ) -> None:
        self._wire = wire
        self.kind = wire.kind
        self.closed = wire.closed
        self.attach = wire.attach
        self.serves_only = wire.serves_only
        self.is_stopped = wire.is_stopped
        self._server = server
        self._spans = spans
        self._address = address
        self._version = ""

    @property
    def fault(self) -> WireFault | None:
        return self._wire.fault

    def evidence(self) -> Evidence:
        return self._wire.evidence()

    def establish(self, protocol_version: str, *, stateless: bool) -> None:
        self._version = protocol_version
        self._wire.establish(protocol_version, stateless=stateless)

    def request(self, request: Request) -> Coroutine[Any, Any, Raw]:
        # not awaited here: a request that is not recorded has no frame more than without traces
        span = self._begin(request)
        return self._wire.request(request) if span is None else self._record(request, span)

    async def _record(self, request: Request, span: Span) -> Raw:
        meta, headers = request.meta, request.headers
        if self._spans.injects:
            request.meta = with_context(meta, span.context)
            if self.kind == "streamable-http":
                request.headers = {**(headers or {}), **_members(span.context)}
        try:
            result = await self._wire.request(request)
        except BaseException as exc:
            fail(span, exc)
            raise
        else:
            if request.method == "tools/call" and _is_failed(result):
                span.fail("tool_error")
            return result
        finally:
            request.meta, request.headers = meta, headers  # a retry has a span of its own
            self._spans.end(span)

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        span = self._spans.begin_client(method, CURRENT.get())
        if span is None:
            await self._wire.notify(method, params, headers=headers)
            return
        self._describe(span, method)
        if self._spans.injects:
            before: Any = params or {}
            meta = before.get("_meta", {})
            # a client's own is passed on undecoded
            table = parse_table(meta) if isinstance(meta, Raw) else meta
            params = {**before, "_meta": {**table, **_members(span.context)}}
        try:
            await self._wire.notify(method, params, headers=headers)
        except BaseException as exc:
            fail(span, exc)
            raise
        finally:
            self._spans.end(span)

    def _begin(self, request: Request) -> Span | None:
        if request.is_relayed:  # the replica that sends it here records it
            return None
        parent, call = CURRENT.get(), request.call
        if parent is None and isinstance(call, CallContext) and call.client is not None:
            return None  # decided already, for the whole request of the client
        method, name = request.method, request.name
        named = NAMED.get(method)
        title = f"{method} {name}" if named and name else method
        span = self._spans.begin_client(title, parent)
        if span is None:
            return None
        self._describe(span, method)
        if named:
            span.set(named, name)
        elif method.startswith("resources/"):
            span.set("mcp.resource.uri", name)
        if method == "tools/call":
            span.set("gen_ai.operation.name", "execute_tool")
        return span

    def _describe(self, span: Span, method: str) -> None:
        span.set("mcp.method.name", method)
        span.set("multitap.server", self._server)
        span.set("mcp.protocol.version", self._version)
        if transport := TRANSPORTS.get(self.kind):
            span.set("network.transport", transport)
        if self._address is not None:
            span.set("network.protocol.name", "http")
            span.set("network.protocol.version", "1.1")
            span.set("server.address", self._address[0])
            span.set("server.port", self._address[1])


def with_context(meta: bytes, context: SpanContext) -> bytes:
    """Members of `_meta` in which a span is the parent."""
    if b"trace" in meta:
        try:
            others = parse_table(b"{%b}" % meta)
        except UNPARSABLE:
            return meta
        meta = members({key: others[key] for key in others if key not in _CONTEXT_KEYS})
    added = members(_members(context))
    return b"%b,%b" % (meta, added) if meta else added


def _members(context: SpanContext) -> dict[str, str]:
    if context.state:
        return {"traceparent": context.header, "tracestate": context.state}
    return {"traceparent": context.header}


def fail(span: Span, exc: BaseException) -> None:
    """Note how an exchange failed."""
    match exc:
        case RpcError():
            span.fail(str(exc.code), str(exc))
            span.set("rpc.response.status_code", str(exc.code))
        case asyncio.CancelledError():
            span.fail("cancelled")
        case AnswerTimeout():
            span.fail("timeout", str(exc))
        case _:
            span.fail(type(exc).__name__, str(exc))


def _is_failed(result: Raw) -> bool:
    """Whether a tool says that it failed; looked at closely only if it may be so."""
    data = bytes(result)
    if b'"isError"' not in data:
        return False
    try:
        return parse_table(result).get("isError") == Raw(encode(True))
    except UNPARSABLE:
        return False
