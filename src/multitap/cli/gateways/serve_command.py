"""`multitap serve`: serves all servers as one MCP server."""

import gc
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from multitap.catalog.audience import EVERYBODY, Audience
from multitap.cli.configuration import problem_lines
from multitap.cli.configuration.chosen_configuration import (
    announce_pending,
    announce_seeds,
    configuration_loader,
    explain_emptiness,
    offer_trust,
)
from multitap.cli.exits import Exit
from multitap.cli.gateways import cluster_serving, workers
from multitap.cli.gateways.cluster_serving import ClusterOptions
from multitap.cli.gateways.memory_release import free_leftovers
from multitap.cli.gateways.workers import Worker
from multitap.cli.options import CommonOptions, EditOptions
from multitap.cli.running import run_async
from multitap.cli.terminal.output import advise, can_draw, note
from multitap.cli.terminal.tables import one_line
from multitap.config import Settings
from multitap.config.problems import serious
from multitap.config.search import state_directory
from multitap.env.hosted_environment import HostedEnvironment
from multitap.errors import ConfigError
from multitap.gateway.client_request import ClientRequest
from multitap.gateway.eras.parked_calls import ParkedCall
from multitap.gateway.fronts.control_service import ControlService, Switch
from multitap.gateway.fronts.control_socket import open_control
from multitap.gateway.fronts.stdio_front import INSTEAD, null_streams, serve_stdio
from multitap.gateway.gateway import Gateway, open_gateway
from multitap.http.loopback import is_loopback
from multitap.http.server.http_server import open_listener, url_of
from multitap.hub.hub import Hub, open_hub
from multitap.hub.reload import Reloader
from multitap.later import Later
from multitap.records import dataclass
from multitap.upstream.connector import Placements, local_placements
from multitap.upstream.handlers import Handlers
from multitap.upstream.on_behalf_of import client_of

if TYPE_CHECKING:
    from multitap.cluster.replica import Replica
    from multitap.gateway.fronts import front_access, http_front, worker_peers
    from multitap.gateway.replicas import replica_bus
    from multitap.screens.page import console, console_keys
    from multitap.wire import in_process
else:
    worker_peers = Later("multitap.gateway.fronts.worker_peers")
    front_access = Later("multitap.gateway.fronts.front_access")
    http_front = Later("multitap.gateway.fronts.http_front")
    replica_bus = Later("multitap.gateway.replicas.replica_bus")
    console = Later("multitap.screens.page.console")
    console_keys = Later("multitap.screens.page.console_keys")
    in_process = Later("multitap.wire.in_process")

_MMAP_THRESHOLD = -3  # of `malloc.h`
# Bytes of a block that gets its own mapping; each new one costs a page fault for every 4 KiB, a
# sixth of what a result of 1 MB costs.
_LARGE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `serve`."""

    http: str | None = None
    """`[HOST:]PORT`; empty for the configured address; None to follow the configuration."""
    token_file: Path | None = None
    insecure: bool = False
    hosts: tuple[str, ...] = ()
    require_token: bool = False
    profile: str | None = None
    demo: bool = False
    console: bool = True
    """Whether the gateway over HTTP has a page for browsers."""
    workers: int = 1
    cluster: str | None = None
    """The address of the cluster's Redis; None for a single gateway."""
    cluster_key_file: Path | None = None
    advertise: str | None = None
    labels: tuple[str, ...] = ()
    allow_drift: bool = False


@dataclass(frozen=True, slots=True)
class ServedHub:
    """What is served."""

    settings: Settings
    open: Callable[..., AbstractAsyncContextManager[Hub]]
    """Opens the hub, given its handlers and, by keyword, the place of its servers."""
    state: Path
    reloader: Reloader | None = None
    """None if there are no files to follow."""
    host: Handlers = field(default_factory=Handlers)
    """Answers servers' questions that no client can answer."""
    switch: Switch | None = None
    """Enables or disables a server in its file."""


class _OneLineFormatter(logging.Formatter):
    """Log records without tracebacks: they appear among other output."""

    def format(self, record: logging.LogRecord) -> str:
        exc = record.exc_info[1] if record.exc_info else None
        reason = f": {type(exc).__name__}: {exc}" if exc else ""
        return one_line(f"{record.getMessage()}{reason}")


def serve(options: CommonOptions, serving: ServeOptions) -> int:
    """Serve until the client disconnects, or the user stops it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    worker = workers.this_worker(os.environ)
    if not serving.demo and worker is None:
        _offer_trust(options, serving)
    served = _demo() if serving.demo else from_files(options)
    _check_profile(serving.profile, served.settings)
    address = _address(serving, served.settings)
    _spare_the_collector()
    _keep_large_blocks_apart()
    if address is None:
        if serving.cluster is not None:
            raise ConfigError(
                "a gateway on standard input cannot be part of a cluster", hint="add `--http`"
            )
        if serving.workers > 1:
            raise ConfigError(
                "workers share a port, and standard input has none", hint="add `--http`"
            )
        _warn_of_nobody()
        _greet()
        run_async(lambda: _serve_stdio(served, serving.profile), fast=True)
    elif serving.workers > 1 and worker is None:
        if serving.cluster is not None:
            raise ConfigError(
                "workers are a cluster of their own", hint="use either `--workers` or `--cluster`"
            )
        return run_async(lambda: workers.run_workers(serving.workers, address))
    else:
        run_async(lambda: _serve_http(served, address, serving, worker), fast=True)
    return Exit.DONE


def _offer_trust(options: CommonOptions, serving: ServeOptions) -> None:
    """Ask about a project's servers, unless standard input belongs to a client."""
    loaded = configuration_loader(options)()
    if _address(serving, loaded.settings) is not None:
        offer_trust(loaded)


def _warn_of_nobody() -> None:
    """Warn if no client can connect: otherwise the gateway would end without an explanation."""
    if streams := null_streams():
        which, verb = " and ".join(streams), "is" if len(streams) == 1 else "are"
        note(f"warning: no client can connect: standard {which} {verb} closed or null")
        advise(INSTEAD)


def _greet() -> None:
    """Explain to a user at a terminal that a client talks to the gateway."""
    if can_draw(sys.stdin) and can_draw(sys.stderr):
        note("waiting for an MCP client on standard input; press Ctrl-C to stop")
        advise("clients start it themselves: `claude mcp add multitap -- multitap serve`")
        advise("`multitap serve --http` serves over HTTP instead")


def _keep_large_blocks_apart() -> None:
    """Make the system get the memory of large messages back as soon as they are freed.

    After such a block is freed, glibc places the next ones among small ones, which then keep the
    holes between them: a few results of 20 MB grew a gateway by 170 MB within an hour.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # noqa: PLC0415 - for this one call

    with suppress(AttributeError, OSError):  # another C library does not have this setting
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def _spare_the_collector() -> None:
    """Exclude permanent objects from garbage collection, so that calls do not wait for it."""
    gc.freeze()  # there is no garbage worth collecting yet
    gc.set_threshold(20_000, 20, 50)


def from_files(options: CommonOptions) -> ServedHub:
    """The servers and the environment of the files."""
    environment = HostedEnvironment(configuration_loader(options), audience=_audience)
    reloader = environment.servers.files
    announce_seeds(options)
    announce_pending(reloader.loaded.pending)
    problem_lines.show(serious(reloader.problems))
    if not reloader.settings.servers:
        explain_emptiness(reloader.loaded)
    return ServedHub(
        reloader.settings,
        environment.open,
        reloader.loaded.state_directory,
        reloader,
        environment.answers,
        _switch_in(options),
    )


def _switch_in(options: CommonOptions) -> Switch:
    def switch_server(server: str, on: bool) -> None:  # noqa: FBT001 - as the control calls it
        from multitap.cli.editing.edit_command import switch  # noqa: PLC0415 - seldom needed

        switch(options, [server], EditOptions(), on=on)

    return switch_server


def _audience() -> Audience:
    """The audience of the client whose request an in-process server is handling."""
    client = client_of(in_process.caller())
    return client.client.audience if isinstance(client, ClientRequest | ParkedCall) else EVERYBODY


def _demo() -> ServedHub:
    from multitap.demo.demo_settings import GOOD, bundled_server  # noqa: PLC0415 - nobody else needs them

    shown = Settings(servers={name: bundled_server(name) for name in GOOD})

    def open_shown(
        handlers: Handlers, *, place: Placements = local_placements
    ) -> AbstractAsyncContextManager[Hub]:
        return open_hub(shown, handlers=handlers, recall=True, place=place)

    return ServedHub(shown, open_shown, state_directory())


def _check_profile(name: str | None, settings: Settings) -> None:
    if name is not None and name not in settings.profiles:
        known = ", ".join(settings.profiles) or "none"
        raise ConfigError(f"no profile named {name!r}", hint=f"the configuration has: {known}")


def _address(serving: ServeOptions, settings: Settings) -> tuple[str, int] | None:
    """The address to listen on; None for standard input and output."""
    if serving.http is None:
        wanted = settings.serve
        return (wanted.host, wanted.port) if wanted.transport == "http" else None
    if not serving.http:
        return settings.serve.host, settings.serve.port
    host, _, port = serving.http.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - the last port
        raise ConfigError(
            f"{serving.http!r} is not an address", hint="use `--http PORT` or `--http HOST:PORT`"
        )
    return host or settings.serve.host, int(port)


async def _serve_stdio(served: ServedHub, profile: str | None) -> None:
    async with open_gateway(served.open, host=served.host) as gateway:
        gateway.tasks.start_soon(free_leftovers)
        control = ControlService(gateway, reloader=served.reloader, switch=served.switch)
        async with open_control(control, served.state):
            await serve_stdio(gateway, profile=profile)


async def _serve_http(
    served: ServedHub, address: tuple[str, int], serving: ServeOptions, worker: Worker | None
) -> None:
    host, _ = address
    wanted = served.settings.serve
    rules = front_access.AccessRules(
        host,
        serving.hosts,
        serving.token_file,
        require_token=serving.require_token or wanted.require_token,
        insecure=serving.insecure or wanted.insecure,
    )
    with (
        front_access.open_access(rules) as allowed,
        open_listener(*address) if worker is None else worker.open_listener() as listener,
    ):
        async with (
            _join_cluster(serving, served.settings, worker) as replica,
            _open_gateway(served, replica) as gateway,
        ):
            gateway.tasks.start_soon(free_leftovers)
            base = url_of(listener)
            keys = None
            if serving.console and (is_loopback(host) or not rules.insecure):
                keys = console_keys.ConsoleKeys(allowed.sources)
            control = ControlService(
                gateway,
                reloader=served.reloader,
                url=f"{base}/mcp",
                sessions=lambda: [session.id for session in front.sessions],
                switch=served.switch,
                link=None if keys is None else lambda: keys.new_link(base),
            )
            front = http_front.HttpFront(
                gateway,
                allowed.access,
                sources=allowed.sources,
                profile=serving.profile,
                console=None if keys is None else console.Console(control, allowed.access, keys),
            )
            is_spokesman = worker is None or worker.is_first
            if replica is not None and worker is not None:
                _join_workers(worker, replica, gateway, served, control, front, keys)
            try:
                async with (
                    http_front.serve_http(front, listener) as url,
                    # one for all workers: commands address the whole gateway
                    open_control(control, served.state) if is_spokesman else nullcontext(),
                ):
                    if is_spokesman:
                        _say_how_to_connect(gateway, url, allowed)
                    if keys is not None and is_spokesman:
                        _say_how_to_open(keys, base)
                    await _stay(gateway, front, replica, url, worker)
            finally:
                if replica is not None and worker is not None:
                    await workers.stop_together(replica)


def _join_workers(  # noqa: PLR0917 - the parts of one process
    worker: Worker,
    replica: "Replica",
    gateway: Gateway,
    served: ServedHub,
    control: ControlService,
    front: "http_front.HttpFront",
    keys: "console_keys.ConsoleKeys | None",
) -> None:
    """Make each worker answer for all of them."""
    if gateway.bus is None:
        return
    joined = worker_peers.WorkerPeers(
        gateway.bus,
        lambda: [name for name in replica.membership.members if name != replica.id],
        control,
        count=worker.count,
    )
    control.workers = front.pages.workers = joined
    if (reloader := served.reloader) is not None:
        joined.on_reload(lambda: reloader.reload(gateway.hub))
    if keys is not None:
        keys.workers = joined
        joined.on_console(keys.take, keys.wait_for_token)


def _join_cluster(
    serving: ServeOptions, settings: Settings, worker: Worker | None
) -> "AbstractAsyncContextManager[Replica | None]":
    """Take part in the cluster, if there is one."""
    if worker is not None:
        return workers.open_worker(worker, settings)
    if serving.cluster is None:
        return nullcontext()
    joining = ClusterOptions(
        serving.cluster,
        serving.cluster_key_file,
        serving.labels,
        serving.advertise,
        serving.allow_drift,
    )
    return cluster_serving.open_cluster(joining, settings)


@asynccontextmanager
async def _open_gateway(served: ServedHub, replica: "Replica | None") -> AsyncGenerator[Gateway]:
    if replica is None:
        async with open_gateway(served.open, host=served.host) as gateway:
            yield gateway
        return
    opening = partial(served.open, place=replica.place)
    membership = replica.membership
    identity = replica_bus.ReplicaIdentity(
        replica.id,
        replica.coordinator,
        replica.key,
        is_alive=lambda name: name in membership.members,
    )
    async with open_gateway(opening, host=served.host, replica=identity) as gateway:
        hub = gateway.hub
        replica.attach(lambda: hub.links)
        hub.concerns = lambda: replica.concerns
        gateway.tasks.start_soon(cluster_serving.follow, replica, hub)
        yield gateway


async def _stay(
    gateway: Gateway,
    front: "http_front.HttpFront",
    replica: "Replica | None",
    url: str,
    worker: Worker | None,
) -> None:
    if replica is not None:
        replica.membership.describe(url=url)
    try:
        if replica is not None and worker is not None:
            await workers.wait_for_parent(replica)
        await anyio.sleep_forever()
    finally:
        gateway.is_leaving = True
        if replica is not None and not (
            worker is not None and await workers.is_gateway_stopping(replica)
        ):
            await cluster_serving.drain(replica, front.refuse_requests)


def _say_how_to_open(keys: "console_keys.ConsoleKeys", base: str) -> None:
    """Print a link to the console, if only a person sees it: anyone may read a log."""
    if sys.stderr.isatty():
        note(f"console, for one browser: {keys.new_link(base)}")
    else:
        note("console: `multitap console` prints a link to it")


def _say_how_to_connect(gateway: Gateway, url: str, allowed: "front_access.FrontAccess") -> None:
    servers = ", ".join(gateway.hub.links) or "none"
    note(f"serving {servers}")
    note(f"at {url} (older clients: {url.removesuffix('mcp')}sse); press Ctrl-C to stop")
    header = " --header 'Authorization: Bearer TOKEN'" if allowed.is_token_required else ""
    note(f"for example: claude mcp add --transport http multitap {url}{header}")
    if allowed.is_user_unknown:
        note("clients need a token: this system does not tell which local user connects")
        advise(f"{front_access.CREATE}; `--insecure` accepts all local users without one")
    elif allowed.is_token_required and not len(allowed.sources):
        note("clients need a token, and there is none yet")
        advise(front_access.CREATE)
