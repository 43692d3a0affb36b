"""Which requests are recorded, what a span says, and what a collector costs that does not work."""

import json
import logging
import resource
from contextlib import AsyncExitStack
from importlib import import_module
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SpanExportResult

from multitap import Settings
from multitap.config.models import Telemetry
from multitap.errors import ConfigError
from multitap.telemetry.logs import _JsonFormatter
from multitap.telemetry.otlp import OtlpSink, open_otlp, own_resource
from multitap.telemetry.spans import (
    CURRENT,
    SpanContext,
    Spans,
    TraceSampling,
    parse_context,
    sampling,
)
from multitap.upstream.spans import with_context
from tests.gateway.hostile.raw import dial, http, in_session, message, shake_hands, stateless
from tests.gateway.talking import gate, zoo
from tests.telemetry.collector import collecting
from tests.waiting import until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-03"
ALL = TraceSampling(ratio=1.0)
SERVER, CLIENT = "server", "client"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [(SAMPLED, True), (f"00-{TRACE}-{PARENT}-00", False), (f"cc-{TRACE}-{PARENT}-01-new", True)],
)
def test_a_context_is_read_whatever_its_flags(text, is_sampled):
    assert parse_context(text) == SpanContext(TRACE, PARENT, is_sampled)


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: data.decode("latin-1")))
def test_no_context_does_harm(text):
    assert parse_context(text) is None
    Spans(ALL).begin_server("x", text.encode(errors="replace"), b"x", text.encode(errors="replace"))


@pytest.mark.parametrize("text", [f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", ""])
def test_an_invalid_context_is_none(text):
    assert parse_context(text) is None


def begin(spans, parent=SAMPLED, header=None):
    return spans.begin_server("tools/call x", parent and parent.encode(), None, header)


def test_a_client_decides_only_for_its_own_requests():
    follows = Spans(TraceSampling(ratio=0.0))
    assert begin(follows).parent.span_id == PARENT
    assert begin(follows, SAMPLED[:-2] + "00") is None
    assert begin(follows, None) is None
    header_only = begin(follows, None, SAMPLED.encode())
    assert header_only.context.trace_id == TRACE
    assert begin(Spans(TraceSampling(0.0, follows=False))) is None


def test_the_context_of_the_connection_becomes_a_link():
    other = f"00-{'a' * 32}-{'b' * 16}-01"
    span = begin(Spans(ALL), SAMPLED, other.encode())

    assert span.parent.trace_id == TRACE
    assert [link.trace_id for link in span.links] == ["a" * 32]


def test_a_foreign_trace_is_a_link_or_nothing_at_a_border():
    linked, ignored = (begin(Spans(ALL, parent=parent)) for parent in ("link", "ignore"))

    assert linked.parent is None
    assert [link.span_id for link in linked.links] == [PARENT]
    assert linked.context.trace_id != TRACE
    assert (ignored.parent, ignored.links) == (None, [])


def test_clients_cannot_make_us_record_more_than_the_limit(monkeypatch):
    monkeypatch.setattr("multitap.telemetry.spans.time.monotonic", lambda: 7.5)
    spans = Spans(TraceSampling(ratio=1.0, most=3))

    assert sum(begin(spans) is not None for _ in range(10)) == 3
    assert spans.unrecorded == 7


@pytest.mark.parametrize(
    ("environ", "sampled"),
    [
        ({}, TraceSampling(0.1, True, 9)),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, TraceSampling(1.0, False, 9)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, TraceSampling(0.0, True, 9)),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            TraceSampling(0.25, False, 9),
        ),
    ],
)
def test_the_variables_of_opentelemetry_count(environ, sampled):
    assert sampling(0.1, 9, environ) == sampled


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_SAMPLER": "jaeger_remote"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
    ],
)
def test_variables_that_cannot_be_used_are_named(environ):
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER"):
        sampling(0.1, 9, environ)
    with (
        pytest.raises(ConfigError, match="'grpc' is not supported"),
        open_otlp({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}),
    ):
        pass


def test_a_context_replaces_that_of_the_client_and_nothing_else():
    ours = SpanContext("a" * 32, "b" * 16, state="x=1")
    meta = b'"traceparent":"%b","baggage":"k=v","tracestate":"y=2"' % SAMPLED.encode()
    sent = json.loads(b"{%b}" % with_context(meta, ours))

    assert sent == {"baggage": "k=v", "traceparent": ours.header, "tracestate": "x=1"}
    assert json.loads(b"{%b}" % with_context(b"", ours))["traceparent"].endswith("-03")


def test_a_log_line_names_the_trace_it_belongs_to():
    span = begin(Spans(ALL))
    token = CURRENT.set(span)
    try:
        record = logging.LogRecord("multitap", logging.INFO, "", 1, "hi", (), None)
        line = json.loads(_JsonFormatter().format(record))
    finally:
        CURRENT.reset(token)

    assert (line["trace_id"], line["span_id"]) == (TRACE, span.context.span_id)


def registry():
    """The attributes of the published conventions."""
    names = set()
    for group in ("mcp", "gen_ai", "rpc", "network", "client", "server", "error", "jsonrpc"):
        for package in ("_incubating.attributes", "attributes"):
            try:
                module = import_module(f"opentelemetry.semconv.{package}.{group}_attributes")
            except ModuleNotFoundError:
                continue
            names |= {value for value in vars(module).values() if isinstance(value, str)}
    return names


async def recorded(opened, *wanted):
    """The spans with these names, once all of them have ended."""

    def found():
        kept = opened.hub.spans._kept
        spans = {name: [span for span in kept if span.name == name] for name in wanted}
        return spans if all(spans.values()) else None

    await until(found)
    return found()


def traced(folder, **more):
    telemetry = Telemetry(traces="memory", sample=1.0, **more)
    servers = {"good": zoo(), "old": zoo("good_legacy")}
    return Settings(servers=servers, state_dir=folder, telemetry=telemetry)


async def test_every_kind_of_request_has_a_span_that_the_conventions_know(tmp_path):
    async with gate(traced(tmp_path)) as opened, dial(port(opened)) as line:
        await line.asks(stateless(1, "tools/list"))
        await line.asks(stateless(2, "tools/call", name="good_echo", arguments={"text": "hi"}))
        await line.asks(stateless(3, "tools/call", name="good_nothing", arguments={}))
        await line.asks(stateless(4, "resources/read", uri="nowhere:///"))
        session = await shake_hands(line)
        await line.asks(in_session(session, message(5, "prompts/get", name="none", arguments={})))
        names = (
            *("tools/list", "tools/call good_echo", "tools/call echo", "resources/read"),
            *("initialize", "notifications/initialized", "prompts/get none"),
            "tools/call good_nothing",
        )
        spans = await recorded(opened, *names)
        kept = [*opened.hub.spans._kept]

    known = registry()
    required = {"mcp.method.name"}
    for span in kept:
        odd = {name for name in span.attributes if not name.startswith("multitap.")} - known
        assert not odd
        assert required <= span.attributes.keys()
        sides = {"server": ("server.address", "server.port"), "client": ("client.address",)}
        assert not {*sides[span.kind]} & span.attributes.keys()
    (served,) = spans["tools/call good_echo"]
    (sent,) = spans["tools/call echo"]
    assert sent.parent == served.context
    assert served.attributes["gen_ai.tool.name"] == "good_echo"
    assert sent.attributes["gen_ai.tool.name"] == "echo"
    assert served.attributes["gen_ai.operation.name"] == "execute_tool"
    assert served.attributes["jsonrpc.request.id"] == "2"
    assert served.attributes["mcp.protocol.version"] == "2026-07-28"
    assert served.attributes["client.address"] == "127.0.0.1"
    assert spans["tools/list"][-1].kind == "client" or spans["tools/list"][-1].events
    (unknown,) = spans["tools/call good_nothing"]
    # a mistake of the client is not an error of the server
    assert unknown.attributes["rpc.response.status_code"] == "-32602"
    assert unknown.error is None


async def test_a_tool_that_fails_is_an_error_at_both_ends(tmp_path):
    async with gate(traced(tmp_path)) as opened, dial(port(opened)) as line:
        await line.asks(stateless(1, "tools/call", name="good_fail", arguments={}))
        spans = await recorded(opened, "tools/call good_fail", "tools/call fail")

    for name in spans:
        (span,) = spans[name]
        assert span.attributes["error.type"] == "tool_error"
        assert span.error is not None


async def test_a_client_that_sends_only_a_header_is_joined(tmp_path):
    async with gate(traced(tmp_path)) as opened, dial(port(opened)) as line:
        call = stateless(1, "tools/call", name="good_echo", arguments={"text": "hi"})
        head, _, body = call.partition(b"\r\n\r\n")
        await line.asks(b"%b\r\ntraceparent: %b\r\n\r\n%b" % (head, SAMPLED.encode(), body))
        spans = await recorded(opened, "tools/call good_echo")

    assert spans["tools/call good_echo"][0].parent.span_id == PARENT


async def test_nothing_is_recorded_unless_it_is_wanted(tmp_path, monkeypatch):
    async with gate(Settings(servers={"good": zoo()}, state_dir=tmp_path)) as opened:
        assert opened.hub.spans is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with gate(traced(tmp_path)) as opened:
        assert opened.hub.spans is None


def port(opened):
    return int(opened.url.rpartition(":")[2].removesuffix("/mcp"))


def ended(spans):
    span = begin(spans)
    spans.end(span)
    return span


FAST = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_BSP_MAX_QUEUE_SIZE": "64"}


@pytest.mark.parametrize("mode", ["accepts", "refuses", "hangs", "is gone"])
def test_a_collector_costs_nothing_but_a_counter(mode, monkeypatch, caplog):
    with collecting() as collector:
        collector.mode = mode
        address = "http://127.0.0.1:9" if mode == "is gone" else collector.url
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        with open_otlp(FAST) as sink:
            spans = Spans(TraceSampling(ratio=1.0, most=10**9), sink=sink)
            for _ in range(50_000):
                ended(spans)
            assert len(sink._queue) <= 64
        assert sink.exported + sink.lost <= 50_000
        assert sink.lost > 0
        if mode == "accepts":
            assert sink.exported == len(collector.spans) > 0
        else:
            assert sink.exported == 0
    assert len([line for line in caplog.records if "collector" in line.message]) <= 1


def test_what_could_not_be_sent_is_counted_and_later_spans_are_sent():
    results = iter([SpanExportResult.FAILURE, SpanExportResult.SUCCESS])
    exporter = SimpleNamespace(export=lambda _: next(results), shutdown=lambda: None)
    sink = OtlpSink(exporter, own_resource(), {"OTEL_BSP_SCHEDULE_DELAY": "10"})
    spans = Spans(ALL, sink=sink)
    ended(spans)
    while not sink.lost:
        sink._thread.join(0.01)
    ended(spans)
    sink.close()

    assert (sink.lost, sink.exported) == (1, 1)


async def test_a_histogram_names_the_trace_of_its_last_recorded_call(tmp_path):
    async with gate(traced(tmp_path)) as opened, dial(port(opened)) as line:
        meta = {"traceparent": SAMPLED}
        call = {"name": "good_echo", "arguments": {"text": "hi"}}
        await line.asks(stateless(1, "tools/call", **call, _meta=meta))
        accept = "application/openmetrics-text; version=1.0.0"
        text = (await line.asks(http("GET", "/metrics", accept=accept))).body.decode()
        plain = (await line.asks(http("GET", "/metrics"))).body.decode()

    marked = [line for line in text.splitlines() if TRACE in line or "trace_id" in line]
    assert len(marked) == 1
    assert marked[0].startswith("mcp_server_operation_duration_seconds_bucket{")
    assert "trace_id" not in plain


@pytest.mark.wide
@pytest.mark.timeout(1800)
async def test_no_call_is_lost_whatever_the_collector_does(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    telemetry = Telemetry(traces="otlp", sample=1.0, traces_per_second=1_000_000)
    settings = Settings(servers={"good": zoo()}, state_dir=tmp_path, telemetry=telemetry)
    calls, at_once = 50_000, 16
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with gate(settings) as opened:
            sink, answered = opened.hub.spans.sink, 0

            async def call(line):
                nonlocal answered
                for number in range(calls // at_once):
                    arguments = {"text": str(number)}
                    asked = stateless(number, "tools/call", name="good_echo", arguments=arguments)
                    text = (await line.asks(asked)).text
                    answered += text == str(number)

            sizes = []
            for mode in ("accepts", "hangs", "refuses", "is gone"):
                collector.mode = mode
                if mode == "is gone":
                    collector.close()
                async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
                    for _ in range(at_once):
                        line = await stack.enter_async_context(dial(port(opened)))
                        tasks.start_soon(call, line)
                assert len(sink._queue) <= 2048
                sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            print(f"{sink.exported} spans sent, {sink.lost} lost, {sizes} KiB")

    assert answered == 4 * calls
    assert sink.exported > 0
    assert sink.lost > 0
    assert sizes[-1] - sizes[0] < 64 * 1024
    assert len([line for line in caplog.records if "collector" in line.message]) <= 30
