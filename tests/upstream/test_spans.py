"""Messages to servers that are recorded as spans."""

from msgspec import Raw

from multitap.telemetry.spans import Spans, TraceSampling
from multitap.upstream.spans import SpanWire
from multitap.wire import jsonrpc
from tests.wire.test_exchange import exchange_with


async def test_a_recorded_notification_of_a_client_keeps_its_meta():
    written = []
    async with exchange_with(written) as (_, wire, _):
        traced = SpanWire(wire, "calc", Spans(TraceSampling(1.0)), None)
        await traced.notify("acme/hello", {"_meta": Raw(b'{"mood":"good"}')})
        meta = jsonrpc.decode(b"".join(written))["params"]["_meta"]

    assert meta.keys() == {"mood", "traceparent"}
