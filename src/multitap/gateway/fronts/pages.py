"""Health and metrics over HTTP, for monitoring."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from multitap.catalog.audience import Audience
from multitap.gateway.fronts.sessions import HttpSessions
from multitap.gateway.gateway import Gateway
from multitap.gateway.metrics import FAMILIES, Gauges, ShownMetrics
from multitap.gateway.readiness import failing_servers, reasons
from multitap.gateway.view import View
from multitap.http.server.request import JSON, HttpRequest, RequestHead, ToDo
from multitap.telemetry.metrics import OPEN_METRICS, TEXT, Samples, wants_open_metrics, write_text
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError

if TYPE_CHECKING:
    from multitap.cluster.worker_peers import WorkerPeers

_LOOK = 1.0
"""Seconds between two looks for strangers, who may ask as often as they like."""


class StatusPages:
    """Health, readiness and metrics, without the contents of calls.

    A reader sees only the servers and tools that its profile and its token show.
    """

    workers: "WorkerPeers | None" = None
    """The other workers of the gateway, if it has any; metrics cover all of them."""

    def __init__(
        self,
        gateway: Gateway,
        sessions: HttpSessions,
        choose_audience: Callable[[RequestHead], Audience],
    ) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._choose_audience = choose_audience
        self._shown = ShownMetrics()
        self._status, self._looked = "ok", -math.inf

    def health(self, http_request: HttpRequest) -> None:
        """Whether everything works, as JSON."""
        if (view := self._view(http_request)) is None:
            return
        snapshot = self._gateway.hub.snapshot()
        servers = [server for server in snapshot.servers if view.has(server.name)]
        up = sum(server.state.value == "connected" for server in servers)
        general = reasons(self._gateway.hub)
        failing = [*failing_servers(self._gateway.hub, servers)]
        report: dict[str, Any] = {
            "status": "degraded" if general or failing else "ok",
            "servers": len(servers),
            "connected": up,
        }
        # general reasons may name servers and files that a limited reader does not see
        if degraded := [*(() if view.is_limited else general), *failing]:
            report["degraded"] = degraded
        http_request.respond(200, (jsonrpc.encode(report),))

    def alive(self, http_request: HttpRequest) -> None:
        """The same for a stranger, who learns nothing but the status."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            hub = self._gateway.hub
            is_degraded = reasons(hub) or [*failing_servers(hub, hub.snapshot().servers)]
            self._status, self._looked = "degraded" if is_degraded else "ok", now
        http_request.say(200, f'{{"status":"{self._status}"}}', kind=JSON)

    def able(self, http_request: HttpRequest) -> None:
        """Whether a load balancer should send clients here; for strangers."""
        is_ready = self._gateway.is_ready
        body = '{"ready":true}' if is_ready else '{"ready":false}'
        http_request.say(200 if is_ready else 503, body, kind=JSON)

    def ready(self, http_request: HttpRequest) -> None:
        """Whether a load balancer should send clients here, and what is degraded, as JSON."""
        if (view := self._view(http_request)) is None:
            return
        is_ready = self._gateway.is_ready
        # the reasons may name servers and files
        degraded = () if view.is_limited else reasons(self._gateway.hub)
        body = jsonrpc.encode({"ready": is_ready, "degraded": degraded})
        http_request.respond(200 if is_ready else 503, (body,))

    def metrics(self, http_request: HttpRequest) -> ToDo:
        """Counters, gauges and histograms, as Prometheus or OpenMetrics text."""
        if (view := self._view(http_request)) is None:
            return None
        if self.workers is not None:
            return self._respond_for_all(self.workers, http_request, view)
        gateway = self._gateway
        gauges = Gauges(len(self._sessions), len(gateway.parked_calls), len(gateway.private))
        rest = gateway.metrics.samples()
        _respond(http_request, self._shown.select(view, gateway.hub.metrics, gauges, rest))
        return None

    async def _respond_for_all(
        self, workers: "WorkerPeers", http_request: HttpRequest, view: View
    ) -> None:
        figures = await workers.figures()
        gauges = Gauges(
            len(figures.sessions), figures.waiting, figures.private_links, figures.missing
        )
        _respond(http_request, self._shown.select(view, figures.metrics, gauges, figures.samples))

    def _view(self, http_request: HttpRequest) -> View | None:
        """What the reader may see; None if the request is refused."""
        try:
            return self._gateway.view(self._choose_audience(http_request.head))
        except RpcError as exc:
            http_request.say(400, str(exc))
            return None


def _respond(http_request: HttpRequest, samples: Samples) -> None:
    is_open = wants_open_metrics(http_request.head.headers.get(b"accept", b""))
    text = write_text(FAMILIES, samples, is_open=is_open)
    http_request.respond(200, (text.encode(),), kind=OPEN_METRICS if is_open else TEXT)
