"""Health and metrics over HTTP, for monitoring."""

from typing import TYPE_CHECKING, Any

from multitap.gateway.degradation import reasons
from multitap.gateway.fronts.http_sessions import HttpSessions
from multitap.gateway.gateway import Gateway
from multitap.http.server.http_request import HttpRequest, ToDo
from multitap.hub.metrics import Metrics
from multitap.tasks import in_task
from multitap.wire.jsonrpc import envelope

if TYPE_CHECKING:
    from multitap.gateway.fronts.worker_peers import WorkerPeers


class StatusPages:
    """Health, readiness and metrics, without the contents of calls."""

    workers: "WorkerPeers | None" = None
    """The other workers of the gateway, if it has any; metrics cover all of them."""

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
        """Whether a load balancer should send clients here, and what is degraded, as JSON."""
        is_ready = not self._gateway.is_leaving
        told = {"ready": is_ready, "degraded": reasons(self._gateway.hub)}
        http_request.respond(200 if is_ready else 503, (envelope.encode(told),))

    def metrics(self, http_request: HttpRequest) -> ToDo:
        """Counters and gauges, as Prometheus text."""
        gateway = self._gateway
        if self.workers is not None:
            return _respond_for_all(self.workers, http_request)
        gauges = (len(self._sessions), len(gateway.parked_calls), len(gateway.private))
        _respond(http_request, gateway.hub.metrics, *gauges)
        return None


async def _respond_for_all(workers: "WorkerPeers", http_request: HttpRequest) -> None:
    await in_task(http_request)
    told = await workers.figures()
    gauges = (len(told.sessions), told.waiting, told.private_links)
    _respond(http_request, told.metrics, *gauges, missing_workers=told.missing)


def _respond(
    http_request: HttpRequest,
    metrics: Metrics,
    sessions: int,
    waiting: int,
    private_links: int,
    *,
    missing_workers: int | None = None,
) -> None:
    lines = [
        "# TYPE multitap_sessions gauge",
        f"multitap_sessions {sessions}",
        "# TYPE multitap_waiting_calls gauge",
        f"multitap_waiting_calls {waiting}",
        "# TYPE multitap_private_links gauge",
        f"multitap_private_links {private_links}",
    ]
    if missing_workers is not None:
        # the counters fall while one is missing, which looks like a restart
        lines += [
            "# TYPE multitap_missing_workers gauge",
            f"multitap_missing_workers {missing_workers}",
        ]
    text = metrics.prometheus() + "\n".join(lines) + "\n"
    http_request.respond(200, (text.encode(),), kind=b"text/plain; version=0.0.4; charset=utf-8")
