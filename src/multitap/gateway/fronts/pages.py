"""Health and metrics over HTTP, for monitoring."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from multitap.catalog.audience import Audience, AudienceLimits
from multitap.gateway.fronts.sessions import HttpSessions
from multitap.gateway.gateway import Gateway
from multitap.gateway.readiness import failing_servers, reasons
from multitap.gateway.view import View
from multitap.http.server.request import HttpRequest, RequestHead, ToDo
from multitap.hub.metrics import Metrics
from multitap.tasks import in_task
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError

if TYPE_CHECKING:
    from multitap.cluster.worker_peers import WorkerPeers


class StatusPages:
    """Health, readiness and metrics, without the contents of calls.

    A reader sees only the servers and tools that its profile and its token show.

    Args:
        gateway: The gateway.
        sessions: Its sessions.
        choose_audience: The audience of a request; raises `Refused` if it names no such profile.
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
        if degraded := [*(() if _is_limited(view) else general), *failing]:
            report["degraded"] = degraded
        http_request.respond(200, (jsonrpc.encode(report),))

    def ready(self, http_request: HttpRequest) -> None:
        """Whether a load balancer should send clients here, and what is degraded, as JSON."""
        if (view := self._view(http_request)) is None:
            return
        is_ready = not self._gateway.is_leaving
        # the reasons may name servers and files
        degraded = () if _is_limited(view) else reasons(self._gateway.hub)
        body = jsonrpc.encode({"ready": is_ready, "degraded": degraded})
        http_request.respond(200 if is_ready else 503, (body,))

    def metrics(self, http_request: HttpRequest) -> ToDo:
        """Counters and gauges, as Prometheus text."""
        if (view := self._view(http_request)) is None:
            return None
        gateway = self._gateway
        if self.workers is not None:
            return _respond_for_all(self.workers, http_request, view)
        gauges = (len(self._sessions), len(gateway.parked_calls), len(gateway.private))
        _respond(http_request, gateway.hub.metrics, view, gauges)
        return None

    def _view(self, http_request: HttpRequest) -> View | None:
        """What the reader may see; None if the request is refused."""
        try:
            return self._gateway.view(self._choose_audience(http_request.head))
        except RpcError as exc:
            http_request.say(400, str(exc))
            return None


async def _respond_for_all(workers: "WorkerPeers", http_request: HttpRequest, view: View) -> None:
    await in_task(http_request)
    figures = await workers.figures()
    gauges = (len(figures.sessions), figures.waiting, figures.private_links)
    _respond(http_request, figures.metrics, view, gauges, missing_workers=figures.missing)


def _is_limited(view: View) -> bool:
    return view.limits != AudienceLimits()


def _shown_tools(view: View) -> Collection[tuple[str, str]]:
    """The tools that an audience may see, by server and the server's own names."""
    catalog = view.catalog
    tools = (
        *catalog.tools.values(),
        *catalog.absent.values(),
        *(hidden.tool for hidden in catalog.hidden.values()),
        *(withheld.tool for withheld in catalog.withheld.values()),
    )
    return {(tool.server, tool.raw_name) for tool in tools if view.shows(tool)}


def _respond(
    http_request: HttpRequest,
    metrics: Metrics,
    view: View,
    gauges: tuple[int, int, int],
    *,
    missing_workers: int | None = None,
) -> None:
    sessions, waiting, private_links = gauges
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
    if _is_limited(view):
        tools = _shown_tools(view)
        counters = metrics.prometheus(lambda server, tool: (server, tool) in tools)
    else:
        counters = metrics.prometheus()
    text = counters + "\n".join(lines) + "\n"
    http_request.respond(200, (text.encode(),), kind=b"text/plain; version=0.0.4; charset=utf-8")
