"""From an exception and the evidence to words a person can act on."""

import signal
from collections.abc import Mapping

from multitap.errors import ConfigError, shortened, sole
from multitap.events import Failure, FailureCode, Phase
from multitap.redaction import Redactor
from multitap.upstream.handshake import BadGreeting
from multitap.wire.spawner import CannotStart
from multitap.wire.stderr import printable
from multitap.wire.wire import (
    AnswerInvalid,
    AnswerTimeout,
    AuthRequired,
    Evidence,
    Flooded,
    NotSpoken,
    RequestFailed,
    RpcError,
    WireClosed,
)

_NO_SERVER = "it may not be an MCP server, or may need an argument such as `stdio`"
_LONGEST = 1000  # characters of a message
_LOG = "`multitap logs {name}` shows all it wrote"


class Stopped(Exception):
    """The process is stopped by a signal."""

    def __init__(self) -> None:
        super().__init__("its process is stopped (SIGSTOP) and does nothing")


class Unresponsive(Exception):
    """The server answers no health check."""


def diagnose(
    name: str,
    exc: BaseException,
    *,
    phase: Phase,
    evidence: Evidence,
    at: float,
    timings: Mapping[str, float],
    redact: Redactor,
) -> Failure:
    """What happened to server `name`, how to call it, and what to do."""
    code, message, hint = _explain(name, sole(exc), phase, evidence)
    return Failure(
        code,
        phase,
        printable(shortened(redact(message), _LONGEST)),
        hint=redact(hint),
        exit_code=evidence.exit_code,
        stderr=redact(evidence.stderr),
        at=at,
        timings=dict(timings),
    )


def _explain(  # noqa: C901, PLR0911, PLR0912 - one line per kind of failure
    name: str, exc: BaseException, phase: Phase, evidence: Evidence
) -> tuple[FailureCode, str, str]:
    log = _LOG.format(name=name)
    match exc:
        case ConfigError():
            return FailureCode.CONFIG, str(exc), exc.hint or "correct its configuration"
        case CannotStart():
            code = FailureCode.MISSING_PROGRAM if exc.missing else FailureCode.CRASH
            return code, str(exc), exc.hint
        case AuthRequired():
            return FailureCode.AUTH, str(exc), "put its credentials into `headers`"
        case NotSpoken():
            return FailureCode.PROTOCOL, str(exc), "check the path of `url`, often `/mcp` or `/sse`"
        case Stopped():
            return FailureCode.STOPPED, str(exc), "somebody sent it SIGSTOP; it is started anew"
        case Unresponsive():
            return FailureCode.HANG, str(exc), log
        case Flooded():
            return FailureCode.FLOOD, str(exc), _NO_SERVER
        case WireClosed() if evidence.pid is not None:
            return FailureCode.CRASH, _ended(exc, phase, evidence), _why_it_ended(evidence, log)
        case RequestFailed() | WireClosed():
            return FailureCode.UNREACHABLE, str(exc), "check that it runs and that `url` is right"
        case AnswerTimeout() | TimeoutError():
            return FailureCode.HANG, _silent(exc, phase, evidence), _why_silent(evidence, log)
        case AnswerInvalid():
            return FailureCode.PROTOCOL, f"it does not speak MCP properly: {exc}", log
        case BadGreeting():
            words = f"its answer to the {phase} misses what MCP demands: {exc}"
            return FailureCode.PROTOCOL, words, log
        case RpcError():
            return FailureCode.PROTOCOL, f"it refuses the {phase}: {exc}", log
        case _:
            return FailureCode.PROTOCOL, f"{type(exc).__name__}: {exc}", log


def _ended(exc: WireClosed, phase: Phase, evidence: Evidence) -> str:
    when = "" if phase in {Phase.CALL, Phase.HEALTH} else f" before the {phase} was done"
    code = evidence.exit_code
    if code is None:
        return f"{exc}{when}"
    if code >= 0:
        return f"it exited with code {code}{when}"
    try:
        return f"it was ended by {signal.Signals(-code).name}{when}"
    except ValueError:
        return f"it was ended by signal {-code}{when}"


def _why_it_ended(evidence: Evidence, log: str) -> str:
    if "ImportError" in evidence.stderr and "mcp" in evidence.stderr:
        return "it may need an older SDK: try `uvx --with 'mcp<2' …`"
    if "ENOENT" in evidence.stderr or "ModuleNotFoundError" in evidence.stderr:
        return f"something it needs is not installed; {log}"
    return log


def _silent(exc: BaseException, phase: Phase, evidence: Evidence) -> str:
    words = str(exc) if isinstance(exc, AnswerTimeout) else f"it did not finish the {phase} in time"
    return f"{words}; it wrote {evidence.noise_sample!r} instead" if evidence.noise else words


def _why_silent(evidence: Evidence, log: str) -> str:
    if evidence.noise:
        return _NO_SERVER
    return f"raise `connect_timeout` if it is only slow; {log}"
