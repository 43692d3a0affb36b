"""Sends spans to a collector, by OTLP over HTTP; needs the extra `otel`.

The exporter of OpenTelemetry's SDK, with its variables (`OTEL_EXPORTER_OTLP_…`), in a thread of our
own: a collector that hangs, refuses or dies costs a bounded queue and a line in the log per minute.
"""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from multitap.errors import ConfigError
from multitap.installation import extra_hint
from multitap.telemetry.spans import Span, SpanContext
from multitap.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link
    from opentelemetry.trace import SpanContext as OtelContext

logger = logging.getLogger(__name__)

FLUSH = 2.0
"""Seconds to send the last spans at the end."""
_QUIET = 60.0  # seconds between two lines about a collector that cannot be reached
_SCOPE = "multitap"


class OtlpSink:
    """Exports spans in the background; a `SpanSink`.

    Args:
        exporter: Sends batches; it may block.
        resource: Describes this gateway.
        environ: Has the sizes of queue and batch, and the delay, as of the SDK.
    """

    def __init__(
        self,
        exporter: "SpanExporter",
        resource: "Resource",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._exporter = exporter
        self._resource = resource
        self._most = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        self._batch = min(_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512), self._most)
        self._delay = _number(environ, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000
        self._queue: deque[Span] = deque()
        self._wake = threading.Event()
        self._is_closing = False
        self._complained = -_QUIET
        self.exported = 0
        self.lost = 0
        """Spans that the collector did not take, or for which there was no room."""
        self._thread = threading.Thread(target=self._run, name="multitap-otlp", daemon=True)
        self._thread.start()

    def take(self, span: Span) -> None:
        """Queue a span; never waits."""
        if len(self._queue) >= self._most:
            self.lost += 1
            return
        self._queue.append(span)
        if len(self._queue) >= self._batch:
            self._wake.set()

    def close(self, most: float = FLUSH) -> None:
        """Send what is queued, for `most` seconds at most."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(most / 2)
        # ends its wait before another attempt
        self._exporter.shutdown()
        self._thread.join(most / 2)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(self._delay)
            self._wake.clear()
            self._export_all()
        self._export_all()

    def _export_all(self) -> None:
        while self._queue:
            # the loop only appends: no lock is needed
            spans = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            is_sent, reason = self._export(spans)
            if is_sent:
                self.exported += len(spans)
            else:
                self.lost += len(spans)
                self._complain(reason)

    def _export(self, spans: list[Span]) -> tuple[bool, str]:
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415 - an extra

        try:
            result = self._exporter.export([to_otel(span, self._resource) for span in spans])
        except Exception as exc:  # noqa: BLE001 - boundary: a broken exporter must not end the thread
            return False, f": {exc}"
        return result is SpanExportResult.SUCCESS, ""

    def _complain(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._complained >= _QUIET:
            self._complained = now
            logger.warning("the collector takes no traces%s; %d spans are lost", reason, self.lost)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{name}={text!r} is not a number", hint=f"the default is {default}")
    return int(text)


@contextmanager
def open_otlp(environ: Mapping[str, str] = os.environ) -> Generator[OtlpSink]:
    """While entered, spans can be exported.

    Raises:
        ConfigError: The extra is missing, or a variable cannot be used.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
    except ImportError:
        raise ConfigError('traces = "otlp" needs OpenTelemetry', hint=extra_hint("otel")) from None
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if protocol not in {None, "", "http/protobuf"}:
        raise ConfigError(
            f"the OTLP protocol {protocol!r} is not supported",
            hint="use OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf; collectors listen on port 4318",
        )
    # it writes a line for each attempt; we write one a minute
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    sink = OtlpSink(OTLPSpanExporter(), own_resource(), environ)
    try:
        yield sink
    finally:
        sink.close()


def own_resource() -> "Resource":
    """What describes this gateway; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win."""
    from opentelemetry.sdk import resources  # noqa: PLC0415 - an extra

    ours = {
        "service.name": "multitap",
        "service.version": VERSION,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
    }
    return resources.Resource(ours).merge(resources.OTELResourceDetector().detect())


def to_otel(span: Span, resource: "Resource") -> "ReadableSpan":
    """A span as the SDK has it."""
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import SpanKind  # noqa: PLC0415
    from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

    attributes: Any = span.attributes
    return ReadableSpan(
        name=span.name,
        context=_context(span.context, is_remote=False),
        # ours if it is in this process, which only the kinds tell: a SERVER's parent is not
        parent=None
        if span.parent is None
        else _context(span.parent, is_remote=span.kind == "server"),
        resource=resource,
        attributes=attributes,
        events=[Event(event.name, event.attributes, event.at) for event in span.events],
        links=[_link(context) for context in span.links],
        kind=SpanKind.SERVER if span.kind == "server" else SpanKind.CLIENT,
        instrumentation_scope=InstrumentationScope(_SCOPE, VERSION),
        status=Status() if span.error is None else Status(StatusCode.ERROR, span.error or None),
        start_time=span.start,
        end_time=span.end,
    )


def _link(context: SpanContext) -> "Link":
    from opentelemetry.trace import Link  # noqa: PLC0415 - an extra

    return Link(_context(context, is_remote=True))


def _context(context: SpanContext, *, is_remote: bool) -> "OtelContext":
    from opentelemetry import trace  # noqa: PLC0415 - an extra

    return trace.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote,
        trace.TraceFlags(trace.TraceFlags.SAMPLED if context.is_sampled else 0),
        trace.TraceState.from_header([context.state]) if context.state else trace.TraceState(),
    )
