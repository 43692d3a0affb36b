"""A collector that takes, refuses or ignores what it is sent, by OTLP over HTTP."""

import gzip
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {2: "server", 3: "client"}


class Collector:
    """What has arrived."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.resource: dict[str, Any] = {}
        self.requests = 0
        self.mode = "accepts"
        self.released = threading.Event()
        self.url = ""
        self.close: Callable[[], None] = lambda: None
        """Stops listening, as if it had died."""

    def take(self, body: bytes) -> None:
        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        for resource in message.resource_spans:
            self.resource = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += map(_span, scope.spans)

    def of(self, trace_id: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["trace"] == trace_id]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _span(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": KINDS.get(span.kind, str(span.kind)),
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "attributes": _attributes(span.attributes),
        "events": [event.name for event in span.events],
        "links": [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        "status": span.status.code,
        "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
    }


@contextmanager
def collecting():
    """While entered, a collector listens; `url` is its OTLP endpoint."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.requests += 1
            if collector.mode == "hangs":
                collector.released.wait(60)
            if collector.mode != "accepts":
                self.send_response(400)
                self.end_headers()
                return
            is_packed = self.headers.get("content-encoding") == "gzip"
            collector.take(gzip.decompress(body) if is_packed else body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def close() -> None:
        collector.released.set()
        server.shutdown()
        server.server_close()

    collector.close = close
    try:
        yield collector
    finally:
        close()
