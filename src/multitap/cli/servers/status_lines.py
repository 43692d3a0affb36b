"""Describes the state of each configured server in one line."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from multitap.cli.terminal.near_paths import near
from multitap.config import Loaded, Pending, Problem
from multitap.events import (
    Failure,
    LinkState,
    ServerSnapshot,
    Snapshot,
    Withheld,
    pending_words,
)
from multitap.records import dataclass


@dataclass(frozen=True, slots=True)
class StatusLine:
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
    """All servers in the order of the files.

    Args:
        loaded: The configuration.
        snapshot: The state of its servers.
        asleep: Lazy servers that were not started.
    """
    servers = {server.name: server for server in snapshot.servers}
    told = [
        _running(server, asleep=name in asleep)
        if (server := servers.get(name))
        else _held_line(pending)
        if (pending := loaded.held.get(name))
        else _broken_line(name, loaded.broken.get(name, ()))
        for name in loaded.merged.servers
    ]
    return tuple(line for line in told if line.note or line.server or line.problems)


def status_lines_of_gateway(
    snapshot: Snapshot, asleep: Collection[str], broken: Mapping[str, tuple[Problem, ...]]
) -> tuple[StatusLine, ...]:
    """All servers of a running gateway, then those that are broken or not trusted.

    Args:
        snapshot: The state of its servers.
        asleep: Lazy servers that start with the first call.
        broken: Servers whose configuration cannot be used, and why.
    """
    withheld = {one.name: one for one in snapshot.withheld if one.kind == "server"}
    running = [
        _as_before(line, withheld.pop(line.name, None))
        for server in snapshot.servers
        if (line := _running(server, asleep=server.name in asleep))
    ]
    lost = broken.keys() - {line.name for line in running}
    return (
        *running,
        *(_broken_line(name, broken[name]) for name in sorted(lost)),
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
        "sandbox": server.sandbox and asdict(server.sandbox),
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
        state, words = pending.standing.value, pending.words
    else:
        state, words = "changed" if pending.changed else "not trusted", pending.reason
    # the command first: a narrow terminal cuts the rest
    return StatusLine(pending.name, state, fine=False, note=f"{pending.hint}: it {words}")


def _as_before(line: StatusLine, withheld: Withheld | None) -> StatusLine:
    """A server that runs with its trusted configuration, although the file has changed."""
    if withheld is None:
        return line
    return replace(line, fine=False, note="; ".join(filter(None, (withheld.words, line.note))))


def _broken_line(name: str, problems: tuple[Problem, ...]) -> StatusLine:
    note = f"{problems[0].message} ({near(problems[0].place)})" if problems else ""
    return StatusLine(name, "error", fine=False, note=note, problems=problems)


def _running(server: ServerSnapshot, *, asleep: bool) -> StatusLine:
    if asleep:
        unknown = "" if server.stale else "; what it offers is unknown until then"
        note = f"lazy: it starts on the first call{unknown}"
        return StatusLine(server.name, "asleep", fine=True, note=note, server=server)
    match server.state:
        case LinkState.CONNECTED:
            note = _warning_note(server)
            fine = server.pending is None
            return StatusLine(server.name, "connected", fine=fine, note=note, server=server)
        case LinkState.DISABLED:
            return StatusLine(server.name, "disabled", fine=True, server=server)
        case LinkState.NEEDS_AUTH:
            hint = server.failure.hint if server.failure else None
            return StatusLine(server.name, "needs auth", fine=False, note=hint or "", server=server)
        case _ if server.failure is not None:
            note = str(server.failure)
            return StatusLine(server.name, "error", fine=False, note=note, server=server)
        case state:
            stage = (
                "is still starting" if state is LinkState.CONNECTING else "is waiting for its turn"
            )
            note = f"it {stage}; use `--wait 1m` to wait longer"
            return StatusLine(server.name, state.value, fine=False, note=note, server=server)


def _warning_note(server: ServerSnapshot) -> str:
    pending = (pending_words(server.pending),) if server.pending else ()
    first, *others = (*pending, *server.warnings) or ("",)
    return f"{first} (and {len(others)} more)" if others else first
