"""Health and metrics over HTTP, for monitoring."""

from typing import Any

from multitap.gateway.degradation import reasons
from multitap.gateway.fronts.http_sessions import HttpSessions
from multitap.gateway.gateway import Gateway
from multitap.http.server.http_request import HttpRequest
from multitap.wire.jsonrpc import envelope


class StatusPages:
    """Shows how the gateway is, without a word about what is called.

    Args:
        gateway: Which one.
        sessions: Those that are open.
    """

    def __init__(self, gateway: Gateway, sessions: HttpSessions) -> None:
        self._gateway = gateway
        self._sessions = sessions

    def health(self, http_request: HttpRequest) -> None:
        """Whether everything works, as JSON."""
        servers = self._gateway.hub.snapshot().servers
        up = sum(one.state.value == "connected" for one in servers)
        degraded = reasons(self._gateway.hub)
        told: dict[str, Any] = {
            "status": "degraded" if degraded else "ok",
            "servers": len(servers),
            "connected": up,
        }
        if degraded:
            told["degraded"] = degraded
        http_request.respond(200, (envelope.encode(told),))

    def ready(self, http_request: HttpRequest) -> None:
        """Whether a load balancer should send clients here, and what they would miss, as JSON."""
        is_ready = not self._gateway.is_leaving
        told = {"ready": is_ready, "degraded": reasons(self._gateway.hub)}
        http_request.respond(200 if is_ready else 503, (envelope.encode(told),))

    def metrics(self, http_request: HttpRequest) -> None:
        """Counters and gauges, as Prometheus text."""
        text = self._gateway.hub.metrics.prometheus() + _gauges(self._gateway, len(self._sessions))
        http_request.respond(
            200, (text.encode(),), kind=b"text/plain; version=0.0.4; charset=utf-8"
        )


def _gauges(gateway: Gateway, sessions: int) -> str:
    lines = [
        "# TYPE multitap_sessions gauge",
        f"multitap_sessions {sessions}",
        "# TYPE multitap_waiting_calls gauge",
        f"multitap_waiting_calls {len(gateway.parked_calls)}",
        "# TYPE multitap_private_links gauge",
        f"multitap_private_links {len(gateway.private)}",
    ]
    return "\n".join(lines) + "\n"
