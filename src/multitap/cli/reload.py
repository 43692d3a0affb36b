"""`multitap reload` and `restart`: what a running gateway is told to do."""

from multitap.cli import problems
from multitap.cli.asked import Asked
from multitap.cli.configured import configured
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.live import Live, chosen, matching, nobody_serves
from multitap.cli.output import complain, note, say
from multitap.config import Loaded
from multitap.config.problems import did_you_mean
from multitap.errors import UnknownName
from multitap.serve.control_words import ReloadReport


def reload(asked: Asked, *, as_json: bool) -> int:
    """Have every gateway with these files read them anew."""
    loaded = configured(asked)
    found = matching(asked, loaded)
    reports = [(live, live.reload()) for live in found]
    if as_json:
        say_json([_for_programs(live, report) for live, report in reports])
    else:
        for live, report in reports:
            _show(live, report, loaded)
        if asked.pid is None:
            problems.show(problems.serious(loaded.problems))
    ours = loaded.errors if asked.pid is None else ()
    if ours or any(report.kept or not report.taken for _, report in reports):
        return Exit.CONFIG
    return Exit.DONE if found else nobody_serves()


def restart(asked: Asked, server: str) -> int:
    """Have a gateway start one of its servers anew."""
    live = chosen(asked, configured(asked))
    if live is None:
        return nobody_serves()
    names = [one.name for one in live.picture().snapshot.servers]
    if server not in names:
        hint = did_you_mean(server, names) or "`multitap status` lists what there is"
        raise UnknownName(f"the gateway has no server named {server!r}", hint=hint)
    live.restart(server)
    note(f"{server} is started anew; `multitap status` shows how it goes")
    return Exit.DONE


def _show(live: Live, report: ReloadReport, loaded: Loaded) -> None:
    who = f"pid {live.about.pid}"
    if report.taken:
        say(f"{who}: {report.plan}")
    else:
        complain(f"{who}: the files can not be read; everything goes on as it was")
    if report.kept:
        note(f"{who}: {', '.join(report.kept)} as before: what is written now can not be used")
    if not live.runs(loaded):
        for problem in report.problems:
            note(problem)


def _for_programs(live: Live, report: ReloadReport) -> dict[str, object]:
    return {
        "gateway": live.about.pid,
        "taken": report.taken,
        "plan": report.plan,
        "problems": list(report.problems),
        "kept": list(report.kept),
    }
