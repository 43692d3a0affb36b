"""The checks of `multitap doctor`: one server, phase by phase."""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import Any

import anyio
import msgspec

from multitap.catalog.catalog import Tool
from multitap.catalog.schemas import Unchecked
from multitap.cli.configuration import near, problem_line
from multitap.cli.terminal import cut, one_line
from multitap.config import (
    HttpServer,
    Loaded,
    Pending,
    Problem,
    Reference,
    Scope,
    ServerConfig,
    Severity,
    StdioServer,
    expand_server,
    variables_of,
)
from multitap.config.problems import serious
from multitap.config.projects import Untrusted
from multitap.config.secrets import masked_url
from multitap.config.variables import expand
from multitap.errors import CannotStart, ConfigError, counted
from multitap.events import Failure, FailureCode, LinkState, Phase, ServerSnapshot
from multitap.names import MAX_LENGTH, slug
from multitap.sandbox.levels import SandboxSupport
from multitap.tools.providers.openai import MOST_TOOLS
from multitap.tools.providers.schemas import COMBINATORS, every, inline_references
from multitap.trust.lock_file import UNKNOWN, LockedPackage
from multitap.trust.packages import launch_of
from multitap.trust.pins import pin_mode
from multitap.trust.projects import trusted_scope
from multitap.trust.scanner import scan_mode
from multitap.upstream.diagnosis import denial_hint
from multitap.wire.process import child_environment
from multitap.wire.stdio import locate

__all__ = ["MOST_TOOLS", "objections"]


def objections(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Which providers refuse a tool of this name and input schema, and why."""
    if slug(name) != name or not 0 < len(name) <= MAX_LENGTH:
        yield f"OpenAI and Anthropic require names of at most {MAX_LENGTH} letters, digits, _ and -"
    if combinators := [word for word in COMBINATORS if word in schema]:
        yield f"OpenAI and Anthropic refuse `{combinators[0]}` at the top of a schema"
    pieces = [*every(inline_references(schema))]
    if any(piece.get("type") == "array" and "items" not in piece for piece in pieces):
        yield "OpenAI refuses an array without `items`"
    # in the schema as it is: `pieces` has no references left
    if any("$ref" in piece for piece in every(schema)):
        yield "Gemini refuses `$ref`"
    if any("if" in piece for piece in pieces):
        yield "Gemini refuses `if`"


_NAMED = 3
_TRUST = frozenset({"pins", "scan"})
"""Prefixes of warnings about tools that may not be trustworthy."""


class CheckResult(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, but not for everyone or not as expected."""
    FAILED = "failed"
    SKIPPED = "-"
    """It was not tried, because an earlier phase failed."""


class Check(msgspec.Struct, frozen=True):
    phase: str
    verdict: CheckResult
    text: str
    hint: str | None = None
    details: tuple[str, ...] = ()
    """The server's last lines of stderr."""
    code: str | None = None
    """The code for `multitap help`."""


def check_problems(wrong: Iterable[Problem]) -> Iterator[Check]:
    """Errors and warnings of a configuration."""
    for problem in serious(wrong):
        verdict = CheckResult.FAILED if problem.severity is Severity.ERROR else CheckResult.WARN
        yield Check("config", verdict, problem_line(problem), problem.hint, code=_code_of(problem))


def check_config(loaded: Loaded, name: str) -> Iterator[Check]:
    """Problems of its entry."""
    yield from check_problems(problem for problem in loaded.problems if problem.server == name)
    if name in loaded.settings.servers:
        files = dict.fromkeys(str(near(place).file) for place in loaded.places(name).values())
        yield Check("config", CheckResult.OK, ", ".join(files))


def check_relaxation(config: ServerConfig) -> Iterator[Check]:
    """Settings of a project's server that have no effect."""
    if config.provenance != "project":
        return
    for key, value, held in (
        ("pin", config.pin, pin_mode(config)),
        ("scan", config.scan, scan_mode(config)),
    ):
        if value is not None and value != held:
            text = f'a project cannot relax `{key}`: "{held}" is used, not "{value}"'
            hint = f"name the file with `--config` if its `{key}` should count"
            yield Check("config", CheckResult.WARN, text, hint)


def check_trust(pending: Pending | None) -> Iterator[Check]:
    """Whether it comes with a project that is not trusted."""
    if pending is not None:
        what = "" if pending.kind == "server" else f"{pending.kind} {pending.name}".strip()
        text = f"{what} ({near(pending.place)}) {pending.words}" if what else pending.words
        yield Check("trust", CheckResult.FAILED, text, pending.hint, code="untrusted")


def check_variables(loaded: Loaded, name: str) -> Iterator[Check]:
    """Which of its variables have no value."""
    config = loaded.settings.servers[name]
    try:
        scope = trusted_scope(loaded, name, config)
    except Untrusted as refused:
        yield Check("trust", CheckResult.FAILED, str(refused), refused.hint, code="untrusted")
        return
    places = {key: near(place) for key, place in loaded.places(name).items()}
    used = variables_of(config)
    # one by one: to expand the whole entry would report only the first
    unset = [
        Check(
            "variables",
            CheckResult.FAILED,
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
        yield Check("variables", CheckResult.FAILED, str(exc), exc.hint, code=FailureCode.CONFIG)
        return
    if used:
        names = dict.fromkeys(reference.name for _, reference in used)
        yield Check("variables", CheckResult.OK, ", ".join(names))


def check_connection(server: ServerSnapshot) -> Iterator[Check]:
    """The phases that it reached, and what stopped it."""
    failure = None if server.state is LinkState.CONNECTED else server.failure
    steps = _steps(server)
    if server.state is not LinkState.CONNECTED and failure is None:
        yield from _checks_while_starting(server, steps)
        return
    stop = _stop(failure)
    reached = steps[: steps.index(stop)] if stop in steps else steps
    for step in reached:
        yield Check(step, CheckResult.OK, _achievement(step, server, failure))
    if failure is not None:
        stderr = tuple(failure.stderr.strip().splitlines()[-5:])
        yield Check(
            stop or "health",
            CheckResult.FAILED,
            str(failure),
            failure.hint,
            stderr,
            code=failure.code,
        )
        yield from _skip(steps[len(reached) + 1 :])


def _checks_while_starting(server: ServerSnapshot, steps: Sequence[str]) -> Iterator[Check]:
    """The phases of a server that is still starting."""
    reached = [step for step in steps if step in server.timings]
    for step in reached:
        yield Check(step, CheckResult.OK, _achievement(step, server, None))
    text = f"it is still starting, after {time.time() - server.since:.0f} s"
    waiting, *rest = steps[len(reached) :] or ("list",)
    hint = "use `--wait 1m` to wait longer"
    yield Check(waiting, CheckResult.FAILED, text, hint, code=FailureCode.HANG)
    yield from _skip(rest)


def check_sandbox_support(support: SandboxSupport) -> Check:
    """Whether this machine can confine programs."""
    if not support.is_wanted:
        return Check("sandbox", CheckResult.SKIPPED, str(support.reason))
    if support.reason is not None:
        hint = 'programs of others run unconfined; `sandbox = "strict"` refuses to start them'
        return Check("sandbox", CheckResult.WARN, support.reason, hint)
    text = "; ".join((f"Landlock, version {support.version}", *support.gaps))
    return Check("sandbox", CheckResult.WARN if support.gaps else CheckResult.OK, text)


def check_sandbox(server: ServerSnapshot) -> Iterator[Check]:
    """Whether it is confined, and what it did on the network."""
    sandbox = server.sandbox
    if sandbox is None:
        return
    if not sandbox.confined:
        if sandbox.is_missing:
            yield Check("sandbox", CheckResult.WARN, f"not confined: {sandbox.reason}")
        return
    traffic = [
        f"{host.host}: {counted(host.connections, 'connection')}, "
        f"{host.sent:,} bytes out, {host.received:,} in"
        for host in sandbox.hosts
    ]
    text = f"runs under `{sandbox.level}`: {sandbox.reason}"
    hint = None
    if sandbox.denied:
        hint = denial_hint(server.name, dict.fromkeys(sandbox.denied, True))
    # `guard` leaves the network open
    elif sandbox.refused and sandbox.level == "strict":
        hint = f"`multitap sandbox learn {server.name}` widens its rules"
    yield Check("sandbox", CheckResult.OK, text, hint, tuple(traffic))


def skip_connection(server: ServerSnapshot) -> Iterator[Check]:
    """Phases that could not be tried."""
    return _skip(_steps(server))


def check_health(server: ServerSnapshot) -> Iterator[Check]:
    """Whether it stayed up, and kept to the protocol."""
    if server.state is LinkState.CONNECTED and server.starts > 1:
        text = f"it took {server.starts} starts to connect"
        yield Check("health", CheckResult.WARN, text, f"`multitap logs {server.name}` may say why")
    # a misbehaving server repeats itself
    for warning in dict.fromkeys(server.warnings):
        phase, _, text = warning.partition(": ")
        if phase in _TRUST:
            yield Check(phase, CheckResult.WARN, text)
        elif not _about_tool(warning):
            yield Check("manners", CheckResult.WARN, warning)


def check_schemas(server: ServerSnapshot, tools: Sequence[Tool]) -> Iterator[Check]:
    """Whether its tools can be used, and by whom."""
    unusable = [*filter(_about_tool, dict.fromkeys(server.warnings))]
    doubts: dict[str, list[str]] = {}
    for tool in tools:
        for objection in objections(tool.name, tool.input_schema):
            doubts.setdefault(objection, []).append(tool.name)
        if isinstance(tool.checker, Unchecked):
            text = f"arguments are not checked: {tool.checker.reason}"
            doubts.setdefault(text, []).append(tool.name)
    yield from (Check("schemas", CheckResult.WARN, warning) for warning in unusable)
    for doubt, names in doubts.items():
        yield Check("schemas", CheckResult.WARN, f"{doubt}: {_some(names)}")
    if tools and not unusable and not doubts:
        yield Check("schemas", CheckResult.OK, "usable by OpenAI, Anthropic and Gemini as they are")


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
    return (Check(step, CheckResult.SKIPPED, "not tried") for step in steps)


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
            is_known = server.protocol_version is not None
            return ", ".join(filter(None, (server.title, spoken if is_known else "answers"))) + took
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


TIMEOUT = 5.0  # seconds; a version is a detail, and must not hold up the report

_TELLS_VERSION = re.compile(r"npx|npm|node|bunx?|deno|uvx?|python[0-9.]*|docker|podman")
"""Programs whose `--version` is safe to run; others might start working."""
_LONGEST = 60


def check_address(config: HttpServer) -> Check:
    """A server's address as written: values of variables may be secret."""
    return Check("address", CheckResult.OK, masked_url(config.url))


async def check_program(config: StdioServer) -> Check:
    """Whether the program of a server exists; its variables are already expanded."""
    env = child_environment(os.environ, config.env)
    try:
        path = locate(config.command, env, config.start_folder)
    except CannotStart as exc:
        return Check("program", CheckResult.FAILED, str(exc), exc.hint)
    version = await _version(path, env)
    return Check("program", CheckResult.OK, f"{path}, {version}" if version else path)


def check_package(config: StdioServer, package: LockedPackage | None) -> Check | None:
    """Whether a launcher always starts the same package; None if it starts none.

    `package` is the one that was last started.
    """
    if (launch := launch_of(config.command, config.args)) is None:
        return None
    if launch.is_exact:
        return Check("package", CheckResult.OK, f"{launch.name}@{launch.version}")
    version = package and package.version != UNKNOWN and package.version
    # the tag of an image can be moved to another one; its digest cannot
    if launch.kind == "docker":
        hint = f"write `{launch.name}@sha256:...`"
    else:
        hint = f"write `{launch.name}@{version or 'VERSION'}`"
    newest = f"; the last one was {version}" if version else ""
    text = f"no exact version of {launch.name}: each start may run another one{newest}"
    return Check("package", CheckResult.WARN, text, hint)


async def _version(path: str, env: dict[str, str]) -> str:
    """The program's version; empty if it does not answer soon."""
    if not _TELLS_VERSION.fullmatch(Path(path).name):
        return ""
    home = Path.home()  # the current folder may contain a stranger's settings
    with anyio.move_on_after(TIMEOUT):
        try:
            done = await anyio.run_process(
                [path, "--version"], stdin=DEVNULL, stderr=STDOUT, check=False, env=env, cwd=home
            )
        except OSError:
            return ""
        return cut(one_line(done.stdout.decode(errors="replace").partition("\n")[0]), _LONGEST)
    return ""
