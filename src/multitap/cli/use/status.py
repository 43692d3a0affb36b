"""`multitap status`: shows the state of each server."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from multitap.cli import configuration
from multitap.cli.configuration import explain_emptiness, load_configuration, near
from multitap.cli.options import (
    CommonOptions,
    ServerCommand,
    gateway_or_server_options,
    json_option,
)
from multitap.cli.target import Target
from multitap.cli.terminal import Colour, Exit, advise, note, say_json, table
from multitap.config import Loaded, Pending, Problem, Severity
from multitap.config.problems import serious
from multitap.config.projects import TrustState
from multitap.control.messages import GatewayState
from multitap.events import Failure, LinkState, ServerSnapshot, Snapshot, Withheld, pending_words


class StatusLine(msgspec.Struct, frozen=True, kw_only=True):
    """One server: its state, whether that is fine, and why not."""

    name: str
    state: str
    fine: bool
    note: str = ""
    server: ServerSnapshot | None = None
    """None if its configuration cannot be used."""
    problems: tuple[Problem, ...] = ()
    """Problems of its configuration."""


def status_lines(
    loaded: Loaded, snapshot: Snapshot, asleep: Collection[str]
) -> tuple[StatusLine, ...]:
    """All servers in the order of the files."""
    servers = {server.name: server for server in snapshot.servers}
    lines = [
        _running(server, asleep=name in asleep)
        if (server := servers.get(name))
        else _held_line(pending)
        if (pending := loaded.held.get(name))
        else _broken_line(name, loaded.broken.get(name, ()))
        for name in loaded.merged.servers
    ]
    return tuple(line for line in lines if line.note or line.server or line.problems)


def status_lines_of_gateway(
    snapshot: Snapshot, asleep: Collection[str], broken: Mapping[str, tuple[Problem, ...]]
) -> tuple[StatusLine, ...]:
    """All servers of a running gateway, then those that are broken or not trusted."""
    withheld = {part.name: part for part in snapshot.withheld if part.kind == "server"}
    running = [
        _as_before(line, withheld.pop(line.name, None))
        for server in snapshot.servers
        if (line := _running(server, asleep=server.name in asleep))
    ]
    missing = broken.keys() - {line.name for line in running}
    return (
        *running,
        *(_broken_line(name, broken[name]) for name in sorted(missing)),
        *map(_held_line, withheld.values()),
    )


def latency(server: ServerSnapshot) -> float | None:
    """Seconds of the last health check; before the first one, of its lists."""
    if server.state is not LinkState.CONNECTED:
        return None
    return server.timings.get("list") if server.latency is None else server.latency


def describe(line: StatusLine) -> dict[str, Any]:
    """The same for programs."""
    server = line.server
    if server is None:
        return {"name": line.name, "state": line.state, "fine": line.fine, "note": line.note}
    return {
        "name": line.name,
        "state": line.state,
        "fine": line.fine,
        "note": line.note,
        "transport": server.transport,
        "title": server.title,
        "era": server.era,
        "protocol_version": server.protocol_version,
        "tools": server.tools,
        "resources": server.resources,
        "templates": server.templates,
        "prompts": server.prompts,
        "latency": latency(server),
        "timings": dict(server.timings),
        "warnings": list(server.warnings),
        "failure": server.failure and _describe_failure(server.failure),
        "pending": server.pending and _describe_failure(server.pending),
        "sandbox": server.sandbox and msgspec.to_builtins(server.sandbox),
    }


def _describe_failure(failure: Failure) -> dict[str, Any]:
    return {
        "code": failure.code,
        "phase": failure.phase,
        "message": failure.message,
        "hint": failure.hint,
        "exit_code": failure.exit_code,
        "stderr": failure.stderr,
    }


def _held_line(pending: Pending | Withheld) -> StatusLine:
    if isinstance(pending, Pending):
        state, text = pending.standing.value, pending.words
    else:
        state, text = "changed" if pending.changed else "not trusted", pending.reason
    # the command first: a narrow terminal cuts the rest
    return StatusLine(name=pending.name, state=state, fine=False, note=f"{pending.hint}: it {text}")


def _as_before(line: StatusLine, withheld: Withheld | None) -> StatusLine:
    """A server that runs with its trusted configuration, although the file has changed."""
    if withheld is None:
        return line
    return msgspec.structs.replace(
        line, fine=False, note="; ".join(filter(None, (withheld.words, line.note)))
    )


def _broken_line(name: str, problems: tuple[Problem, ...]) -> StatusLine:
    note = f"{problems[0].message} ({near(problems[0].place)})" if problems else ""
    return StatusLine(name=name, state="error", fine=False, note=note, problems=problems)


def _running(server: ServerSnapshot, *, asleep: bool) -> StatusLine:
    if asleep:
        unknown = "" if server.stale else "; what it offers is unknown until then"
        note = f"lazy: it starts on the first call{unknown}"
        return StatusLine(name=server.name, state="asleep", fine=True, note=note, server=server)
    match server.state:
        case LinkState.CONNECTED:
            note = _warning_note(server)
            fine = server.pending is None
            return StatusLine(
                name=server.name, state="connected", fine=fine, note=note, server=server
            )
        case LinkState.DISABLED:
            return StatusLine(name=server.name, state="disabled", fine=True, server=server)
        case LinkState.NEEDS_AUTH:
            hint = server.failure.hint if server.failure else None
            return StatusLine(
                name=server.name, state="needs auth", fine=False, note=hint or "", server=server
            )
        case _ if server.failure is not None:
            note = str(server.failure)
            return StatusLine(name=server.name, state="error", fine=False, note=note, server=server)
        case state:
            stage = (
                "is still starting" if state is LinkState.CONNECTING else "is waiting for its turn"
            )
            note = f"it {stage}; use `--wait 1m` to wait longer"
            return StatusLine(
                name=server.name, state=state.value, fine=False, note=note, server=server
            )


def _warning_note(server: ServerSnapshot) -> str:
    pending = (pending_words(server.pending),) if server.pending else ()
    first, *others = (*pending, *server.warnings) or ("",)
    return f"{first} (and {len(others)} more)" if others else first


_COLOURS: dict[str, Colour] = {
    "connected": "green",
    "asleep": "bright_black",
    "disabled": "bright_black",
    "not trusted": "yellow",
    "changed": "yellow",
    "needs auth": "yellow",
    "connecting": "yellow",
}


@click.command(cls=ServerCommand)
@gateway_or_server_options
@json_option
def status(options: CommonOptions, *, as_json: bool) -> int:
    """Show the state of each server

    Asks a running gateway with the same configuration files, if there is one.
    """
    loaded = load_configuration(options)
    target = Target(options, loaded)
    state = GatewayState(Snapshot(0, ()))
    # an event loop and a hub take a while
    if target.gateway is not None or loaded.settings.servers:
        state = target.look(lambda control: control.state())
    lines = server_lines(target, state)
    problems = _problems(loaded) if target.has_these_files else ()
    if as_json:
        say_json(
            {
                "servers": [describe(line) for line in lines],
                "problems": [configuration.problem_json(problem) for problem in problems],
                "gateway": target.gateway and target.gateway.about.pid,
                "degraded": state.degraded,
            }
        )
    elif lines:
        _show(lines)
    if not as_json:
        configuration.show_problems(serious(problems))
        for reason in state.degraded:
            note(f"degraded: {reason}")
        if target.has_these_files:
            explain_emptiness(loaded)
        if options.typed is None:
            _suggest(lines)
    return verdict(problems, lines)


def _problems(loaded: Loaded) -> tuple[Problem, ...]:
    if not loaded.settings.has_rules:
        return loaded.problems
    from multitap.cli.completion import rule_warnings  # noqa: PLC0415 - a database

    return (*loaded.problems, *rule_warnings(loaded))


def verdict(problems: Sequence[Problem], lines: Sequence[StatusLine]) -> Exit:
    """The exit code for these problems and servers."""
    if any(problem.severity is Severity.ERROR for problem in problems):
        return Exit.CONFIG
    return Exit.DONE if all(line.fine for line in lines) else Exit.UNAVAILABLE


def server_lines(target: Target, state: GatewayState) -> tuple[StatusLine, ...]:
    """The servers of a target, with a note if a gateway runs others than its files now name."""
    loaded = target.loaded
    if target.gateway is None:
        return status_lines(loaded, state.snapshot, state.asleep)
    if not target.has_these_files:
        return status_lines_of_gateway(state.snapshot, state.asleep, {})
    servers = state.snapshot.servers
    running = {server.name for server in servers if server.transport != "local"}  # not from a file
    held = {name for name, part in loaded.held.items() if part.standing is TrustState.CHANGED}
    # servers of unreadable files keep running, and are not a difference
    others = running - loaded.broken.keys() - held != set(loaded.settings.servers)
    if others and loaded.intact:  # otherwise the gateway applies nothing
        note("the files now name other servers")
        advise("`multitap reload` applies them to the gateway")
    return status_lines_of_gateway(state.snapshot, state.asleep, loaded.broken)


def _show(lines: Sequence[StatusLine]) -> None:
    header: tuple[str, ...] = ("SERVER", "STATE", "TOOLS", "LATENCY", "NOTE")
    rows: list[tuple[str, ...]] = [
        (line.name, line.state, _tools(line), _latency(line), _near(line.note)) for line in lines
    ]
    levels = [_level(line) for line in lines]
    if {*levels} - {"-", "off"}:  # nobody needs a column that says the same of every server
        header = (*header[:-1], "LEVEL", header[-1])
        rows = [(*row[:-1], level, row[-1]) for row, level in zip(rows, levels, strict=True)]
    table(
        header,
        rows,
        right=("TOOLS", "LATENCY"),
        paint={"STATE": lambda state: _COLOURS.get(state, "red")},
    )


def _near(note_: str) -> str:
    """A note that begins with a file, with a path that is as short as a person would write it."""
    # a gateway has another current folder
    for folder, short in ((Path.cwd(), ""), (Path.home(), "~/")):
        if note_.startswith(f"{folder}/"):
            return short + note_.removeprefix(f"{folder}/")
    return note_


def _level(line: StatusLine) -> str:
    sandbox = line.server.sandbox if line.server else None
    return sandbox.level if sandbox else "-"


def _tools(line: StatusLine) -> str:
    server = line.server
    is_known = server is not None and (line.state == "connected" or server.stale)
    return str(server.tools) if server and is_known else "-"


def _latency(line: StatusLine) -> str:
    seconds = latency(line.server) if line.server else None
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _suggest(lines: Sequence[StatusLine]) -> None:
    # the note of a server that is on its way, or not trusted, says what to do about it
    explained = {
        *(LinkState.CONNECTING.value, LinkState.DISCONNECTED.value),
        *(TrustState.NEW.value, TrustState.CHANGED.value),
    }
    if troubled := [line.name for line in lines if not line.fine and line.state not in explained]:
        which = f" {troubled[0]}" if len(troubled) == 1 else ""
        advise(f"`multitap doctor{which}` says what to do")
