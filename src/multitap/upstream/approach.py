"""The ways to try to reach a server whose transport or era is unknown."""

from dataclasses import replace

from multitap.config import HttpServer, ServerConfig, StdioServer
from multitap.events import Phase
from multitap.faults import Flooded, WireClosed, WrongProtocol
from multitap.records import dataclass
from multitap.upstream.session import Era, EraMixed
from multitap.wire.wire import Evidence


@dataclass(frozen=True, slots=True)
class Approach:
    config: ServerConfig
    era: Era | None
    """None: unknown."""


def first_approach(config: ServerConfig, remembered: Era | None) -> Approach:
    """The first approach to try."""
    if config.era != "auto":
        remembered = Era(config.era)
    if isinstance(config, HttpServer) and config.transport == "http":
        config = config.model_copy(update={"transport": "streamable-http"})
    if isinstance(config, HttpServer) and config.transport == "sse":
        remembered = Era.HANDSHAKE  # legacy SSE exists only in the handshake era
    return Approach(config, remembered)


def next_approach(  # noqa: PLR0911 - one line per kind of failure
    failed: Approach,
    exc: BaseException,
    phase: Phase,
    wanted: ServerConfig,
    evidence: Evidence,
) -> Approach | None:
    """The next approach after `failed`; None if no other can help."""
    if phase is not Phase.HANDSHAKE:
        return None
    if isinstance(exc, WrongProtocol) and isinstance(failed.config, HttpServer):
        undecided = wanted.transport == "http" and failed.config.transport == "streamable-http"
        if not undecided:
            return None
        return Approach(failed.config.model_copy(update={"transport": "sse"}), Era.HANDSHAKE)
    if isinstance(exc, Flooded):
        return None
    if isinstance(exc, EraMixed):
        return replace(failed, era=Era.STATELESS)
    if evidence.needs_proc and isinstance(failed.config, StdioServer):
        return _with_proc(failed, failed.config)
    if isinstance(exc, WireClosed) and failed.era is None and wanted.era == "auto":
        # Servers on the oldest SDKs crash when they get any request before the handshake. Exit
        # code and message do not distinguish that from other crashes, but whether they read the
        # request does: a program that ended before would have ended in any era.
        return replace(failed, era=Era.HANDSHAKE) if evidence.has_read else None
    return None


def _with_proc(failed: Approach, config: StdioServer) -> Approach | None:
    """The same with access to its own `/proc/self`; None if it had that."""
    if config.sandbox_rules.proc:
        return None
    rules = config.sandbox_rules.model_copy(update={"proc": True})
    return replace(failed, config=config.model_copy(update={"sandbox_rules": rules}))


def era_after(
    failed: Approach, exc: BaseException, believed: Era | None, evidence: Evidence
) -> Era | None:
    """What to remember about a server's era after its handshake finally failed."""
    if not evidence.has_read:
        return believed  # it did not receive the request
    if isinstance(exc, WireClosed) and evidence.pid is not None and failed.era is Era.HANDSHAKE:
        # A program that ends at this request has another problem: those that know only the newer
        # era refuse it. Trying the newer era as well would start it twice each time.
        return Era.HANDSHAKE
    return None  # the remembered era may be wrong
