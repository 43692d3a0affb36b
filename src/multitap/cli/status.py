"""`multitap status`: how each server is doing."""

from collections.abc import Sequence

from multitap.cli import problems
from multitap.cli.asked import Asked
from multitap.cli.configured import configured, explain_emptiness
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.opening import asleep, settled
from multitap.cli.output import Colour, advise
from multitap.cli.running import run_async
from multitap.cli.stories import Story, described, latency, stories
from multitap.cli.tables import table
from multitap.config import Loaded

_COLOURS: dict[str, Colour] = {
    "connected": "green",
    "asleep": "bright_black",
    "disabled": "bright_black",
    "needs auth": "yellow",
    "connecting": "yellow",
}


def status(asked: Asked, *, as_json: bool) -> int:
    """Start what is not lazy, tell how it went."""
    loaded = configured(asked)
    told = run_async(lambda: _told(loaded, asked))
    if as_json:
        say_json(
            {
                "servers": [described(story) for story in told],
                "problems": [problems.for_programs(problem) for problem in loaded.problems],
            }
        )
    elif told:
        _show(told)
    if not as_json:
        problems.show(problems.serious(loaded.problems))
        explain_emptiness(loaded)
        _suggest(told)
    return verdict(loaded, told)


def verdict(loaded: Loaded, told: Sequence[Story]) -> Exit:
    """How the program ends for such a configuration and such servers."""
    if loaded.errors:
        return Exit.CONFIG
    return Exit.DONE if all(story.fine for story in told) else Exit.UNAVAILABLE


async def _told(loaded: Loaded, asked: Asked) -> tuple[Story, ...]:
    async with settled(loaded, asked) as hub:
        return stories(loaded, hub.snapshot(), asleep(loaded))


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
