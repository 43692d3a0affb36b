"""Finds the line of a program's output that says why it ended, and what to do."""

import re
from collections.abc import Iterator, Mapping

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

    Not the last one: npm ends with where its log is, Node with its version.

    Args:
        text: Its captured output.
        is_up: Whether it had come up, so that its usual output is not the reason.
    """
    lines = [*_lines(text)]
    best, said = 0, ""
    for index, line in enumerate(lines):
        weight = _weight(line)
        if weight >= max(
            best, 2 if is_up else 1
        ):  # the last of equals: earlier problems may have been solved
            best, said = weight, _with_details(lines, index)
    return said[: LONGEST - 1] + "…" if len(said) > LONGEST else said


def advice(text: str) -> str | None:
    """Advice, if the output of a program is unambiguous; else None."""
    for pattern, words in _ADVICE:
        if found := re.search(pattern, text, re.MULTILINE):
            return words.format(found[found.lastindex or 0])
    return None


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
    (f"{_NPM_SAYS}code E404$", "there is no such npm package: check its name in `args`"),
    (
        f"{_NPM_SAYS}code ETARGET$|Because there is no version of",
        "there is no such version of the package: check it in `args`",
    ),
    (
        f"{_NPM_SAYS}could not determine executable to run$",
        "the npm package has no program to run: check its name in `args`",
    ),
    (
        "was not found in the package registry",
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
        f"{_NPM_SAYS}code (?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT)$",
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
            r"(?:sh: (?:line )?\d+: |^sh: |env: \W)([\w.@+-]+)\W?: "
            "(?:command not found|not found|No such file)"
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
