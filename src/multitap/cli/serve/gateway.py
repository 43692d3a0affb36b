"""A gateway in this process: on standard input, or on HTTP."""

import gc
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import msgspec

from multitap.catalog.audience import EVERYBODY, Audience
from multitap.cli import configuration
from multitap.cli.configuration import (
    announce_pending,
    announce_seeds,
    configuration_loader,
    explain_emptiness,
    offer_trust,
)
from multitap.cli.options import CommonOptions
from multitap.cli.serve import workers
from multitap.cli.serve.serve import ServeOptions
from multitap.cli.serve.workers import Worker
from multitap.cli.signals import run_async
from multitap.cli.terminal import NOTES, Exit, advise, can_draw, note, null_streams
from multitap.cluster import serving as cluster_serving
from multitap.cluster.serving import ClusterOptions
from multitap.config import Loaded, Settings, Surroundings
from multitap.config.access import AccessSettings
from multitap.config.models import Serve
from multitap.config.problems import serious
from multitap.config.sources import state_directory
from multitap.control.editing import ConfigEditor
from multitap.control.server import open_control
from multitap.env.configured import HostedEnvironment
from multitap.errors import ConfigError
from multitap.gateway.client import ClientRequest
from multitap.gateway.gateway import Gateway, open_gateway
from multitap.gateway.parked_calls import ParkedCall
from multitap.gateway.readiness import wait_for_calls
from multitap.http.addresses import is_loopback
from multitap.http.server.request import HttpRequest, Rejected, RequestHead, ToDo
from multitap.http.server.server import open_listener, url_of
from multitap.http.server.tls import ServerTls, TlsFiles
from multitap.hub.hub import Hub, open_hub
from multitap.hub.reload import Loader, Reloader
from multitap.tasks import Tasks
from multitap.telemetry.logs import set_up_logs
from multitap.upstream.connect import Placements, local_placements
from multitap.upstream.questions import Handlers, client_of

if TYPE_CHECKING:
    from multitap.authorization.endpoints import AuthorizationEndpoints
    from multitap.cluster.replica import Replica
    from multitap.control.service import ControlService
    from multitap.gateway.fronts import access as front_access
    from multitap.gateway.fronts import http as http_front
    from multitap.gateway.fronts.resource_server import ResourceServer
    from multitap.identity.issuer import Issuer
    from multitap.identity.verifier import Verifier
    from multitap.screens.page import access
    from multitap.screens.page.console import Console

PAUSE = 60.0
"""Seconds between two collections."""
_OWN_HUB = 0
"""The number of the gateway's own hub; those of clients on pipes count from 1."""
_GROWN = 2000  # new objects since the last collection, below which another is not worth it


async def free_leftovers(pause: float = PAUSE) -> None:
    """Free old reference cycles periodically, until cancelled.

    A link whose server was lost or replaced consists of such cycles. In a gateway, the collector
    examines old objects only after millions of new ones, so that calls do not wait for it: 2,000
    crashes, edits and lost clients would cost 40 MB.
    """
    trim = _trim()
    while True:
        await anyio.sleep(pause)
        young, *older = gc.get_count()
        if young > _GROWN or any(older):
            gc.collect()
            if trim is not None:
                trim(0)


def _trim() -> Callable[[int], Any] | None:
    """Returns free pages to the system; glibc itself returns only those at the end of the heap."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # noqa: PLC0415 - for this one call

    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of `malloc.h`
# Bytes of a block that gets its own mapping; each new one costs a page fault for every 4 KiB, a
# sixth of what a result of 1 MB costs.
_LARGE = 4 * 1024 * 1024
# Free bytes at the end of the heap that stay there for the next result. Setting the other threshold
# stops glibc from raising this one above 128 KiB: results of 1 MB would cost half as much again.
_KEPT_FREE = 32 * 1024 * 1024


class ServedHub(msgspec.Struct, frozen=True, kw_only=True):
    """What is served."""

    settings: Settings
    open: Callable[..., AbstractAsyncContextManager[Hub]]
    """Opens the hub, given its handlers and, by keyword, the place of its servers."""
    state: Path
    reloader: Reloader | None = None
    """None if there are no files to follow."""
    host: Handlers = msgspec.field(default_factory=Handlers)
    """Answers servers' questions that no client can answer."""
    editor: Callable[[], ConfigEditor] | None = None
    """Makes what changes its files."""


def serve_here(options: CommonOptions, serving: ServeOptions) -> int:
    """Serve in this process until it is stopped, or its client closes its pipes."""
    set_up_logs(serving.log_format, serving.log_levels, notes=NOTES)
    worker = workers.this_worker(os.environ)

    def asks(settings: Settings) -> bool:
        # the parent has asked already, and workers share its terminal; standard input may belong
        # to a client
        return worker is None and _address(serving, settings) is not None

    served = _demo() if serving.demo else from_files(options, asks)
    check_profile(serving.profile, served.settings)
    address = _address(serving, served.settings)
    tune_memory()
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
        drain = served.settings.serve.drain
        return run_async(lambda: workers.run_workers(serving.workers, address, drain), grace=drain)
    else:
        drain = served.settings.serve.drain
        run_async(lambda: _serve_http(served, address, serving, worker), fast=True, grace=drain)
    return Exit.DONE


def _warn_of_nobody() -> None:
    """Warn if no client can connect: otherwise the gateway would end without an explanation."""
    if streams := null_streams():
        from multitap.gateway.fronts.stdio import INSTEAD  # noqa: PLC0415 - only on stdio

        which, verb = " and ".join(streams), "is" if len(streams) == 1 else "are"
        note(f"warning: no client can connect: standard {which} {verb} closed or null")
        advise(INSTEAD)


def _greet() -> None:
    """Explain to a user at a terminal that a client talks to the gateway."""
    if can_draw(sys.stdin) and can_draw(sys.stderr):
        note("waiting for an MCP client on standard input; press Ctrl-C to stop")
        advise("clients start it themselves: `claude mcp add multitap -- multitap serve`")
        advise("`multitap serve --http` serves over HTTP instead")


def tune_memory() -> None:
    """Prepare this process for a long life with many calls."""
    _spare_the_collector()
    _keep_large_blocks_apart()


def _keep_large_blocks_apart() -> None:
    """Make the system get the memory of large messages back as soon as they are freed.

    After such a block is freed, glibc places the next ones among small ones, which then keep the
    holes between them: a few results of 20 MB grew a gateway by 170 MB within an hour.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # noqa: PLC0415 - for this one call

    with suppress(AttributeError, OSError):  # another C library does not have this setting
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_FREE)


def _spare_the_collector() -> None:
    """Exclude permanent objects from garbage collection, so that calls do not wait for it."""
    gc.freeze()  # there is no garbage worth collecting yet
    # old objects are examined after 20 million new ones; `free_leftovers` does it before that
    gc.set_threshold(20_000, 20, 50)
    gc.enable()  # `serve` switched it off for the imports


def from_files(
    options: CommonOptions, asks: Callable[[Settings], bool] = lambda _: False
) -> ServedHub:
    """The servers and the environment of the files, after saying what is wrong with them.

    Args:
        options: Which files.
        asks: Whether a person may be asked about a project's servers first.
    """
    loader, editor = configuration_loader(options), partial(_editor, options)
    served = served_files(loader, editor)
    reloader = served.reloader
    if reloader is not None and asks(served.settings) and offer_trust(reloader.loaded):
        served = served_files(loader, editor)
    if served.reloader is not None:
        describe_files(options, served.reloader.loaded)
    return served


def served_files(load: Loader, editor: Callable[[], ConfigEditor]) -> ServedHub:
    """The servers and the environment of the files.

    Args:
        load: Reads them.
        editor: Makes what changes them.
    """
    environment = HostedEnvironment(load, audience=_audience)
    reloader = environment.files
    return ServedHub(
        settings=reloader.settings,
        open=environment.open,
        state=reloader.loaded.state_directory,
        reloader=reloader,
        host=environment.answers,
        editor=editor,
    )


def describe_files(
    options: CommonOptions,
    loaded: Loaded,
    where: Surroundings | None = None,
    write: Callable[[str], None] = note,
) -> None:
    """Say which files are used, and what is wrong with them."""
    announce_seeds(options, where, write)
    announce_pending(loaded.pending, write)
    configuration.show_problems(serious(loaded.problems), write)
    if not loaded.settings.servers:
        explain_emptiness(loaded, where, write)


def _editor(options: CommonOptions) -> ConfigEditor:
    from multitap.cli.serve.file_editor import FileEditor  # noqa: PLC0415 - seldom needed

    return FileEditor(options)


def _audience() -> Audience:
    """The audience of the client whose request an in-process server is handling."""
    from multitap.wire import in_process  # noqa: PLC0415 - only once it is asked

    client = client_of(in_process.caller())
    return client.client.audience if isinstance(client, ClientRequest | ParkedCall) else EVERYBODY


def _demo() -> ServedHub:
    from multitap.demo.demo_settings import GOOD, bundled_server  # noqa: PLC0415 - nobody else needs them

    demo_settings = Settings(servers={name: bundled_server(name) for name in GOOD})

    def open_shown(
        handlers: Handlers, *, place: Placements = local_placements
    ) -> AbstractAsyncContextManager[Hub]:
        return open_hub(demo_settings, handlers=handlers, recall=True, place=place)

    return ServedHub(settings=demo_settings, open=open_shown, state=state_directory())


def check_profile(name: str | None, settings: Settings) -> None:
    """Check that there is a profile of this name.

    Raises:
        ConfigError: There is none.
    """
    if name is not None and name not in settings.profiles:
        names = ", ".join(settings.profiles) or "none"
        raise ConfigError(f"no profile named {name!r}", hint=f"the configuration has: {names}")


def _address(serving: ServeOptions, settings: Settings) -> tuple[str, int] | None:
    """The address to listen on; None for standard input and output."""
    if serving.http is None:
        serve_settings = settings.serve
        return (
            (serve_settings.host, serve_settings.port)
            if serve_settings.transport == "http"
            else None
        )
    if not serving.http:
        return settings.serve.host, settings.serve.port
    host, _, port = serving.http.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - the last port
        raise ConfigError(
            f"{serving.http!r} is not an address", hint="use `--http PORT` or `--http HOST:PORT`"
        )
    return host or settings.serve.host, int(port)


async def _serve_stdio(served: ServedHub, profile: str | None) -> None:
    from multitap.gateway.fronts.stdio import serve_stdio  # noqa: PLC0415 - only on stdio

    async with open_gateway(served.open, host=served.host) as gateway:
        gateway.tasks.start_soon(free_leftovers)

        def control() -> "ControlService":
            from multitap.control.service import ControlService  # noqa: PLC0415 - for commands

            return ControlService(gateway, reloader=served.reloader, editor=served.editor)

        async with open_control(control, served.state):
            await serve_stdio(gateway, profile=profile)


class LateConsole:
    """The web console, made for its first request: many gateways never show it."""

    def __init__(self, make: Callable[[], "Console"]) -> None:
        self._make = make
        self._made: Console | None = None

    def _console(self) -> "Console":
        if self._made is None:
            self._made = self._make()
        return self._made

    def admit(self, head: RequestHead) -> Rejected | None:
        return self._console().admit(head)

    def handle(self, http_request: HttpRequest) -> ToDo:
        return self._console().handle(http_request)

    def end_streams(self) -> None:
        if self._made is not None:
            self._made.end_streams()


async def _serve_http(
    served: ServedHub, address: tuple[str, int], serving: ServeOptions, worker: Worker | None
) -> None:
    host, _ = address
    tls = _tls(serving)
    serve_settings = served.settings.serve
    # a gateway on standard input needs none of this
    from multitap.gateway.fronts import access as front_access  # noqa: PLC0415
    from multitap.gateway.fronts import accounts  # noqa: PLC0415
    from multitap.gateway.fronts import http as http_front  # noqa: PLC0415
    from multitap.screens.page import access  # noqa: PLC0415

    has_providers = bool(served.settings.access.oidc)
    public = _public_hosts(serve_settings) if has_providers or serve_settings.public_url else ()
    rules = front_access.AccessRules(
        host=host,
        # behind a proxy, requests name the public host, which is not the one we listen on
        hosts=(*serving.hosts, *public),
        token_file=serving.token_file,
        require_token=serving.require_token or serve_settings.require_token,
        insecure=serving.insecure or serve_settings.insecure,
        origins=tuple(serve_settings.allow_origins),
        proxies=tuple(serve_settings.trusted_proxies),
        has_providers=has_providers,
    )
    if serve_settings.proxy_protocol and tls is not None:
        raise ConfigError(
            "the PROXY protocol cannot be combined with a certificate",
            hint="let the proxy use the certificate, or leave out `serve.proxy_protocol`",
        )
    with (
        front_access.open_access(rules) as allowed,
        open_listener(*address) if worker is None else worker.open_listener() as listener,
    ):
        base = url_of(listener, is_secure=tls is not None)
        async with (
            _join_cluster(serving, served.settings, worker) as replica,
            _open_gateway(served, replica, None if serving.alone else base) as gateway,
        ):
            gateway.tasks.start_soon(free_leftovers)
            keys = None
            # where everybody is admitted, the console would be everybody's, too
            if serving.console and (is_loopback(host) or not rules.insecure):
                keys = access.ConsoleKeys(allowed.sources)
            # workers are on one machine, and the memory of their coordinator ends with them
            cluster = replica if worker is None else None
            resources = _resource_server(served, gateway, cluster) if has_providers else None

            @cache
            def control() -> "ControlService":
                from multitap.control.service import ControlService  # noqa: PLC0415 - for commands

                service = ControlService(
                    gateway,
                    reloader=served.reloader,
                    url=f"{base}/mcp",
                    sessions=lambda: [session.id for session in front.sessions],
                    editor=served.editor,
                )
                service.keys = keys
                service.new_link = None if keys is None else partial(_new_link, keys, base)
                return service

            def console(keys: "access.ConsoleKeys") -> "Console":
                from multitap.screens.page.console import Console  # noqa: PLC0415 - for browsers

                page = Console(control(), allowed.access, keys)
                page.accounts = front.accounts
                return page

            front = http_front.HttpFront(
                gateway,
                allowed.access,
                sources=allowed.sources,
                profile=serving.profile,
                console=None if keys is None else LateConsole(partial(console, keys)),
                resource_server=resources,
            )
            if is_loopback(host) or not rules.insecure:  # otherwise nobody is anybody
                accounts.open_accounts(front, serve_settings.public_url or base)
            is_primary = worker is None or worker.is_first
            if replica is not None and worker is not None:
                _join_workers(worker, replica, gateway, control(), front, keys)
            try:
                async with (
                    http_front.serve_http(
                        front,
                        listener,
                        tls=tls,
                        proxies=allowed.access.proxies if serve_settings.proxy_protocol else None,
                    ) as url,
                    # one for all workers: commands address the whole gateway
                    open_control(control, served.state) if is_primary else nullcontext(),
                ):
                    if is_primary:
                        _say_how_to_connect(gateway, url, allowed, resources)
                    if keys is not None and is_primary:
                        _say_how_to_open(keys, base)
                    await _stay(gateway, front, replica, url, worker)
            finally:
                if replica is not None and worker is not None:
                    await workers.stop_together(replica)


def _public_hosts(serve: Serve) -> tuple[str, ...]:
    """The host of the public URL.

    Raises:
        ConfigError: There is no public URL.
    """
    from multitap.gateway.fronts.resource_server import canonical_url  # noqa: PLC0415 - few have providers

    return (urlsplit(canonical_url(serve.public_url)).hostname or "",)


def _resource_server(
    served: ServedHub, gateway: Gateway, cluster: "Replica | None"
) -> "ResourceServer":
    """Admits the tokens of the configured identity providers.

    Raises:
        ConfigError: A variable in the settings cannot be expanded.
    """
    from multitap.config.variables import Scope, expand_access  # noqa: PLC0415 - see above
    from multitap.gateway.fronts.resource_server import ResourceServer  # noqa: PLC0415 - see above

    reloader = served.reloader

    def expand(access: AccessSettings) -> AccessSettings:
        return expand_access(
            access, Scope.of_process() if reloader is None else reloader.loaded.scope
        )

    from multitap.identity.exchange import Exchanges  # noqa: PLC0415 - see above
    from multitap.identity.verifier import Verifier  # noqa: PLC0415 - see above

    def issuer_of(name: str) -> "Issuer | None":
        issuers = resources.verifier.issuers.values()
        return next((issuer for issuer in issuers if issuer.name == name), None)

    exchanges = Exchanges(issuer_of)
    if gateway.hub.people is not None:
        common = gateway.hub.people.common
        common.exchange, common.forget = exchanges.account, exchanges.forget

    def make_verifier(access: AccessSettings) -> Verifier:
        verifier = Verifier(access)
        verifier.on_token, verifier.on_revoked = exchanges.note, exchanges.apply
        return verifier

    def make_sign_in(access: AccessSettings, verifier: Verifier) -> "AuthorizationEndpoints | None":
        sign_in = _sign_in(served.settings.serve.public_url, cluster, access, verifier)
        if sign_in is not None:
            sign_in.server.on_sign_in = exchanges.note_sign_in
            sign_in.server.on_end = exchanges.end
        return sign_in

    resources = ResourceServer(
        served.settings.serve.public_url,
        lambda: gateway.hub.settings.access,
        lambda: gateway.hub.settings.profiles,
        expand=expand,
        make_verifier=make_verifier,
        make_sign_in=make_sign_in,
    )
    return resources


def _sign_in(
    public_url: str | None,
    cluster: "Replica | None",
    access: AccessSettings,
    verifier: "Verifier",
) -> "AuthorizationEndpoints | None":
    """Signs people in for clients that know only our URL; None if that is not configured."""
    if access.sign_in is None:
        return None
    from multitap.authorization.endpoints import open_sign_in  # noqa: PLC0415 - few have it
    from multitap.gateway.fronts.resource_server import canonical_url  # noqa: PLC0415 - as above

    shared = None if cluster is None else (cluster.coordinator.records, cluster.key)
    return open_sign_in(access, verifier, canonical_url(public_url), shared)


def _tls(serving: ServeOptions) -> ServerTls | None:
    """The TLS of the options, if any.

    Raises:
        ConfigError: A file is missing, or cannot be used.
    """
    if serving.cert is not None:
        return ServerTls(TlsFiles(serving.cert, serving.key, serving.client_ca))
    if serving.key is not None or serving.client_ca is not None:
        raise ConfigError("TLS needs a certificate", hint="add `--cert FILE`")
    return None


def _join_workers(  # noqa: PLR0917 - the parts of one process
    worker: Worker,
    replica: "Replica",
    gateway: Gateway,
    control: "ControlService",
    front: "http_front.HttpFront",
    keys: "access.ConsoleKeys | None",
) -> None:
    """Make each worker answer for all of them."""
    if gateway.bus is None:
        return
    from multitap.cluster import worker_peers  # noqa: PLC0415 - only for several workers

    joined = worker_peers.WorkerPeers(
        gateway.bus,
        lambda: [name for name in replica.membership.members if name != replica.id],
        control,
        count=worker.count,
    )
    control.workers = front.pages.workers = joined
    if keys is not None:
        keys.workers = joined


def _join_cluster(
    serving: ServeOptions, settings: Settings, worker: Worker | None
) -> "AbstractAsyncContextManager[Replica | None]":
    """Take part in the cluster, if there is one."""
    if worker is not None:
        return workers.open_worker(worker, settings)
    if serving.cluster is None:
        return nullcontext()
    joining = ClusterOptions(
        url=serving.cluster,
        key_file=serving.cluster_key_file,
        labels=serving.labels,
        advertise=serving.advertise,
        allow_drift=serving.allow_drift,
    )
    return cluster_serving.open_cluster(joining, settings)


@asynccontextmanager
async def _open_gateway(
    served: ServedHub, replica: "Replica | None", shared_at: str | None
) -> AsyncGenerator[Gateway]:
    """A gateway over HTTP; at an address that is given, clients on pipes share its servers."""
    if replica is None:
        # the bundled servers are in no file, so no client on pipes has them
        if shared_at is None or served.reloader is None:
            opening = open_gateway(served.open, host=served.host)
        else:
            opening = _open_shared(served, shared_at)
        async with opening as gateway:
            yield gateway
        return
    open_here = partial(served.open, place=replica.place)
    membership = replica.membership
    from multitap.cluster import bus  # noqa: PLC0415 - only in a cluster

    identity = bus.ReplicaIdentity(
        replica.id,
        replica.coordinator,
        replica.key,
        is_alive=lambda name: name in membership.members,
    )
    async with open_gateway(open_here, host=served.host, replica=identity) as gateway:
        hub = gateway.hub
        replica.attach(lambda: hub.links)
        hub.concerns = lambda: replica.concerns
        gateway.tasks.start_soon(cluster_serving.follow, replica, hub)
        yield gateway


@asynccontextmanager
async def _open_shared(served: ServedHub, url: str) -> AsyncGenerator[Gateway]:
    """A gateway whose servers clients on pipes share."""
    # both import this module, or much
    from multitap.cli.serve.background import host_background  # noqa: PLC0415
    from multitap.cluster.neighbours import Neighbours  # noqa: PLC0415

    async with Tasks() as forwarding:
        neighbours = Neighbours(forwarding)
        place = neighbours.place(_OWN_HUB, os.environ, served.state)
        opening = partial(served.open, place=place)
        async with open_gateway(opening, host=served.host) as gateway:
            gateway.hub.on_restart = partial(neighbours.restart, _OWN_HUB)
            # a server that knows the roots of one client is not for the others
            gateway.on_rooted = partial(neighbours.keep_apart, _OWN_HUB)
            gateway.tasks.start_soon(host_background, neighbours, url)
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
        # first: a load balancer sends nothing new here while the last calls finish
        gateway.is_leaving = True
        await wait_for_calls(gateway.hub, gateway.hub.settings.serve.drain)
        if replica is not None and not (
            worker is not None and await workers.is_gateway_stopping(replica)
        ):
            await cluster_serving.drain(replica, front.refuse_requests)


async def _new_link(keys: "access.ConsoleKeys", base: str) -> str:
    return keys.new_link(base)


def _say_how_to_open(keys: "access.ConsoleKeys", base: str) -> None:
    """Print a link to the console, if only a person sees it: anyone may read a log."""
    if sys.stderr.isatty():
        note(f"console (this link works once): {keys.new_link(base)}")
    else:
        note("console: `multitap console` prints a link to it")


def _say_how_to_connect(
    gateway: Gateway,
    url: str,
    allowed: "front_access.FrontAccess",
    resources: "ResourceServer | None",
) -> None:
    from multitap.gateway.fronts.access import CREATE  # noqa: PLC0415 - see `_serve_http`

    servers = ", ".join(gateway.hub.links) or "none"
    note(f"serving {servers}")
    note(f"at {url} (older clients: {url.removesuffix('mcp')}sse); press Ctrl-C to stop")
    if resources is not None:
        public = resources.public_url
        note(f"people connect to {public}/mcp, and sign in with their provider")
        note(f"for example: claude mcp add --transport http multitap {public}/mcp")
        if gateway.hub.people is not None and gateway.hub.people.is_needed:
            note(f"their accounts: {public}/accounts")
        return
    header = " --header 'Authorization: Bearer TOKEN'" if allowed.is_token_required else ""
    note(f"for example: claude mcp add --transport http multitap {url}{header}")
    if allowed.is_user_unknown:
        note("clients need a token: this system does not tell which local user connects")
        advise(f"{CREATE}; `--insecure` accepts all local users without one")
    elif allowed.is_token_required and not len(allowed.sources):
        note("clients need a token, and there is none yet")
        advise(CREATE)
