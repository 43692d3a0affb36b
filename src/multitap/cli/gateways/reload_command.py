"""`multitap reload` and `restart`: control a running gateway."""

from multitap.cli.configuration import problem_lines
from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.exits import Exit
from multitap.cli.gateways.running_gateways import (
    RunningGateway,
    choose_gateway,
    matching,
    nobody_serves,
)
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import complain, note, say, say_json
from multitap.config import Loaded
from multitap.config.problems import did_you_mean, serious
from multitap.errors import UnknownName
from multitap.gateway.fronts.control_messages import ReloadReport


def reload(options: CommonOptions, *, as_json: bool) -> int:
    """Reload every gateway with these files."""
    loaded = load_configuration(options)
    found = matching(options, loaded)
    reports = [(live, live.reload()) for live in found]
    if as_json:
        say_json([_for_programs(live, report) for live, report in reports])
    else:
        for live, report in reports:
            _show(live, report, loaded)
        if options.pid is None:
            problem_lines.show(serious(loaded.problems))
    # a gateway chosen by its pid may have other files than this command
    ours = loaded.errors if options.pid is None else ()
    if ours or any(report.kept or not report.taken for _, report in reports):
        return Exit.CONFIG
    if any(report.missing_workers for _, report in reports):
        return Exit.FAILED
    return Exit.DONE if found else nobody_serves()


def restart(options: CommonOptions, server: str) -> int:
    """Restart one server of a gateway."""
    live = choose_gateway(options, load_configuration(options))
    if live is None:
        return nobody_serves()
    names = [one.name for one in live.state().snapshot.servers]
    if server not in names:
        hint = did_you_mean(server, names) or "`multitap status` lists all servers"
        raise UnknownName(f"the gateway has no server named {server!r}", hint=hint)
    live.restart(server)
    note(f"restarting {server}; `multitap status` shows how it goes")
    return Exit.DONE


def _show(live: RunningGateway, report: ReloadReport, loaded: Loaded) -> None:
    who = f"pid {live.about.pid}"
    if report.taken:
        say(f"{who}: {report.plan}")
    else:
        complain(f"{who}: the files cannot be read; nothing is changed")
    if report.kept:
        note(f"{who}: {', '.join(report.kept)} unchanged: the new configuration cannot be used")
    if report.gap:
        complain(f"{who}: {report.gap}")
    if not live.runs(loaded):
        for problem in report.problems:
            note(problem)


def _for_programs(live: RunningGateway, report: ReloadReport) -> dict[str, object]:
    return {
        "gateway": live.about.pid,
        "taken": report.taken,
        "plan": report.plan,
        "problems": list(report.problems),
        "kept": list(report.kept),
        "missing_workers": report.missing_workers,
    }
