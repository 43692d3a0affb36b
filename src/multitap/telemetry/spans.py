"""Spans of requests: whether one is recorded, its identity, and the last ones.

By the conventions of OpenTelemetry, but without its SDK: deciding that a request is not recorded
takes less than a microsecond, where the SDK takes nine, and the last spans can be read without a
collector. `otlp` hands recorded ones to the SDK's exporter.
"""

import os
import random
import re
import time
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Literal, Protocol

import msgspec

from multitap.errors import ConfigError

TraceParent = Literal["client", "link", "ignore"]
Kind = Literal["server", "client"]
AttributeValue = str | int | float | bool

CURRENT: ContextVar["Span | None"] = ContextVar("multitap_span", default=None)
"""The recorded span of the request that the running task works on."""
KEPT = 4096
"""Spans that are kept for `multitap trace`; about 4 MB."""
MOST_EVENTS = 32
_LONGEST_STATE = 512  # characters of a `tracestate`, which everybody may extend
_LONGEST_VALUE = 1024  # characters of an attribute; servers and clients choose some
# later versions of the specification may append fields
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1
_RANDOM = 2  # of W3C level 2: the trace id is random, which our ids are
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class SpanContext(msgspec.Struct, frozen=True):
    """The identity of a span, which travels with requests."""

    trace_id: str
    span_id: str
    is_sampled: bool = True
    state: str = ""
    """The `tracestate`, passed on unchanged."""

    @property
    def header(self) -> str:
        """As `traceparent`."""
        flags = _RANDOM | (_SAMPLED if self.is_sampled else 0)
        return f"00-{self.trace_id}-{self.span_id}-{flags:02x}"


class SpanEvent(msgspec.Struct, frozen=True):
    """Something that happened during a span."""

    name: str
    at: int
    """Nanoseconds since the epoch."""
    attributes: Mapping[str, AttributeValue] = {}


class Span(msgspec.Struct, eq=False, kw_only=True):
    """One request, from its arrival or sending to its answer."""

    name: str
    kind: Kind
    context: SpanContext
    parent: SpanContext | None = None
    links: list[SpanContext] = []
    start: int
    """Nanoseconds since the epoch."""
    end: int = 0
    """0 while it lasts."""
    attributes: dict[str, AttributeValue] = {}
    events: list[SpanEvent] = []
    error: str | None = None
    """What went wrong; None if nothing did."""

    def set(self, name: str, value: AttributeValue | None) -> None:
        """Set an attribute; one without a value is left out."""
        if value is not None and value != "":
            self.attributes[name] = value[:_LONGEST_VALUE] if isinstance(value, str) else value

    def add_event(
        self, name: str, at: int, attributes: Mapping[str, AttributeValue] | None = None
    ) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events.append(SpanEvent(name, at, attributes or {}))

    def fail(self, error_type: str, message: str = "") -> None:
        """Note that it failed."""
        self.set("error.type", error_type)
        self.error = message[:_LONGEST_VALUE]

    @property
    def seconds(self) -> float:
        return max(0, self.end - self.start) / 1e9


def parse_context(parent: str, state: str = "") -> SpanContext | None:
    """The identity in `traceparent` and `tracestate`; None if it is not valid."""
    match = _PARENT.fullmatch(parent)
    # the specification forbids this version, and identities of zeros alone
    if match is None or parent.startswith("ff") or match[1] == _NO_TRACE or match[2] == _NO_SPAN:
        return None
    is_sampled = bool(int(match[3], 16) & _SAMPLED)
    return SpanContext(match[1], match[2], is_sampled, state[:_LONGEST_STATE])


def current_trace() -> str | None:
    """The id of the trace that the running task works for; None if it is not recorded."""
    span = CURRENT.get()
    return None if span is None else span.context.trace_id


class SpanSink(Protocol):
    """Takes recorded spans that have ended."""

    exported: int
    """Spans that arrived."""
    lost: int
    """Spans that did not."""

    def take(self, span: Span) -> None:
        """Take one; must not block."""
        ...


class TraceSampling(msgspec.Struct, frozen=True):
    """Which requests are recorded."""

    ratio: float = 0.1
    """The share of requests that belong to no trace yet."""
    follows: bool = True
    """Whether a request that belongs to a trace is recorded if its parent is."""
    most: int = 100
    """Requests per second that are recorded at most: clients must not set our cost."""


_SAMPLERS: Mapping[str, tuple[float | None, bool]] = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}


def sampling(ratio: float, most: int, environ: Mapping[str, str] = os.environ) -> TraceSampling:
    """The sampling of the settings, unless `OTEL_TRACES_SAMPLER` says otherwise.

    Raises:
        ConfigError: The variables cannot be used.
    """
    follows = True
    if name := environ.get("OTEL_TRACES_SAMPLER", "").strip():
        if name not in _SAMPLERS:
            raise ConfigError(
                f"OTEL_TRACES_SAMPLER={name!r} is not supported",
                hint=f"use one of {', '.join(_SAMPLERS)}",
            )
        fixed, follows = _SAMPLERS[name]
        ratio = _argument(environ.get("OTEL_TRACES_SAMPLER_ARG", "")) if fixed is None else fixed
    return TraceSampling(ratio, follows, most)


def is_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether OpenTelemetry's own variables turn it off."""
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _argument(text: str) -> float:
    try:
        # 1.0 is the default of the specification
        ratio = float(text or 1.0)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER_ARG={text!r} is not a share", hint="use a number from 0 to 1"
        )
    return ratio


class Spans:
    """Decides which requests are recorded, and keeps the last spans.

    Args:
        sampling: Which requests are recorded.
        parent: What the context of a client means: our parent, a link, or nothing.
        sink: Exports spans; None if they are only kept.
        injects: Whether servers get our context; not with `OTEL_PROPAGATORS=none`.
    """

    def __init__(
        self,
        sampling: TraceSampling = TraceSampling(),
        *,
        parent: TraceParent = "client",
        sink: SpanSink | None = None,
        injects: bool = True,
    ) -> None:
        self._sampling = sampling
        self._parent: TraceParent = parent
        self.sink = sink
        self.injects = injects
        self._kept: deque[Span] = deque(maxlen=KEPT)
        self._second = 0
        self._left = sampling.most
        self.unrecorded = 0
        """Requests beyond the limit per second."""

    def begin_server(
        self, name: str, parent: bytes | None, state: bytes | None, header: bytes | None
    ) -> Span | None:
        """The span of a client's request; None if it is not recorded.

        Args:
            name: The span's name.
            parent: The `traceparent` in its `_meta`, if any.
            state: The `tracestate` there.
            header: The `traceparent` of the HTTP request, which counts if `_meta` has none.
        """
        sampling, value = self._sampling, parent or header
        # by the flags alone: the rest is read only if it is recorded
        is_followed = value is not None and sampling.follows and self._parent == "client"
        if is_followed and value is not None:
            flags = value[53:55]
            # the flag is the lowest bit of the last digit
            is_sampled = flags[1:] in b"13579bdf" and len(flags) == 2  # noqa: PLR2004 - two digits
            if not is_sampled:
                return None
        elif random.random() >= sampling.ratio:  # noqa: S311 - not a secret
            return None
        if not self._may_record():
            return None
        context = parse_context(_text(parent), _text(state)) if parent else None
        from_header = parse_context(_text(header)) if header else None
        return self._begin(name, context, from_header)

    def begin_client(self, name: str, parent: Span | None) -> Span | None:
        """The span of a request to a server; None if it is not recorded.

        Args:
            name: The span's name.
            parent: The span of the client's request; None if it is our own.
        """
        if parent is not None:
            return _make(name, "client", parent.context)
        if random.random() >= self._sampling.ratio or not self._may_record():  # noqa: S311 - the same
            return None
        return _make(name, "client", None)

    def end(self, span: Span) -> None:
        """Keep a span that has ended, and export it."""
        span.end = time.time_ns()
        self._kept.append(span)
        if self.sink is not None:
            self.sink.take(span)

    def of(self, trace_id: str) -> list[Span]:
        """The kept spans of traces whose id begins so, in the order in which they began."""
        spans = [span for span in self._kept if span.context.trace_id.startswith(trace_id)]
        return sorted(spans, key=lambda span: span.start)

    def last(self, most: int) -> list[Span]:
        """The last requests of clients, in the order in which they ended."""
        requests = (span for span in reversed(self._kept) if span.kind == "server")
        return [*islice(requests, most)][::-1]

    def _begin(
        self, name: str, context: SpanContext | None, from_header: SpanContext | None
    ) -> Span:
        if self._parent == "client":
            span = _make(name, "server", context or from_header)
            # the HTTP request has a trace of its own: both are independent
            if context is not None and from_header not in {None, context}:
                span.links = [from_header] if from_header else []
        else:
            span = _make(name, "server", None)
            link = (context or from_header) if self._parent == "link" else None
            span.links = [] if link is None else [link]
        return span

    def _may_record(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._left = second, self._sampling.most
        if self._left <= 0:
            self.unrecorded += 1
            return False
        self._left -= 1
        return True


def _make(name: str, kind: Kind, parent: SpanContext | None) -> Span:
    trace_id = parent.trace_id if parent else f"{random.getrandbits(128):032x}"
    # zeros alone are not a valid id
    span_id = f"{random.getrandbits(64) or 1:016x}"
    context = SpanContext(trace_id, span_id, state=parent.state if parent else "")
    return Span(
        name=name[:_LONGEST_VALUE], kind=kind, context=context, parent=parent, start=time.time_ns()
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1").strip()
