"""The sandboxes of one hub: the rules of each server, and its observed use."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from anyio import to_thread
from msgspec.structs import replace

from multitap.config.models import StdioServer
from multitap.config.provenance import Level
from multitap.errors import CannotStart
from multitap.events import SandboxState
from multitap.http.closed_ports import closed_ports_folder
from multitap.sandbox.learning import Traffic
from multitap.sandbox.levels import (
    Confinement,
    SandboxSupport,
    ShownLevel,
    confinement_of,
    support_here,
)
from multitap.sandbox.plan import (
    SandboxPlan,
    bubblewrap_arguments,
    plan_sandbox,
    with_all_but_private,
)
from multitap.tasks import Tasks

if TYPE_CHECKING:
    from multitap.sandbox.confinement import SandboxOrders
    from multitap.sandbox.egress import ForwardProxy

_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


_UNCONFINED = Confinement("off", "nobody asked")
_NEEDS_PROC = "needs-proc"
"""A file in a server's folder: it came up only with access to `/proc/self`. Most servers do
without, and looking at each file that a server opens is slow."""


def _nothing() -> None:
    """Do nothing: an unconfined program has nothing to release."""


class UsedPaths:
    """The paths that a server uses, allowed or not."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.changed: set[str] = set()

    def note(self, path: str, *, changes: bool) -> None:
        (self.changed if changes else self.read).add(path)


class Launch:
    """How a program is started, confined or as it is, and what its sandbox denied it.

    Used as a context: when it is left, the program may no longer use the proxy.

    Args:
        orders: How the kernel confines it; None: not at all.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        cwd: Path | None,
        confinement: Confinement = _UNCONFINED,
        orders: "SandboxOrders | None" = None,
        *,
        traffic: Traffic | None = None,
        used: UsedPaths | None = None,
    ) -> None:
        self.env = env
        self.cwd = cwd
        self.confinement = confinement
        self.orders = orders
        self.denied: list[str] = []
        """Paths that it tried to change while it started."""
        self.needs_proc = False
        """Whether it ended while it started, and `/proc/self` was closed to it."""
        self.on_settled: Callable[[], None] = _nothing
        """Called when the server is up: what it tries from then on is not watched."""
        self.on_end: Callable[[], None] = _nothing
        self.folder: Path | None = None
        """Its own folder, if it is confined."""
        self._traffic = traffic
        self._used = used

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.on_end()

    def on_up(self) -> None:
        """Note that the server is up, and what it needed for that."""
        if self.orders is None:
            return
        if self.orders["watch"]:
            self.on_settled()
        if self.orders["network"] and self.orders["proc"] and self.folder is not None:
            # A full disk: the next start tries without it first. The server may write in this
            # folder, and could have put a link there.
            with suppress(OSError):
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
                os.close(os.open(self.folder / _NEEDS_PROC, flags, 0o600))

    def on_early_end(self) -> None:
        """Note that it ended by itself while it started: a closed `/proc` may be the reason."""
        orders = self.orders
        self.needs_proc = orders is not None and orders["network"] and not orders["proc"]

    def on_report(self, kind: str, value: Any) -> None:
        """Record a report of the warden: paths, and refused addresses and processes."""
        if kind == "used" and self._used is not None:
            changes, path = value
            self._used.note(path, changes=bool(changes))
        elif kind == "denied":
            self.denied.append(value)
        elif kind == "refused" and self._traffic is not None:
            is_open = self.orders is not None and self.orders["network"]
            reason = (
                "confined servers may not use it" if is_open else "it must go through the proxy"
            )
            self._traffic.on_refused(value, reason)
        elif kind == "crowded" and self._traffic is not None:
            self._traffic.on_refused("another process", f"it has {value} already")


class Sandboxes:
    """Makes a sandbox for each confined server.

    Args:
        learned: Records what servers use; they may then read everything that is not private,
            and reach every host.
    """

    default: Level = "guard"
    """The level of servers that the person did not write."""

    def __init__(
        self,
        tasks: Tasks,
        state: Path,
        support: SandboxSupport | None = None,
        learned: UsedPaths | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._env = os.environ if env is None else env
        self._tasks = tasks
        self._state = state
        self._support = support
        self._learned = learned
        # servers start in parallel, and must not create two proxies
        self._starting = asyncio.Lock()
        self._proxy: ForwardProxy | None = None
        self._traffic: dict[str, Traffic] = {}
        self._launches: dict[str, Launch] = {}
        """The last start of each server: `doctor` shows what it was denied before it ended."""

    @property
    def support(self) -> SandboxSupport:
        return self._support or support_here()

    def decide(self, config: StdioServer, program: str | None = None) -> Confinement:
        """How much a server is confined; without its program, as far as that is known."""
        return confinement_of(config, self.support, self.default, program=program)

    def state_of(self, name: str, config: StdioServer) -> SandboxState:
        """How a server is confined, why, what it was denied, and its network traffic."""
        launch = self._launches.get(name)
        confinement = launch.confinement if launch else self.decide(config)
        traffic = self._traffic.get(name, Traffic())
        is_missing = self.support.is_wanted and confinement.reason == self.support.reason
        return SandboxState(
            level="off" if self.support.reason is not None else confinement.level,
            reason=confinement.reason,
            hosts=traffic.hosts(),
            refused=traffic.refusals(),
            denied=tuple(launch.denied) if launch else (),
            is_missing=is_missing,
        )

    async def launch(
        self, name: str, config: StdioServer, program: str, env: Mapping[str, str]
    ) -> Launch:
        """How to start a server.

        Raises:
            CannotStart: It must be confined, and cannot be.
        """
        confinement = self.decide(config, program)
        if not confinement.confined:
            launch = Launch(env, config.start_folder, confinement)
        elif self.support.reason is not None:
            raise CannotStart(
                self.support.reason,
                hint=f"`multitap sandbox set {name} guard` starts it without a sandbox here",
                missing=True,
            )
        else:
            # resolving paths looks at the disk, which may be a slow network mount
            plan = await to_thread.run_sync(
                self._prepare, name, config, program, env, confinement.level
            )
            wrapper = _wrapper(plan, self._state) if config.sandbox == "bubblewrap" else []
            launch = await self._confine(name, plan, confinement, wrapper)
        self._launches[name] = launch
        return launch

    def _prepare(
        self,
        name: str,
        config: StdioServer,
        program: str,
        env: Mapping[str, str],
        level: ShownLevel,
    ) -> SandboxPlan:
        plan = plan_here(self._state, name, config, program, env, level=level, ours=self._env)
        if self._learned is not None:
            plan = with_all_but_private(plan, Path.home().resolve(), self._state)
        try:
            for folder in (plan.folder, plan.folder / "home", plan.folder / "tmp"):
                # one for each server: another must not read its home or /tmp
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise CannotStart(
                f"its folder {str(plan.folder)!r} cannot be created: {exc.strerror}",
                hint="check `state_dir`",
            ) from None
        is_marked = plan.level != "strict" and os.path.lexists(plan.folder / _NEEDS_PROC)
        return replace(plan, proc=True) if is_marked else plan

    async def _confine(
        self, name: str, plan: SandboxPlan, confinement: Confinement, wrapper: list[str]
    ) -> Launch:
        # kept over restarts: `doctor` shows what it wanted before it crashed
        traffic = self._traffic.setdefault(name, Traffic())
        env, port, on_end = dict(plan.env), 0, _nothing
        is_open = plan.level != "strict"
        if not is_open and (plan.hosts or self._learned):
            from multitap.sandbox.egress import ProxyAccess  # noqa: PLC0415 - few need it

            proxy = await self._running_proxy()
            access, port = ProxyAccess(name, plan.hosts, traffic), proxy.port
            access.everything = self._learned is not None
            address, on_end = proxy.admit(access), partial(proxy.dismiss, access)
            env |= dict.fromkeys(_PROXY_VARIABLES, address)
            # curl heeds only the lower-case `http_proxy`, other programs only the upper-case names
            env |= {variable.lower(): address for variable in _PROXY_VARIABLES}
            env["NODE_USE_ENV_PROXY"] = "1"  # for Node's own `fetch`
        orders: SandboxOrders = {
            "read": [*plan.read],
            "write": [*plan.write],
            "devices": [*plan.devices],
            "proxy": port,
            "processes": plan.processes,
            "memory": plan.memory,
            "proc": plan.proc,
            "listed": [*plan.listed],
            "network": is_open,
            "sockets": [*plan.sockets],
            "socket_program": plan.program,
            "closed_ports": str(closed_ports_folder()),
            "observe": self._learned is not None,
            "watch": is_open,
            "wrapper": wrapper,
        }
        launch = Launch(env, plan.cwd, confinement, orders, traffic=traffic, used=self._learned)
        launch.on_end = on_end
        launch.folder = plan.folder
        return launch

    async def _running_proxy(self) -> "ForwardProxy":
        async with self._starting:
            if self._proxy is None:
                from multitap.sandbox.egress import ForwardProxy  # noqa: PLC0415 - as above

                proxy = ForwardProxy(self._tasks)
                await proxy.start()
                self._proxy = proxy
        return self._proxy

    def close(self) -> None:
        """Stop the proxy."""
        if self._proxy is not None:
            self._proxy.close()


def _wrapper(plan: SandboxPlan, state: Path) -> list[str]:
    """The bubblewrap command that starts a program in its own namespaces.

    Raises:
        CannotStart: Bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise CannotStart(
            "bubblewrap is not installed",
            hint='install it, or set `sandbox = "strict"`',
            missing=True,
        )
    return [program, *bubblewrap_arguments(plan, Path.home().resolve(), state)]


def plan_here(
    state: Path,
    name: str,
    config: StdioServer,
    program: str,
    env: Mapping[str, str],
    *,
    level: ShownLevel,
    ours: Mapping[str, str] = os.environ,
) -> SandboxPlan:
    """The sandbox plan of a server on this machine; reads the disk."""
    return plan_sandbox(
        name,
        config,
        program,
        env,
        level=level,
        home=Path.home().resolve(),
        state=state,
        here=Path.cwd(),
        ours=ours,
    )


@asynccontextmanager
async def open_sandboxes(
    state: Path,
    support: SandboxSupport | None = None,
    learned: UsedPaths | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncGenerator[Sandboxes]:
    """Sandboxes for servers; leaving the block ends all connections of confined ones."""
    async with Tasks() as tasks:
        sandboxes = Sandboxes(tasks, state, support, learned, env)
        try:
            yield sandboxes
        finally:
            sandboxes.close()
