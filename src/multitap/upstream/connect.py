"""The ways to reach a server: one attempt, the approaches it tries, where it runs, its wire."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, assert_never

import msgspec

from multitap.config.models import HttpServer, LocalServer, ServerConfig, StdioServer
from multitap.errors import Flooded, WireClosed, WrongProtocol
from multitap.events import Phase
from multitap.oauth.storage import Logins, LoginSharing
from multitap.sandbox.sandboxes import Sandboxes
from multitap.tasks import Latch, now
from multitap.upstream.backoff import Breaker, Restarts
from multitap.upstream.handshake import Era, EraMixed
from multitap.wire.process import Spawner
from multitap.wire.stderr_log import log_path
from multitap.wire.stdio import open_stdio
from multitap.wire.wire import Evidence, Wire

if TYPE_CHECKING:
    from multitap.upstream.link import Link

Dial = Callable[[str, ServerConfig], AbstractAsyncContextManager[Wire]]
"""Opens a wire; the only seam between a link and the network."""


class Attempt(msgspec.Struct, kw_only=True):
    """One attempt to connect: how far it got, and how long each phase took."""

    restarts: Restarts = msgspec.field(default_factory=Restarts)
    """The history of earlier attempts."""
    is_first: bool = False
    """Whether it directly follows the loss of a server that was up."""
    is_ordered: bool = False
    """Whether a person requested it."""
    breaker: Breaker | None = None
    """Shares its outcome with other replicas."""
    phase: Phase = Phase.SPAWN
    wire: Wire | None = None
    connected_at: float | None = None
    stopped: bool = False
    """Whether the process was stopped by a signal when the attempt ended."""
    timings: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    superseded: Latch = msgspec.field(default_factory=Latch)
    """Set when another attempt is requested, whatever the outcome of this one."""
    _phase_since: float = 0.0

    async def wait_admitted(self, breaker: Breaker | None) -> None:
        """Wait until the shared breaker admits it.

        Raises:
            Paused: All replicas have to wait.
        """
        # once per attempt: another approach belongs to the same one
        if breaker is not None and self.breaker is None:
            await breaker.admit(self.restarts, is_first=self.is_first, is_ordered=self.is_ordered)
            self.breaker = breaker

    def begin(self) -> None:
        self.phase, self._phase_since = Phase.SPAWN, now()

    def on_reached(self, phase: Phase) -> None:
        time = now()
        self.timings[self.phase.value] = time - self._phase_since
        self.phase, self._phase_since = phase, time

    @property
    def healthy_for(self) -> float | None:
        """Seconds since it connected; None if it never did."""
        return None if self.connected_at is None else now() - self.connected_at

    def evidence(self) -> Evidence:
        # read each time: exit code and last output arrive after the wire has closed
        return self.wire.evidence() if self.wire else Evidence()


class Approach(msgspec.Struct, frozen=True):
    """One way to try to reach a server whose transport or era may be unknown."""

    config: ServerConfig
    era: Era | None
    """None: unknown."""


def first_approach(config: ServerConfig, remembered: Era | None) -> Approach:
    """The first approach to try."""
    if config.era != "auto":
        remembered = Era(config.era)
    if isinstance(config, HttpServer) and config.transport == "http":
        config = config.replace(transport="streamable-http")
    if isinstance(config, HttpServer) and config.transport == "sse":
        remembered = Era.HANDSHAKE  # legacy SSE exists only in the handshake era
    return Approach(config, remembered)


def next_approach(  # noqa: PLR0911 - one line per kind of failure
    failed: Approach,
    exc: BaseException,
    phase: Phase,
    configured: ServerConfig,
    evidence: Evidence,
) -> Approach | None:
    """The next approach after `failed`; None if no other can help."""
    if phase is not Phase.HANDSHAKE:
        return None
    if isinstance(exc, WrongProtocol) and isinstance(failed.config, HttpServer):
        undecided = configured.transport == "http" and failed.config.transport == "streamable-http"
        if not undecided:
            return None
        return Approach(failed.config.replace(transport="sse"), Era.HANDSHAKE)
    if isinstance(exc, Flooded):
        return None
    if isinstance(exc, EraMixed):
        return Approach(failed.config, Era.STATELESS)
    if evidence.needs_proc and isinstance(failed.config, StdioServer):
        return _with_proc(failed, failed.config)
    if isinstance(exc, WireClosed) and failed.era is None and configured.era == "auto":
        # Servers on the oldest SDKs crash when they get any request before the handshake. Exit
        # code and message do not distinguish that from other crashes, but whether they read the
        # request does: a program that ended before would have ended in any era.
        return Approach(failed.config, Era.HANDSHAKE) if evidence.has_read else None
    return None


def _with_proc(failed: Approach, config: StdioServer) -> Approach | None:
    """The same with access to its own `/proc/self`; None if it had that."""
    if config.sandbox_rules.proc:
        return None
    rules = config.sandbox_rules.replace(proc=True)
    return Approach(config.replace(sandbox_rules=rules), failed.era)


def era_after(
    failed: Approach, exc: BaseException, believed: Era | None, evidence: Evidence
) -> Era | None:
    """What to remember about a server's era after its handshake finally failed."""
    if not evidence.has_read:
        return believed  # it did not receive the request
    if isinstance(exc, WireClosed) and evidence.pid is not None and failed.era is Era.HANDSHAKE:
        # A program that ends at this request has another problem: those that know only the
        # stateless era refuse it. Trying that as well would start it twice each time.
        return Era.HANDSHAKE
    return None  # the remembered era may be wrong


class Placement(Protocol):
    """Where a server runs: in this process, or in another replica of a cluster."""

    @property
    def is_here(self) -> bool: ...

    @property
    def dial(self) -> Dial: ...

    @property
    def breaker(self) -> Breaker | None:
        """Coordinates attempts with other replicas; None if there are none."""
        ...


class Placements(Protocol):
    """Decides where servers run: in this process, or in another replica of a cluster."""

    @property
    def logins(self) -> LoginSharing | None:
        """Shares logins with other replicas; None if there are none."""
        ...

    def __call__(
        self, link: "Link", config: ServerConfig, dial: Dial, /
    ) -> AbstractAsyncContextManager[Placement]:
        """Where the server of a link runs; `dial` opens its wire if that is in this process."""
        ...


class LocalPlacement(msgspec.Struct, frozen=True):
    """See `Placement`."""

    dial: Dial
    is_here: bool = True
    breaker: Breaker | None = None


class LocalPlacements(msgspec.Struct, frozen=True):
    """See `Placements`; for a gateway without a cluster."""

    logins: LoginSharing | None = None

    def __call__(
        self,
        link: "Link",  # noqa: ARG002 - the same for all of them
        config: ServerConfig,  # noqa: ARG002
        dial: Dial,
        /,
    ) -> AbstractAsyncContextManager[Placement]:
        return nullcontext(LocalPlacement(dial))


local_placements = LocalPlacements()


class Dialer:
    """Opens wires for one hub; programs write their standard error to files in `log_dir`.

    They inherit a few variables of `env`, by default that of this process.
    """

    def __init__(
        self,
        spawner: Spawner,
        log_dir: Path | None,
        logins: Logins,
        sandboxes: Sandboxes | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._spawner = spawner
        self._env = env
        self._sandboxes = sandboxes
        self._log_dir = log_dir
        self._logins = logins

    def for_person(self, logins: Logins, mark: str) -> "Dialer":
        """Opens wires for one person, with their logins and log files of their own."""
        log_dir = None if self._log_dir is None else self._log_dir / f"person-{mark}"
        return Dialer(self._spawner, log_dir, logins, self._sandboxes, self._env)

    def __call__(self, name: str, config: ServerConfig) -> AbstractAsyncContextManager[Wire]:
        # the other wires are imported on first use: that takes longer than many servers to start
        match config:
            case StdioServer():
                log = log_path(self._log_dir, name) if self._log_dir else None
                return open_stdio(
                    name,
                    config,
                    self._spawner,
                    log=log,
                    sandboxes=self._sandboxes,
                    env=self._env,
                )
            case HttpServer(transport="sse"):
                from multitap.wire.sse import open_sse  # noqa: PLC0415 - see above

                return open_sse(config, authorizer=self._logins.authorizer(name, config))
            case HttpServer():
                from multitap.wire.streamable import open_streamable  # noqa: PLC0415

                return open_streamable(config, authorizer=self._logins.authorizer(name, config))
            case LocalServer():
                from multitap.wire.in_process import open_in_process  # noqa: PLC0415

                return open_in_process(config.server)
            case _:
                assert_never(config)
