"""Checks one server phase by phase."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from multitap.catalog.catalog import Tool
from multitap.catalog.schemas import Unchecked
from multitap.cli.configuration.problem_lines import line
from multitap.cli.servers.provider_objections import objections
from multitap.cli.terminal.near_paths import near
from multitap.config import (
    Loaded,
    Pending,
    Problem,
    Reference,
    Scope,
    ServerConfig,
    Severity,
    expand_server,
    variables,
)
from multitap.config.problems import serious
from multitap.config.scope import expand
from multitap.config.trust_gate import Untrusted
from multitap.errors import ConfigError, counted
from multitap.events import Failure, FailureCode, LinkState, Phase, ServerSnapshot
from multitap.records import dataclass
from multitap.trust.pins.pins import pin_mode
from multitap.trust.projects.trusted_projects import trusted_scope
from multitap.trust.scanner.scanner import scan_mode
from multitap.upstream.diagnosis import denial_hint
from multitap.wire.process.sandbox_support import SandboxSupport

_NAMED = 3
_TRUST = frozenset({"pins", "scan"})
"""Prefixes of warnings about tools that may not be trustworthy."""


class CheckVerdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, but not for everyone or not as expected."""
    FAILED = "failed"
    SKIPPED = "-"
    """It was not tried, because an earlier phase failed."""


@dataclass(frozen=True, slots=True)
class Check:
    phase: str
    verdict: CheckVerdict
    text: str
    hint: str | None = None
    details: tuple[str, ...] = ()
    """The server's last lines of stderr."""
    code: str | None = None
    """The code for `multitap help`."""


def of_problems(wrong: Iterable[Problem]) -> Iterator[Check]:
    """Errors and warnings of a configuration."""
    for problem in serious(wrong):
        verdict = CheckVerdict.FAILED if problem.severity is Severity.ERROR else CheckVerdict.WARN
        yield Check("config", verdict, line(problem), problem.hint, code=_code_of(problem))


def of_config(loaded: Loaded, name: str) -> Iterator[Check]:
    """Problems of its entry."""
    yield from of_problems(problem for problem in loaded.problems if problem.server == name)
    if name in loaded.settings.servers:
        files = dict.fromkeys(str(near(place).file) for place in loaded.places(name).values())
        yield Check("config", CheckVerdict.OK, ", ".join(files))


def of_relaxation(config: ServerConfig) -> Iterator[Check]:
    """Settings of a project's server that have no effect."""
    if config.provenance != "project":
        return
    for key, given, held in (
        ("pin", config.pin, pin_mode(config)),
        ("scan", config.scan, scan_mode(config)),
    ):
        if given is not None and given != held:
            words = f'a project cannot relax `{key}`: "{held}" is used, not "{given}"'
            hint = f"name the file with `--config` if its `{key}` should count"
            yield Check("config", CheckVerdict.WARN, words, hint)


def of_trust(pending: Pending | None) -> Iterator[Check]:
    """Whether it comes with a project that is not trusted."""
    if pending is not None:
        what = "" if pending.kind == "server" else f"{pending.kind} {pending.name}".strip()
        words = f"{what} ({near(pending.place)}) {pending.words}" if what else pending.words
        yield Check("trust", CheckVerdict.FAILED, words, pending.hint, code="untrusted")


def of_variables(loaded: Loaded, name: str) -> Iterator[Check]:
    """Which of its variables have no value."""
    config = loaded.settings.servers[name]
    try:
        scope = trusted_scope(loaded, name, config)
    except Untrusted as refused:
        yield Check("trust", CheckVerdict.FAILED, str(refused), refused.hint, code="untrusted")
        return
    places = {key: near(place) for key, place in loaded.places(name).items()}
    used = variables(config)
    unset = [
        Check(
            "variables",
            CheckVerdict.FAILED,
            f"{places.get(key, name)}: `{key}`: {exc}",
            exc.hint,
            code=FailureCode.CONFIG,
        )
        for key, reference in used
        if (exc := _unset(reference, scope))
    ]
    if unset:
        # one variable may be used in several fields of an entry
        yield from dict.fromkeys(unset)
        return
    try:
        expand_server(config, scope, places=places)
    except ConfigError as exc:
        yield Check("variables", CheckVerdict.FAILED, str(exc), exc.hint, code=FailureCode.CONFIG)
        return
    if used:
        names = dict.fromkeys(reference.name for _, reference in used)
        yield Check("variables", CheckVerdict.OK, ", ".join(names))


def of_connection(server: ServerSnapshot) -> Iterator[Check]:
    """The phases that it reached, and what stopped it."""
    failure = None if server.state is LinkState.CONNECTED else server.failure
    steps = _steps(server)
    if server.state is not LinkState.CONNECTED and failure is None:
        yield from _checks_while_starting(server, steps)
        return
    stop = _stop(failure)
    reached = steps[: steps.index(stop)] if stop in steps else steps
    for step in reached:
        yield Check(step, CheckVerdict.OK, _achievement(step, server, failure))
    if failure is not None:
        words = tuple(failure.stderr.strip().splitlines()[-5:])
        yield Check(
            stop or "health",
            CheckVerdict.FAILED,
            str(failure),
            failure.hint,
            words,
            code=failure.code,
        )
        yield from _skip(steps[len(reached) + 1 :])


def _checks_while_starting(server: ServerSnapshot, steps: Sequence[str]) -> Iterator[Check]:
    """The phases of a server that is still starting."""
    reached = [step for step in steps if step in server.timings]
    for step in reached:
        yield Check(step, CheckVerdict.OK, _achievement(step, server, None))
    words = f"it is still starting, after {time.time() - server.since:.0f} s"
    waiting, *rest = steps[len(reached) :] or ("list",)
    hint = "use `--wait 1m` to wait longer"
    yield Check(waiting, CheckVerdict.FAILED, words, hint, code=FailureCode.HANG)
    yield from _skip(rest)


def of_sandbox_support(support: SandboxSupport) -> Check:
    """Whether this machine can confine programs."""
    if not support.is_wanted:
        return Check("sandbox", CheckVerdict.SKIPPED, str(support.reason))
    if support.reason is not None:
        hint = 'programs of others run without; `sandbox = "strict"` refuses to start them so'
        return Check("sandbox", CheckVerdict.WARN, support.reason, hint)
    words = "; ".join((f"Landlock, version {support.version}", *support.gaps))
    return Check("sandbox", CheckVerdict.WARN if support.gaps else CheckVerdict.OK, words)


def of_sandbox(server: ServerSnapshot) -> Iterator[Check]:
    """Whether it is confined, and what it did on the network."""
    sandbox = server.sandbox
    if sandbox is None:
        return
    if not sandbox.confined:
        if sandbox.is_missing:
            yield Check("sandbox", CheckVerdict.WARN, f"not confined: {sandbox.reason}")
        return
    said = [
        f"{one.host}: {counted(one.connections, 'connection')}, "
        f"{one.sent:,} bytes out, {one.received:,} in"
        for one in sandbox.hosts
    ]
    words = f"runs under `{sandbox.level}`: {sandbox.reason}"
    hint = None
    if sandbox.denied:
        hint = denial_hint(server.name, dict.fromkeys(sandbox.denied, True))
    elif sandbox.refused and sandbox.level == "strict":
        hint = f"`multitap sandbox learn {server.name}` widens its rules"
    yield Check("sandbox", CheckVerdict.OK, words, hint, tuple(said))


def of_nothing(server: ServerSnapshot) -> Iterator[Check]:
    """Phases that could not be tried."""
    return _skip(_steps(server))


def of_health(server: ServerSnapshot) -> Iterator[Check]:
    """Whether it stayed up, and kept to the protocol."""
    if server.state is LinkState.CONNECTED and server.starts > 1:
        words = f"it took {server.starts} starts to connect"
        yield Check(
            "health", CheckVerdict.WARN, words, f"`multitap logs {server.name}` may say why"
        )
    # a misbehaving server repeats itself
    for warning in dict.fromkeys(server.warnings):
        phase, _, words = warning.partition(": ")
        if phase in _TRUST:
            yield Check(phase, CheckVerdict.WARN, words)
        elif not _about_tool(warning):
            yield Check("manners", CheckVerdict.WARN, warning)


def of_schemas(server: ServerSnapshot, tools: Sequence[Tool]) -> Iterator[Check]:
    """Whether its tools can be used, and by whom."""
    unusable = [*filter(_about_tool, dict.fromkeys(server.warnings))]
    doubts: dict[str, list[str]] = {}
    for tool in tools:
        for objection in objections(tool.name, tool.input_schema):
            doubts.setdefault(objection, []).append(tool.name)
        if isinstance(tool.checker, Unchecked):
            words = f"arguments are not checked: {tool.checker.reason}"
            doubts.setdefault(words, []).append(tool.name)
    yield from (Check("schemas", CheckVerdict.WARN, warning) for warning in unusable)
    for doubt, names in doubts.items():
        yield Check("schemas", CheckVerdict.WARN, f"{doubt}: {_some(names)}")
    if tools and not unusable and not doubts:
        yield Check(
            "schemas", CheckVerdict.OK, "usable by OpenAI, Anthropic and Gemini as they are"
        )


def _code_of(problem: Problem) -> str | None:
    if problem.severity is not Severity.ERROR:
        return None
    return FailureCode.CONFIG if problem.server is not None else "unreadable_file"


def _about_tool(warning: str) -> bool:
    return warning.startswith("tool ")


def _steps(server: ServerSnapshot) -> tuple[str, ...]:
    """The phases of connecting."""
    if server.transport == "stdio":
        return ("spawn", "handshake", "list")
    return ("handshake", "auth", "list")


def _skip(steps: Iterable[str]) -> Iterator[Check]:
    return (Check(step, CheckVerdict.SKIPPED, "not tried") for step in steps)


def _unset(reference: Reference, scope: Scope) -> ConfigError | None:
    if reference.default is not None or reference.source == "folder":
        return None
    source = "" if reference.source == "env" else f"{reference.source}:"
    try:
        expand(f"${{{source}{reference.name}}}", scope)
    except ConfigError as exc:
        return exc
    return None


def _stop(failure: Failure | None) -> str | None:
    """The phase that failed; None if none of those before the connection did."""
    if failure is None or failure.phase in {Phase.CALL, Phase.HEALTH}:
        return None
    return "auth" if failure.code is FailureCode.AUTH else failure.phase.value


def _achievement(step: str, server: ServerSnapshot, failure: Failure | None) -> str:
    timings: Mapping[str, float] = failure.timings if failure else server.timings
    took = f", {timings[step]:.2f} s" if step in timings else ""
    match step:
        case "spawn":
            return f"started{took}"
        case "handshake":
            spoken = f"protocol {server.protocol_version} ({server.era})"
            known = server.protocol_version is not None
            return ", ".join(filter(None, (server.title, spoken if known else "answers"))) + took
        case "auth":
            return "accepted"
        case _:
            counts = (
                counted(server.tools, "tool"),
                counted(server.resources + server.templates, "resource"),
                counted(server.prompts, "prompt"),
            )
            return ", ".join(counts) + took


def _some(names: Iterable[str]) -> str:
    first, rest = [*names][:_NAMED], [*names][_NAMED:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")
