"""What the servers have, for the commands that list it."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol, TypeVar

from multitap.cli import problems
from multitap.cli.asked import Asked
from multitap.cli.configured import configured, explain_emptiness, require
from multitap.cli.live import Live, chosen
from multitap.cli.output import advise, note
from multitap.cli.running import run_async
from multitap.cli.status import stories_of
from multitap.cli.stories import Story, stories
from multitap.config import Loaded
from multitap.errors import ConfigError, Unavailable, UnknownName

if TYPE_CHECKING:
    from multitap.hub import Hub


class Listed(Protocol):
    """Something of a server's."""

    @property
    def server(self) -> str: ...


_Listed = TypeVar("_Listed", bound=Listed)


def listed(
    asked: Asked,
    of_hub: Callable[["Hub"], Iterable[_Listed]],
    of_live: Callable[[Live], Iterable[_Listed]],
    *,
    server: str | None,
) -> tuple[_Listed, ...]:
    """What there is, of a running gateway or else of the servers, or of one server.

    Before it comes a word on each server that cannot be asked.

    Raises:
        UnknownName: There is no such server.
        Unavailable: It is the one that cannot be asked.
        ConfigError: No file can be read that names servers.
    """
    loaded = configured(asked)
    live = chosen(asked, loaded)
    if live is not None:
        told = stories_of(live, loaded)
        check_server(live, loaded, told, server)
        found = tuple(of_live(live))
    else:
        if server is not None:
            require(loaded, server)
        found, told = run_async(lambda: _looked(loaded, asked, of_hub, server))
        wrong = [problem for problem in loaded.errors if problem.server is None]
        if wrong and not loaded.settings.servers:
            raise ConfigError(problems.line(wrong[0]), hint=wrong[0].hint)
        problems.show(wrong)
        explain_emptiness(loaded)
    mention(told, server)
    return tuple(one for one in found if server in {None, one.server})


def check_server(live: Live, loaded: Loaded, told: Iterable[Story], server: str | None) -> None:
    """Make sure that a gateway has a server.

    Raises:
        UnknownName: It has none of that name.
        ConfigError: What is written about it cannot be used.
    """
    if server is None or server in {story.name for story in told}:
        return
    if live.runs(loaded):
        require(loaded, server)
    raise UnknownName(
        f"the gateway has no server named {server!r}", hint="`multitap status` lists what there is"
    )


def mention(told: Iterable[Story], server: str | None) -> None:
    """Say why nothing of a server is listed, where that is so.

    Raises:
        Unavailable: It is the one that was asked for.
    """
    for story in told:
        if server in {None, story.name}:
            _mention(story, alone=server is not None)


def fits(pattern: str | None, name: str, *texts: str) -> bool:
    """Whether a name fits a glob, or holds a plain text, as its description may do too."""
    if pattern is None:
        return True
    if any(char in pattern for char in "*?["):
        return fnmatchcase(name, pattern)
    return any(pattern.casefold() in text.casefold() for text in (name, *texts))


async def _looked(
    loaded: Loaded, asked: Asked, collect: Callable[["Hub"], Iterable[_Listed]], server: str | None
) -> tuple[tuple[_Listed, ...], tuple[Story, ...]]:
    from multitap.cli.opening import asleep, settled  # noqa: PLC0415 - 0.5 s that a gateway spares

    async with settled(loaded, asked, only=server) as hub:
        return tuple(collect(hub)), stories(loaded, hub.snapshot(), asleep(loaded))


def _mention(story: Story, *, alone: bool) -> None:
    if story.fine:
        if story.state == "asleep" and story.server and not story.server.stale:
            note(f"{story.name} was never started, so it is not known what it has")
            advise(f"`multitap doctor {story.name}` starts it once")
        return
    failure = story.server.failure if story.server else None
    why = str(failure) if failure else story.note or story.state
    if alone:
        raise Unavailable(story.name, why, hint=failure.hint if failure else None, failure=failure)
    note(f"{story.name} is not here: {why}")
