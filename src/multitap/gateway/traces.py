"""A SERVER span for each request of a client, if one is wanted."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Raw

from multitap.errors import MultitapError
from multitap.gateway import client_errors
from multitap.gateway.client import Client, ClientRequest
from multitap.telemetry.spans import CURRENT, Span, Spans
from multitap.upstream.spans import NAMED
from multitap.wire.jsonrpc import UNPARSABLE, Result, RpcError, parse_params, text_of

NO_ERRORS = frozenset(
    {
        *(client_errors.PARSE_ERROR, client_errors.INVALID_REQUEST, client_errors.NO_METHOD),
        *(client_errors.INVALID_PARAMS, client_errors.NO_RESOURCE),
    }
)
"""Codes of clients' own mistakes, which the conventions do not count as errors of a server."""
_LISTS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})


class RequestTraces:
    """Records the requests of a gateway's clients.

    Args:
        spans: Decides which are recorded.
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, request: ClientRequest, method: str) -> Span | None:
        """The span of a request that has just arrived; None if it is not recorded."""
        meta, head = request.params.meta, request.head
        header = None if head is None else head.headers.get(b"traceparent")
        # undecoded: most requests are not recorded
        parent = state = None
        if meta and (raw := meta.get("traceparent")) is not None:
            parent, state = _unquoted(raw), _unquoted(meta.get("tracestate"))
        span = self._spans.begin_server(method, parent, state, header)
        if span is not None:
            _describe(span, request, method)
        return span

    async def serve(
        self, span: Span, request: ClientRequest, work: Callable[[ClientRequest], Awaitable[Result]]
    ) -> Result:
        """Do the work of a recorded request."""
        token = CURRENT.set(span)
        try:
            return await work(request)
        except BaseException as exc:
            fail(span, exc)
            raise
        finally:
            CURRENT.reset(token)
            self._spans.end(span)

    def on_notification(self, client: Client, method: str, params: Raw) -> None:
        """Record a notification of a client, which has neither an answer nor a duration."""
        parent = state = None
        if b"traceparent" in bytes(params):
            try:
                meta = parse_params(params).meta
            except UNPARSABLE:
                meta = {}
            parent, state = _unquoted(meta.get("traceparent")), _unquoted(meta.get("tracestate"))
        span = self._spans.begin_server(method, parent, state, None)
        if span is not None:
            span.set("mcp.method.name", method)
            span.set("mcp.protocol.version", client.version)
            self._spans.end(span)


def _describe(span: Span, request: ClientRequest, method: str) -> None:
    params, client, head = request.params, request.client, request.head
    span.set("mcp.method.name", method)
    span.set("jsonrpc.request.id", bytes(request.request_id).decode("utf-8", "replace").strip('"'))
    if (named := NAMED.get(method)) and params.name:
        span.name = f"{method} {params.name}"
        span.set(named, params.name)
    if method == "tools/call":
        span.set("gen_ai.operation.name", "execute_tool")
    elif method.startswith("resources/"):
        span.set("mcp.resource.uri", params.uri)
    if request.is_stateless:
        version = params.meta.get("io.modelcontextprotocol/protocolVersion")
        span.set("mcp.protocol.version", text_of(version))
    else:
        span.set("mcp.protocol.version", client.version)
    if head is None:
        span.set("network.transport", "pipe")
    else:
        span.set("network.transport", "tcp")
        span.set("network.protocol.name", "http")
        span.set("network.protocol.version", "1.1")
        span.set("client.address", head.address)
    if method in _LISTS:
        span.add_event("multitap.cache.hit", span.start)  # lists are sent from memory


def fail(span: Span, exc: BaseException) -> None:
    """Note how a request failed, unless that was its client's mistake."""
    if isinstance(exc, MultitapError):
        exc = client_errors.refusal_of(exc)
    match exc:
        case RpcError():
            span.set("rpc.response.status_code", str(exc.code))
            if exc.code not in NO_ERRORS:
                span.fail(str(exc.code), str(exc))
        case asyncio.CancelledError():
            span.fail("cancelled")
        case _:
            span.fail(type(exc).__name__)


def _unquoted(raw: Raw | None) -> bytes | None:
    """A text in JSON without its quotes; it is checked when it is used."""
    return None if raw is None else bytes(raw)[1:-1]
