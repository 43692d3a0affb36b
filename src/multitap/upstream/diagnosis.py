"""Turns an exception and the evidence into a failure that a person can act on."""

import signal
from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING

from multitap.errors import ConfigError, shortened, sole
from multitap.events import Failure, FailureCode, Phase
from multitap.faults import (
    AnswerInvalid,
    AnswerTimeout,
    AuthRequired,
    Flooded,
    OwnerUnreachable,
    RequestFailed,
    WireClosed,
    WrongProtocol,
)
from multitap.later import Later
from multitap.printable import printable
from multitap.redaction import Redactor
from multitap.upstream.handshake import BadHandshake
from multitap.wire.process.spawner import CannotStart
from multitap.wire.wire import Evidence, RpcError

if TYPE_CHECKING:
    from multitap.upstream import crash_output
else:
    crash_output = Later("multitap.upstream.crash_output")

_NO_SERVER = "it may not be an MCP server, or may need an argument such as `stdio`"
_LONGEST = 1000  # characters of a message
_SANDBOX = "its sandbox may forbid what it needs: `multitap sandbox learn {name}` finds out what"
_GUARDED = (
    "it runs under `{level}`: `multitap sandbox set {name} off` tries it without, if you trust it"
)
_MOST_DENIED = 3  # paths in one hint
_OWNERS = "`multitap cluster status` shows who runs what"
_UP = frozenset({Phase.CALL, Phase.HEALTH})
_LOG = "`multitap logs {name}` shows everything it wrote"


class ProcessStopped(Exception):
    """The process is stopped by a signal."""

    def __init__(self) -> None:
        super().__init__("its process is stopped (SIGSTOP)")


class Unresponsive(Exception):
    """The server does not answer health checks."""


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
    """The failure of server `name`: message, code and hint."""
    code, message, hint = _explain(name, sole(exc), phase, evidence)
    if evidence.level != "off":
        hint = _in_sandbox(name, code, phase, hint, evidence)
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


def _in_sandbox(name: str, code: FailureCode, phase: Phase, hint: str, evidence: Evidence) -> str:
    """The hint for a confined server: what its sandbox denied, or that it has one."""
    named = crash_output.denied_paths(evidence.stderr)
    if denied := {**named, **dict.fromkeys(evidence.denied, True)}:
        return denial_hint(name, denied)
    learn = _SANDBOX.format(name=name)
    if evidence.level == "strict" and crash_output.is_denied(evidence.stderr):
        return learn
    if code not in {FailureCode.CRASH, FailureCode.HANG} or phase in _UP:
        return hint
    log = _LOG.format(name=name)
    is_strict = evidence.level == "strict"
    without = learn if is_strict else _GUARDED.format(level=evidence.level, name=name)
    # it may wait for what its sandbox denies, however long it has
    if code is FailureCode.HANG or hint == log:
        return f"{without}; {log}"
    # a folder that cannot be read has no modules, as far as Python and Node can tell
    is_unclear = is_strict and crash_output.is_missing(evidence.stderr)
    return f"{hint}, unless {without}" if is_unclear else hint


def denial_hint(name: str, denied: Mapping[str, bool]) -> str:
    """What a server's sandbox denied it, and the command that allows it.

    Args:
        name: The server's name.
        denied: The paths, and whether each was to be changed.
    """
    shown = [*denied][:_MOST_DENIED]
    more = len(denied) - len(shown)
    listed = ", ".join(shown) + (f" and {more} more" if more else "")
    options = " ".join(f"--{'write' if denied[path] else 'read'} {quote(path)}" for path in shown)
    return f"its sandbox denies it {listed}: `multitap sandbox allow {name} {options}` opens that"


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
            return FailureCode.AUTH, str(exc), exc.hint or "set its credentials in `headers`"
        case WrongProtocol():
            return FailureCode.PROTOCOL, str(exc), "check the path of `url`, often `/mcp` or `/sse`"
        case ProcessStopped():
            return FailureCode.STOPPED, str(exc), "something sent it SIGSTOP; it is being restarted"
        case Unresponsive():
            return FailureCode.HANG, str(exc), log
        case Flooded():
            return FailureCode.FLOOD, str(exc), _NO_SERVER
        case WireClosed() if evidence.pid is not None:
            return (
                FailureCode.CRASH,
                _end_words(exc, phase, evidence),
                crash_output.advice(evidence.stderr) or log,
            )
        case OwnerUnreachable():
            return FailureCode.UNREACHABLE, str(exc), exc.hint or _OWNERS
        case RequestFailed() | WireClosed():
            return FailureCode.UNREACHABLE, str(exc), "check that it runs and that `url` is right"
        case AnswerTimeout() | TimeoutError():
            return FailureCode.HANG, _silent(exc, phase, evidence), _why_silent(evidence, log)
        case AnswerInvalid():
            return FailureCode.PROTOCOL, f"it does not speak MCP properly: {exc}", log
        case BadHandshake():
            words = f"its answer to the {phase} lacks what MCP requires: {exc}"
            return FailureCode.PROTOCOL, words, log
        case RpcError():
            return FailureCode.PROTOCOL, f"it refuses the {phase}: {exc}", log
        case _:
            return FailureCode.PROTOCOL, f"{type(exc).__name__}: {exc}", log


def _end_words(exc: WireClosed, phase: Phase, evidence: Evidence) -> str:
    is_up = phase in _UP
    when = "" if is_up else f" during the {phase}"
    said = f": {line}" if (line := crash_output.telling_line(evidence.stderr, is_up=is_up)) else ""
    return f"{_how_it_ended(exc, evidence.exit_code)}{when}{said}"


def _how_it_ended(exc: WireClosed, code: int | None) -> str:
    if code is None:
        return str(exc)
    if code >= 0:
        return f"it exited with code {code}"
    try:
        return f"it was terminated by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was terminated by signal {-code}"


def _silent(exc: BaseException, phase: Phase, evidence: Evidence) -> str:
    words = str(exc) if isinstance(exc, AnswerTimeout) else f"it did not finish the {phase} in time"
    if evidence.noise:
        return f"{words}; it wrote {evidence.noise_sample!r} instead"
    line = crash_output.telling_line(evidence.stderr, is_up=True)  # many report success, and hang
    return f"{words}; it wrote to its standard error: {line}" if line else words


def _why_silent(evidence: Evidence, log: str) -> str:
    if evidence.noise:
        return _NO_SERVER
    if found := crash_output.advice(evidence.stderr):
        return found
    if evidence.pid is not None and not evidence.has_read:  # it does not listen yet
        words = "it has not begun to listen: if it is still downloading, check the network"
        return f"{words}; raise `connect_timeout` if it takes longer to start; {log}"
    return log if evidence.pid is not None else "check that it runs and that `url` is right"
