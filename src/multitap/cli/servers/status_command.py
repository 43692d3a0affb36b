"""`multitap status`: shows the state of each server."""

from collections.abc import Sequence

from multitap.cli.configuration import problem_lines
from multitap.cli.configuration.chosen_configuration import explain_emptiness, load_configuration
from multitap.cli.exits import Exit
from multitap.cli.gateways.running_gateways import RunningGateway, choose_gateway
from multitap.cli.options import CommonOptions
from multitap.cli.servers.status_lines import (
    StatusLine,
    describe,
    latency,
    status_lines,
    status_lines_of_gateway,
)
from multitap.cli.terminal.output import Colour, advise, note, say_json
from multitap.cli.terminal.tables import table
from multitap.config import Loaded, Problem, Severity
from multitap.config.problems import serious
from multitap.config.trust_gate import TrustState
from multitap.events import LinkState, Snapshot
from multitap.gateway.fronts.control_messages import GatewayState

_COLOURS: dict[str, Colour] = {
    "connected": "green",
    "asleep": "bright_black",
    "disabled": "bright_black",
    "not trusted": "yellow",
    "changed": "yellow",
    "needs auth": "yellow",
    "connecting": "yellow",
}


def status(options: CommonOptions, *, as_json: bool) -> int:
    """Show the servers of a running gateway; without one, start all except lazy ones."""
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded)
    ours = live is None or live.runs(loaded)
    if live:
        state = live.state()
        told, degraded = lines_from_state(live, loaded, state), state.degraded
    else:
        told, degraded = _look_at(loaded, options)
    known = _problems(loaded) if ours else ()
    if as_json:
        say_json(
            {
                "servers": [describe(line) for line in told],
                "problems": [problem_lines.for_programs(problem) for problem in known],
                "gateway": live and live.about.pid,
                "degraded": degraded,
            }
        )
    elif told:
        _show(told)
    if not as_json:
        problem_lines.show(serious(known))
        for reason in degraded:
            note(f"degraded: {reason}")
        if ours:
            explain_emptiness(loaded)
        if options.typed is None:
            _suggest(told)
    return verdict(known, told)


def _problems(loaded: Loaded) -> tuple[Problem, ...]:
    if not loaded.settings.has_rules:
        return loaded.problems
    from multitap.cli.known_names import rule_warnings  # noqa: PLC0415 - a database

    return (*loaded.problems, *rule_warnings(loaded))


def verdict(known: Sequence[Problem], told: Sequence[StatusLine]) -> Exit:
    """The exit code for these problems and servers."""
    if any(problem.severity is Severity.ERROR for problem in known):
        return Exit.CONFIG
    return Exit.DONE if all(line.fine for line in told) else Exit.UNAVAILABLE


def status_lines_of(live: RunningGateway, loaded: Loaded) -> tuple[StatusLine, ...]:
    """The servers of a running gateway, with a note if the files now have others."""
    return lines_from_state(live, loaded, live.state())


def lines_from_state(
    live: RunningGateway, loaded: Loaded, state: GatewayState
) -> tuple[StatusLine, ...]:
    """The same from its state."""
    if not live.runs(loaded):
        return status_lines_of_gateway(state.snapshot, state.asleep, {})
    servers = state.snapshot.servers
    running = {server.name for server in servers if server.transport != "local"}  # not from a file
    held = {name for name, one in loaded.held.items() if one.standing is TrustState.CHANGED}
    # servers of unreadable files keep running, and are not a difference
    others = running - loaded.broken.keys() - held != set(loaded.settings.servers)
    if others and loaded.intact:  # otherwise the gateway applies nothing
        note("the files now name other servers")
        advise("`multitap reload` applies them to the gateway")
    return status_lines_of_gateway(state.snapshot, state.asleep, loaded.broken)


def _look_at(
    loaded: Loaded, options: CommonOptions
) -> tuple[tuple[StatusLine, ...], tuple[str, ...]]:
    if not loaded.settings.servers:
        return status_lines(loaded, Snapshot(0, ()), frozenset()), ()
    from multitap.cli.running import run_async  # noqa: PLC0415 - an event loop takes a while

    return run_async(lambda: _collect(loaded, options))


async def _collect(
    loaded: Loaded, options: CommonOptions
) -> tuple[tuple[StatusLine, ...], tuple[str, ...]]:
    from multitap.cli.command_hub import asleep, open_settled  # noqa: PLC0415 - 0.5 s that a gateway spares

    async with open_settled(loaded, options) as hub:
        return status_lines(loaded, hub.snapshot(), asleep(loaded)), hub.warnings


def _show(told: Sequence[StatusLine]) -> None:
    header: tuple[str, ...] = ("SERVER", "STATE", "TOOLS", "LATENCY", "NOTE")
    rows: list[tuple[str, ...]] = [
        (line.name, line.state, _tools(line), _latency(line), line.note) for line in told
    ]
    levels = [_level(line) for line in told]
    if {*levels} - {"-", "off"}:  # nobody needs a column that says the same of every server
        header = (*header[:-1], "LEVEL", header[-1])
        rows = [(*row[:-1], level, row[-1]) for row, level in zip(rows, levels, strict=True)]
    table(
        header,
        rows,
        right=("TOOLS", "LATENCY"),
        paint={"STATE": lambda state: _COLOURS.get(state, "red")},
    )


def _level(line: StatusLine) -> str:
    sandbox = line.server.sandbox if line.server else None
    return sandbox.level if sandbox else "-"


def _tools(line: StatusLine) -> str:
    server = line.server
    known = server is not None and (line.state == "connected" or server.stale)
    return str(server.tools) if server and known else "-"


def _latency(line: StatusLine) -> str:
    seconds = latency(line.server) if line.server else None
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _suggest(told: Sequence[StatusLine]) -> None:
    # the note of a server that is on its way, or not trusted, says what to do about it
    told_already = {
        *(LinkState.CONNECTING.value, LinkState.DISCONNECTED.value),
        *(TrustState.NEW.value, TrustState.CHANGED.value),
    }
    if troubled := [line.name for line in told if not line.fine and line.state not in told_already]:
        which = f" {troubled[0]}" if len(troubled) == 1 else ""
        advise(f"`multitap doctor{which}` says what to do")
