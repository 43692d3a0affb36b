"""`multitap status`: how each server is doing."""

from collections.abc import Sequence

from multitap.cli import problems
from multitap.cli.asked import Asked
from multitap.cli.configured import configured, explain_emptiness
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.live import Live, chosen
from multitap.cli.output import Colour, advise, note
from multitap.cli.stories import Story, described, latency, stories, stories_of_gateway
from multitap.cli.tables import table
from multitap.config import Loaded, Problem, Severity
from multitap.events import Snapshot
from multitap.serve.control_words import Picture

_COLOURS: dict[str, Colour] = {
    "connected": "green",
    "asleep": "bright_black",
    "disabled": "bright_black",
    "needs auth": "yellow",
    "connecting": "yellow",
}


def status(asked: Asked, *, as_json: bool) -> int:
    """Tell how the servers of a running gateway are; without one, start what is not lazy."""
    loaded = configured(asked)
    live = chosen(asked, loaded)
    ours = live is None or live.runs(loaded)
    if live:
        picture = live.picture()
        told, degraded = told_by(live, loaded, picture), picture.degraded
    else:
        told, degraded = _looked_at(loaded, asked)
    known = loaded.problems if ours else ()
    if as_json:
        say_json(
            {
                "servers": [described(story) for story in told],
                "problems": [problems.for_programs(problem) for problem in known],
                "gateway": live and live.about.pid,
                "degraded": degraded,
            }
        )
    elif told:
        _show(told)
    if not as_json:
        problems.show(problems.serious(known))
        for reason in degraded:
            note(f"degraded: {reason}")
        if ours:
            explain_emptiness(loaded)
        _suggest(told)
    return verdict(known, told)


def verdict(known: Sequence[Problem], told: Sequence[Story]) -> Exit:
    """How the program ends for such problems of the configuration and such servers."""
    if any(problem.severity is Severity.ERROR for problem in known):
        return Exit.CONFIG
    return Exit.DONE if all(story.fine for story in told) else Exit.UNAVAILABLE


def stories_of(live: Live, loaded: Loaded) -> tuple[Story, ...]:
    """The servers of a running gateway, after a word if the files name others by now."""
    return told_by(live, loaded, live.picture())


def told_by(live: Live, loaded: Loaded, picture: Picture) -> tuple[Story, ...]:
    """The same from a picture of it."""
    if not live.runs(loaded):
        return stories_of_gateway(picture.snapshot, picture.asleep, {})
    servers = picture.snapshot.servers
    running = {server.name for server in servers if server.transport != "local"}  # no file's
    others = running - loaded.broken.keys() != set(loaded.settings.servers)
    if others and loaded.intact:  # else the gateway takes nothing over
        note("the files name other servers by now")
        advise("`multitap reload` has the gateway take them over")
    return stories_of_gateway(picture.snapshot, picture.asleep, loaded.broken)


def _looked_at(loaded: Loaded, asked: Asked) -> tuple[tuple[Story, ...], tuple[str, ...]]:
    if not loaded.settings.servers:
        return stories(loaded, Snapshot(0, ()), frozenset()), ()
    from multitap.cli.running import run_async  # noqa: PLC0415 - an event loop takes a while

    return run_async(lambda: _told(loaded, asked))


async def _told(loaded: Loaded, asked: Asked) -> tuple[tuple[Story, ...], tuple[str, ...]]:
    from multitap.cli.opening import asleep, settled  # noqa: PLC0415 - 0.5 s that a gateway spares

    async with settled(loaded, asked) as hub:
        return stories(loaded, hub.snapshot(), asleep(loaded)), hub.store.warnings


def _show(told: Sequence[Story]) -> None:
    rows = [(story.name, story.state, _tools(story), _latency(story), story.note) for story in told]
    table(
        ("SERVER", "STATE", "TOOLS", "LATENCY", "NOTE"),
        rows,
        right=("TOOLS", "LATENCY"),
        paint={"STATE": lambda state: _COLOURS.get(state, "red")},
    )


def _tools(story: Story) -> str:
    server = story.server
    known = server is not None and (story.state == "connected" or server.stale)
    return str(server.tools) if server and known else "-"


def _latency(story: Story) -> str:
    seconds = latency(story.server) if story.server else None
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _suggest(told: Sequence[Story]) -> None:
    if troubled := [story.name for story in told if not story.fine]:
        which = f" {troubled[0]}" if len(troubled) == 1 else ""
        advise(f"`multitap doctor{which}` says what to do")
