"""Turns an exception and the evidence into a failure that a person can act on.

Imported when a server fails: its patterns take a while to compile.
"""

import re
import signal
from collections.abc import Iterator, Mapping
from shlex import quote

from multitap.errors import (
    AnswerInvalid,
    AnswerTimeout,
    AuthRequired,
    CannotStart,
    ConfigError,
    Flooded,
    OwnerUnreachable,
    RequestFailed,
    WireClosed,
    WrongProtocol,
    shortened,
    sole,
)
from multitap.events import Failure, FailureCode, Phase
from multitap.printable import printable
from multitap.redaction import Redactor
from multitap.upstream.handshake import BadHandshake
from multitap.upstream.health import ProcessStopped, Unresponsive
from multitap.wire.jsonrpc import RpcError
from multitap.wire.wire import Evidence

_NO_SERVER = "it may not be an MCP server, or may need an argument such as `stdio`"
_MESSAGE_LIMIT = 1000  # characters of a message
_SANDBOX = "its sandbox may forbid what it needs: `multitap sandbox learn {name}` finds out what"
_GUARDED = (
    "it runs under `{level}`: `multitap sandbox set {name} off` tries it without, if you trust it"
)
_MOST_DENIED = 3  # paths in one hint
_OWNERS = "`multitap cluster status` shows who runs what"
_UP = frozenset({Phase.CALL, Phase.HEALTH})
_LOG = "`multitap logs {name}` shows everything it wrote"


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
    # hints have commands to paste into a shell
    code, message, hint = _explain(quote(name), sole(exc), phase, evidence)
    if evidence.level != "off":
        hint = _in_sandbox(quote(name), code, phase, hint, evidence)
    return Failure(
        code,
        phase,
        printable(shortened(redact(message), _MESSAGE_LIMIT)),
        hint=redact(hint),
        exit_code=evidence.exit_code,
        stderr=redact(evidence.stderr),
        at=at,
        timings=dict(timings),
    )


def _in_sandbox(name: str, code: FailureCode, phase: Phase, hint: str, evidence: Evidence) -> str:
    """The hint for a confined server: what its sandbox denied, or that it has one."""
    denied = {**denied_paths(evidence.stderr), **dict.fromkeys(evidence.denied, True)}
    if denied:
        return denial_hint(name, denied)
    learn = _SANDBOX.format(name=name)
    if evidence.level == "strict" and is_denied(evidence.stderr):
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
    is_unclear = is_strict and is_missing(evidence.stderr)
    return f"{hint}, unless {without}" if is_unclear else hint


def denial_hint(name: str, denied: Mapping[str, bool]) -> str:
    """What a server's sandbox denied it, and the command that allows it.

    `denied` has the paths, and whether each was to be changed.
    """
    paths = [*denied][:_MOST_DENIED]
    more = len(denied) - len(paths)
    listed = ", ".join(paths) + (f" and {more} more" if more else "")
    options = " ".join(f"--{'write' if denied[path] else 'read'} {quote(path)}" for path in paths)
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
                _describe_end(exc, phase, evidence),
                advice(evidence.stderr) or log,
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
            message = f"its answer to the {phase} lacks what MCP requires: {exc}"
            return FailureCode.PROTOCOL, message, log
        case RpcError():
            return FailureCode.PROTOCOL, f"it refuses the {phase}: {exc}", log
        case _:
            return FailureCode.PROTOCOL, f"{type(exc).__name__}: {exc}", log


def _describe_end(exc: WireClosed, phase: Phase, evidence: Evidence) -> str:
    is_up = phase in _UP
    when = "" if is_up else f" during the {phase}"
    line = telling_line(evidence.stderr, is_up=is_up)
    return f"{_how_it_ended(exc, evidence.exit_code)}{when}{f': {line}' if line else ''}"


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
    silence = (
        str(exc) if isinstance(exc, AnswerTimeout) else f"it did not finish the {phase} in time"
    )
    if evidence.noise:
        return f"{silence}; it wrote {evidence.noise_sample!r} instead"
    line = telling_line(evidence.stderr, is_up=True)  # many report success, and hang
    return f"{silence}; it wrote to its standard error: {line}" if line else silence


def _why_silent(evidence: Evidence, log: str) -> str:
    if evidence.noise:
        return _NO_SERVER
    if hint := advice(evidence.stderr):
        return hint
    if evidence.pid is not None and not evidence.has_read:  # it does not listen yet
        hint = "it has not begun to listen: if it is still downloading, check the network"
        return f"{hint}; raise `connect_timeout` if it takes longer to start; {log}"
    return log if evidence.pid is not None else "check that it runs and that `url` is right"


LONGEST = 300
"""Characters of a line that are quoted."""

# without the escape character, which was already replaced
_COLOUR = re.compile(r"\N{REPLACEMENT CHARACTER}\[[0-9;]*[A-Za-z]")
_FRAME = re.compile(r"^[\s|+\-─╰▶\N{MULTIPLICATION SIGN}]+")
_NPM = re.compile(r"^npm (?:error|ERR!) ?")
_NPM_DETAIL = re.compile(r"(?:code|errno|syscall|path|dest|cwd|signal|command|A complete log)\b|$")
_CAUSE = re.compile(r"^(?:cause|caused by): ", re.IGNORECASE)
_EXCEPTION = re.compile(
    r"^(?:Uncaught )?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)"
    r"(?: \[\w+\])?(?::|$)|^Error(?: \[\w+\])?: |^panic: "
)
_GROUP = re.compile(r"^(?:Base)?ExceptionGroup: ")
_ERROR = re.compile(
    r"^(?:\S+: )?\W?(?:error|fatal|critical)\b\W|\b(?:ERROR|FATAL|CRITICAL)\b|^\S+: error: ",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"\b(?:error|fail(?:ed|ure)?|cannot|can't|could not|unable|not found|no such|denied|refused"
    r"|missing|required|invalid|unknown|not provided|does not exist|must)\b",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"\bE(?:CONNREFUSED|NOTFOUND|AI_AGAIN|HOSTUNREACH|NETUNREACH)\b|connection refused"
    r"|connect call failed|all connection attempts failed|can(?:'t|not) connect to\b",
    re.IGNORECASE,
)
# not Node's and Python's own warnings about code, which a working server prints as well
_DEPRECATED = re.compile(
    r"^(?!.*Warning\b).*\b(?:is|been) (?:deprecated|discontinued|archived)\b", re.IGNORECASE
)
# often the last line, never the reason
_IDLE = re.compile(
    r"npm (?:warn|notice|WARN)|at .+:\d+|File \"|Traceback |Node\.js v|throw\b|\.\.\. "
    r"|(?:usage|hint|help|note|warning|info|debug)\b|Run '|For (?:more|further) information"
    r"|(?:During handling|The above exception)|Emitted 'error'|(?:code|errno|syscall): "
    r"|Downloading |Downloaded |Installed \d|Resolved \d|[^\w]*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\bE(?:ACCES|PERM|AI_AGAIN|NOTFOUND)\b|permission denied|operation not permitted"
    r"|name resolution|403 Forbidden|dns error|tunnel error",
    re.IGNORECASE,
)
_DENIED_PATH = re.compile(
    r"(?:E(?:ACCES|PERM|ROFS)\b|permission denied|operation not permitted|read-only file system)"
    r"(?P<call>.*?)['\"`](?P<named>/[^'\"`]+)['\"`]"
    r"|[:\s'\"`](?P<path>/[^\s:'\"`]+)['\"`]?: (?:permission denied|operation not permitted)",
    re.IGNORECASE,
)
"""A path that a program says it may not use, as Node, Python, Rust and shells write it."""
_CHANGING = re.compile(r"mkdir|unlink|rename|rmdir|symlink|link|copyfile|write|creat|chmod|chown")
_WEIGHTS = (
    (re.compile(rf"{_NPM.pattern}|{_CAUSE.pattern}|^Because ", re.IGNORECASE), 5),
    (_GROUP, 3),
    # programs go on to say that they stop, or that something took too long
    (re.compile(rf"^(?!{_IDLE.pattern}).*(?:{_UNREACHABLE.pattern})", re.IGNORECASE), 5),
    (_EXCEPTION, 4),
    (re.compile(rf"^(?:{_IDLE.pattern})", re.IGNORECASE), 0),
    (_DEPRECATED, 4),
    (_ERROR, 3),
    (_TROUBLE, 2),
    (re.compile(""), 1),
)
"""How likely a line is to be the reason, by the first pattern that is in it."""
_MISSING = re.compile(r"No module named '|Cannot find (?:module|package) '")
_VALIDATION = re.compile(r"validation errors? for \S+$")


def telling_line(text: str, *, is_up: bool = False) -> str:
    """The line that most likely says why a program ended or hangs; empty if none does.

    Not the last one: npm ends with where its log is, Node with its version. Of a program that had
    come up (`is_up`), the usual output is not the reason.
    """
    lines = [*_lines(text)]
    best, reason = 0, ""
    for index, line in enumerate(lines):
        weight = _weight(line)
        # the last of equals: earlier problems may have been solved
        if weight >= max(best, 2 if is_up else 1):
            best, reason = weight, _with_details(lines, index)
    return reason[: LONGEST - 1] + "…" if len(reason) > LONGEST else reason


def advice(text: str) -> str | None:
    """Advice, if the output of a program is unambiguous; else None."""
    for pattern, hint in _ADVICE:
        if match := re.search(pattern, text, re.MULTILINE):
            return hint.format(match[match.lastindex or 0])
    return None


def recognise(text: str) -> str | None:
    """The pattern of the first problem that is recognised in the output of a program."""
    return next((pattern for pattern, _ in _ADVICE if re.search(pattern, text, re.MULTILINE)), None)


def is_denied(text: str) -> bool:
    """Whether the output reports a denied file or network access."""
    return _DENIED.search(text) is not None


def denied_paths(text: str) -> Mapping[str, bool]:
    """The paths that the output says were denied, and whether they were to be changed."""
    return {
        match["named"] or match["path"]: _CHANGING.search(match["call"] or "") is not None
        for match in _DENIED_PATH.finditer(_COLOUR.sub("", text))
    }


def is_missing(text: str) -> bool:
    """Whether the output reports a missing module of the program."""
    return _MISSING.search(text) is not None


def _lines(text: str) -> Iterator[str]:
    """The relevant lines; of npm's output and chained causes, only the reasons."""
    has_npm = has_cause = False
    for line in _COLOUR.sub("", text).splitlines():
        if npm := _NPM.match(line):
            if not has_npm and not _NPM_DETAIL.match(line, npm.end()):
                has_npm = True
                yield line
            continue
        stripped = _FRAME.sub("", line).rstrip()
        if not stripped:
            continue
        is_cause = _CAUSE.match(stripped) is not None
        if not (is_cause and has_cause):  # the first one names the location
            yield stripped
        has_cause = is_cause


def _weight(line: str) -> int:
    return next(weight for pattern, weight in _WEIGHTS if pattern.search(line))


def _with_details(lines: list[str], index: int) -> str:
    line = lines[index]
    if _VALIDATION.search(line):  # the field is named below
        return ": ".join(lines[index : index + 3])
    return _CAUSE.sub("", line)


_UPPER = r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"
_NPM_SAYS = r"^npm (?:error|ERR!) "
_ADVICE = (
    (
        (
            r"cannot import name '\w+' from '(?:mcp|mcp\.[\w.]+)'|No module named 'mcp\.[\w.]+'"
            r"|module 'mcp(?:\.[\w.]+)?' has no attribute|'(?:Server|FastMCP)' object has no "
            r"attribute '(?:list_\w+|call_tool|read_resource|get_prompt|(?:un)?subscribe_resource"
            r"|set_logging_level|completion|progress_notification)'"
        ),
        (
            "it was written for another release of the MCP SDK; if that is an older one, "
            "try `uvx --with 'mcp<2' …`"
        ),
    ),
    (
        r"No module named '([^']+)'",
        "install the Python package that provides `{}` where the server runs",
    ),
    (
        (
            r"Cannot find (?:module|package) '(?:[^']*/node_modules/[^']*'|[^']+'(?: imported from "
            r"|\n+Require stack:\n- )\S*/node_modules/)"
        ),
        (
            "a part of its package is missing: install it again; `npx` keeps its copies in "
            "`~/.npm/_npx`"
        ),
    ),
    (
        (
            r"Cannot find module '((?:[./]|[A-Za-z]:\\)[^']*)'"
            r"(?: imported from |\n+Require stack:\n- )"
        ),
        "its own code imports `{}`, which does not exist: build or install it again",
    ),
    (
        r"Cannot find (?:module|package) '((?:[./]|[A-Za-z]:\\)[^']*)'",
        "`{}` does not exist: check the path in `args`, and `cwd`",
    ),
    (
        r"Cannot find (?:module|package) '([^']+)'",
        "install the npm package `{}` where the server runs",
    ),
    (
        f"{_NPM_SAYS}(?:code E404$|404 )",
        "there is no such npm package: check its name in `args`",
    ),
    (
        (
            f"{_NPM_SAYS}(?:code ETARGET$|notarget )|Because there is no version of"
            "|Could not find a version that satisfies the requirement [^\\s(]+[=<>~!]"
        ),
        "there is no such version of the package: check it in `args`",
    ),
    (
        f"{_NPM_SAYS}could not determine executable to run$",
        "the npm package has no program to run: check its name in `args`",
    ),
    (
        "was not found in the package registry|No matching distribution found for",
        "there is no such Python package: check its name in `args`",
    ),
    (
        "An executable named `[^`]+` is not provided by package `([^`]+)`",
        "use `uvx --from {} PROGRAM` with one of its programs",
    ),
    (
        r"current Python version \([^)]+\) does not satisfy (Python[<>=!~][^\s,]+)",
        "it needs {}: `uvx --python VERSION …` chooses one",
    ),
    (
        "externally-managed-environment",
        "the system's Python accepts no packages: use `uvx`, `pipx run` or a virtual environment",
    ),
    (
        f"{_NPM_SAYS}code (?:EACCES|EPERM)$|Could not install packages due to an OSError",
        "its package cannot be written where it belongs: check who owns that folder",
    ),
    (
        f"{_NPM_SAYS}code ENOSPC$|No space left on device",
        "the disk is full: make room, then try again",
    ),
    (
        f"{_NPM_SAYS}code EINTEGRITY$",
        "the download was damaged: `npm cache verify`, then try again",
    ),
    (
        (
            f"{_NPM_SAYS}gyp ERR!|subprocess-exited-with-error|Failed building wheel for"
            "|^ *(?:error|[^\\w\\s]*) ?:? ?Failed to build `"
        ),
        "a part of it has to be compiled: install what its README asks for, such as a compiler",
    ),
    (
        f"{_NPM_SAYS}(?:code (?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT)$|network request to)",
        "the npm registry cannot be reached: check network and proxy",
    ),
    (
        "^ *(?:cause|Caused by): (?:dns error|tcp connect error|Connection refused)",
        "what it downloads cannot be reached: check network and proxy",
    ),
    (
        "Packages were unavailable because the network was disabled",
        "uv is offline, and has not downloaded it before: run it once with a network",
    ),
    (
        f"{_NPM_SAYS}code ERESOLVE$|ResolutionImpossible|No solution found when resolving",
        "what the package needs does not fit together: try another version of it",
    ),
    (
        r"getaddrinfo (?:ENOTFOUND|EAI_AGAIN) ([\w.-]+)",
        "the host `{}` cannot be found: check the network, or the name in its configuration",
    ),
    (
        "Temporary failure in name resolution|Name or service not known|nodename nor servname",
        "a host name cannot be resolved: check the network",
    ),
    (
        r"connect ECONNREFUSED ([\w.:\[\]-]+:\d+)",
        "nothing listens at {}: start that service, or correct the address in `env` or `args`",
    ),
    (
        "(?i)EADDRINUSE|Address already in use",
        "another program uses its port: stop that program, or choose another port",
    ),
    (
        (
            "(?i)unrecognized arguments?:|no such option|unknown option|unexpected argument"
            "|unknown argument"
        ),
        "it does not know one of its arguments: check `args`",
    ),
    (
        (
            r"(?:sh: (?:line )?\d+: |^(?:ba|z)?sh: |env: \W)([\w.@+-]+)\W?: "
            "(?:command not found|not found|No such file)|^([\\w.@+-]+): command not found"
            "|command not found: ([\\w.@+-]+)"
            "|Failed to spawn: `([^`]+)`"
        ),
        "install `{}`, or check that it is on PATH",
    ),
    ("Cannot connect to the Docker daemon", "start Docker, or check that you may use it"),
    (
        (
            rf"^KeyError: '{_UPPER}'$|\b{_UPPER}\b['\"`]? (?:environment variable )?"
            "(?:is (?:required|missing|not set|undefined)|must be (?:set|provided)|not set)"
        ),
        "set `{}` in `env` of its configuration",
    ),
)
"""Patterns and their advice; the first match wins."""
