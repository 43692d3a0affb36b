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
            hint = advice(evidence.stderr) or _after_end(phase, evidence, log)
            return FailureCode.CRASH, _describe_end(exc, phase, evidence), hint
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
    if not line and evidence.noise and phase is Phase.HANDSHAKE:
        line = f"it only wrote {evidence.noise_sample!r}"
    return f"{_how_it_ended(exc, evidence.exit_code)}{when}{f': {line}' if line else ''}"


def _after_end(phase: Phase, evidence: Evidence, log: str) -> str:
    """The hint for a program that ended without saying why."""
    # it had nothing to do here, and no trouble
    is_done = phase is Phase.HANDSHAKE and evidence.exit_code == 0 and not evidence.stderr
    return f"{_NO_SERVER}; {log}" if is_done else log


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
_CAUSE = re.compile(r"^(?:cause|caused by|\[cause\]): (?=\w)", re.IGNORECASE)
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
_UNTRUSTED = (
    r"(?i:self[- ]signed certificate|unable to (?:get local|get|verify the first) (?:issuer )?"
    r"certificate|CERTIFICATE_VERIFY_FAILED|invalid peer certificate"
    r"|certificate signed by unknown authority)"
)
_BARE = re.compile(r"^[A-Z][\w ]+ \(os error \d+\)$")
"""What the system says, without what it says it of."""
_GIT = re.compile(r"^fatal: ")
_OPEN = re.compile(r"[\[{]$")
_ISSUE = re.compile(r'"message": "(.+)"')
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
    (re.compile(rf"{_NPM.pattern}|{_CAUSE.pattern}|{_GIT.pattern}|^Because ", re.IGNORECASE), 5),
    (_GROUP, 3),
    # programs go on to say that they stop, or that something took too long
    (
        re.compile(
            rf"^(?!{_IDLE.pattern}).*(?:{_UNREACHABLE.pattern}|{_UNTRUSTED})", re.IGNORECASE
        ),
        5,
    ),
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
            # more than one group: a host and its port
            return hint.format(":".join(part for part in match.groups() if part) or match[0])
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
        # the first one names the location
        if not (is_cause and has_cause) or re.search(_UNTRUSTED, stripped):
            yield stripped
        has_cause = is_cause


def _weight(line: str) -> int:
    return next(weight for pattern, weight in _WEIGHTS if pattern.search(line))


def _with_details(lines: list[str], index: int) -> str:
    line = lines[index]
    if _VALIDATION.search(line):  # the field is named below
        return ": ".join(lines[index : index + 3])
    if _OPEN.search(line) and (issue := _ISSUE.search("\n".join(lines[index:]))):
        return f"{line[:-1].rstrip()} {issue[1]}"
    line = _CAUSE.sub("", line)
    return f"{lines[index - 1]}: {line}" if index and _BARE.match(line) else line


_UPPER = r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"
_NPM_SAYS = r"^npm (?:error|ERR!) "
_PATH_HINT = "`{}` does not exist: check the path in `args`, and `cwd`"
_SERVICE_HINT = (
    "nothing listens at {}: start that service, or correct the address in `env` or `args`"
)
_NO_INTERPRETER = (
    "the interpreter in its first line does not exist: correct it; if the file was written on "
    "Windows, save it with Unix line endings"
)
_MODULE_HINT = "install the Python package that provides `{}` where the server runs"
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
        # Python names the first part that is missing
        r"No module named '(\w+\.[\w.]+)'$",
        "what is installed has no `{}`: try another version of the package",
    ),
    (r"No module named '([^']+)'|python[^:\s]*: No module named ([\w.]+)$", _MODULE_HINT),
    (
        r"No module named \S+; '([^']+)' is a package and cannot be directly executed",
        "`{}` is a package without a program of its own: check what follows `-m` in `args`",
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
        (
            r"Cannot find (?:module|package) '((?:[./]|[A-Za-z]:\\)[^']*)'"
            r"|can't open file '([^']+)': \[Errno 2\]|Unable to access jarfile (\S+)"
            r"|Could not read package\.json: .* open '([^']+)'"
            r"|Failed to spawn: `?([^`\s]*(?:/|\.py\b)[^`\s]*)`?$"
            r"|^(?:ba|z)?sh: (?:\d+: cannot open )?(\S*(?:/|\.sh\b)\S*): No such file"
        ),
        _PATH_HINT,
    ),
    (
        f'{_NPM_SAYS}Missing script: "([^"]+)"',
        "its `package.json` has no script `{}`: check `args` and `cwd`",
    ),
    (
        r"Cannot find (?:module|package) '([^']+)'",
        "install the npm package `{}` where the server runs",
    ),
    (
        f"{_NPM_SAYS}code E40[13]$|lack of valid authentication credentials",
        "the package registry wants a login: check its address, and your token for it",
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
        "Package `([^`]+)` does not provide any executables",
        "the Python package `{}` has no program to run: check its name in `args`",
    ),
    (
        (
            "^ *fatal: (?:could not read Username|Authentication failed|repository .* not found"
            "|Could not read from remote repository)"
        ),
        "its Git repository cannot be read: check the address, and that you may read it",
    ),
    (
        (
            r"No such built-in module: node:|The requested module 'node:[\w/]+' does not provide "
            r"an export named|\b(?:Promise\.(?:withResolvers|try)|Array\.fromAsync"
            r"|Object\.groupBy) is not a function"
            r"|ReferenceError: (?:File|fetch|CustomEvent|WebSocket) is not defined"
            rf"|{_NPM_SAYS}code EBADENGINE$"
        ),
        "it needs a newer Node.js: update it, or put a newer one first on PATH",
    ),
    (
        r'Unknown file extension "\.ts"|^\S+\.ts:\d+\n(?:.*\n){1,4}SyntaxError: ',
        "this Node.js runs no TypeScript: use `npx tsx FILE`, or build it first",
    ),
    (
        "Cannot use import statement outside a module|require is not defined in ES module scope",
        "Node.js takes it for another kind of module: `.mjs` is for `import`, `.cjs` for `require`",
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
        r"No interpreter found for (Python .+?) in |requires a different Python: \S+ not in '(.+)'",
        "no fitting Python was found, it needs {}: `uv python install VERSION` adds one",
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
        f"(?i){_NPM_SAYS}code ENOSPC$|No space left on device",
        "the disk is full: make room, then try again",
    ),
    (
        f"{_NPM_SAYS}code EINTEGRITY$",
        "the download was damaged: `npm cache verify`, then try again",
    ),
    (
        "THESE PACKAGES DO NOT MATCH THE HASHES|Hash mismatch for `",
        "what was downloaded is not what was expected: change the hashes if you trust it",
    ),
    (
        _UNTRUSTED,
        (
            "a certificate is not trusted: name its authority in `NODE_EXTRA_CA_CERTS` or "
            "`SSL_CERT_FILE`"
        ),
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
        (
            r"connect ECONNREFUSED ([\w.:\[\]-]+:\d+)|Connect call failed \('([^']+)', (\d+)"
            r"|Error 111 connecting to ([\w.-]+:\d+)"
            r"|dial tcp (\S+:\d+): connect: connection refused"
            r'|connection to server at "([^"]+)".*, port (\d+) failed: Connection refused'
        ),
        _SERVICE_HINT,
    ),
    (
        r"\[Errno 111\] Connection refused",
        "a service that it uses is not there: start it, or correct its address in `env` or `args`",
    ),
    (
        "(?i)EADDRINUSE|Address already in use",
        "another program uses its port: stop that program, or choose another port",
    ),
    (
        (
            "(?i)unrecognized arguments?:|no such option|unknown option|unexpected argument"
            "|unknown argument|unknown flag:|bad option: -|flag provided but not defined"
        ),
        "it does not know one of its arguments: check `args`",
    ),
    (
        (
            "the following arguments are required:|following required arguments were not provided"
            "|(?i:missing required (?:argument|option)|missing (?:argument|option) ')"
            "|as a command-line argument$|^Required command was not provided"
            r"|^Usage: .* COMMAND \[ARGS\]"
        ),
        "it needs another argument: add it to `args`",
    ),
    (
        r"env: \W[\w./+-]+\\r|\^M: bad interpreter|cannot execute: required file not found",
        _NO_INTERPRETER,
    ),
    (
        "Exec format error|cannot execute binary file|spawn Unknown system error -8",
        "it was built for another system or processor: install the one for this machine",
    ),
    (
        (
            r"error while loading shared libraries: ([^\s:]+)"
            r"|\b(lib[\w.+-]+\.so[\d.]*): cannot open shared object file"
        ),
        "install the system's library `{}`",
    ),
    (
        "the input device is not a TTY",
        "leave `-t` out of the options of `docker run`; `-i` stays",
    ),
    (
        "(?i)setRawMode is not a function|Raw mode is not supported|Inappropriate ioctl for device",
        "it expects a terminal: it may need an argument such as `stdio`, or its settings",
    ),
    (
        "JavaScript heap out of memory",
        "it needs more memory: set `NODE_OPTIONS` to `--max-old-space-size=4096` in `env`",
    ),
    (
        "locale.Error: unsupported locale setting",
        "its locale does not exist here: set `LC_ALL` to `C.UTF-8` in `env`",
    ),
    (
        r"Unicode(?:De|En)codeError: 'ascii' codec",
        "it takes all text for ASCII: set `PYTHONUTF8` to `1` in `env`",
    ),
    (
        (
            r"(?:sh: (?:line )?\d+: |^(?:ba|z)?sh: |env: \W)([\w.@+-]+)\W?: "
            "(?:command not found|not found|No such file)|^([\\w.@+-]+): command not found"
            "|command not found: ([\\w.@+-]+)"
            "|Failed to spawn: `?([^`\\s]+)`?$"
        ),
        "install `{}`, or check that it is on PATH",
    ),
    (
        "Cannot connect to the Docker daemon|failed to connect to the docker API",
        "start Docker, or check that you may use it",
    ),
    (
        (
            rf"^KeyError: '{_UPPER}'$|\b{_UPPER}\b['\"`]? (?:environment variable )?"
            "(?:is (?:required|missing|not set|undefined)|must be (?:set|provided)|not set)"
            rf"|\b[Ss]et(?:ting)? (?:the )?['\"`]?{_UPPER}['\"`]? environment variable"
            r"|\b[Ss]et ([A-Z][A-Z0-9_]+(?: and [A-Z][A-Z0-9_]+)*) environment variables"
            rf"|[Mm]issing (?:required )?environment variables?:? ['\"`]?{_UPPER}"
        ),
        "set `{}` in `env` of its configuration",
    ),
)
"""Patterns and their advice; the first match wins."""
