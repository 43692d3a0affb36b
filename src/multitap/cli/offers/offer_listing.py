"""Collects tools, resources and prompts for the commands that list them."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol, TypeVar

from multitap.cli.configuration import problem_lines
from multitap.cli.configuration.chosen_configuration import (
    explain_emptiness,
    load_configuration,
    require,
)
from multitap.cli.gateways.running_gateways import RunningGateway, choose_gateway
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.servers.status_command import status_lines_of
from multitap.cli.servers.status_lines import StatusLine, status_lines
from multitap.cli.terminal.output import advise, note
from multitap.config import Loaded
from multitap.errors import ConfigError, Unavailable, UnknownName

if TYPE_CHECKING:
    from multitap.hub.hub import Hub


class ServerOffer(Protocol):
    """A tool, resource or prompt, and the server that has it."""

    @property
    def server(self) -> str: ...


_Listed = TypeVar("_Listed", bound=ServerOffer)


def list_offers(
    options: CommonOptions,
    of_hub: Callable[["Hub"], Iterable[_Listed]],
    of_live: Callable[[RunningGateway], Iterable[_Listed]],
    *,
    server: str | None,
) -> tuple[_Listed, ...]:
    """The offers of a running gateway, of the servers, or of one server.

    Reports each server that cannot be asked.

    Raises:
        UnknownName: There is no such server.
        Unavailable: The requested server cannot be asked.
        ConfigError: No configuration file can be read.
    """
    loaded = load_configuration(options)
    if options.typed is not None:  # it was requested by name
        server = next(iter(loaded.settings.servers), None)
    live = choose_gateway(options, loaded)
    if live is not None:
        told = status_lines_of(live, loaded)
        check_server(live, loaded, told, server)
        found = tuple(of_live(live))
    else:
        if server is not None:
            require(loaded, server)
        found, told = run_async(lambda: _look(loaded, options, of_hub, server))
        wrong = [problem for problem in loaded.errors if problem.server is None]
        if wrong and not loaded.settings.servers:
            raise ConfigError(problem_lines.line(wrong[0]), hint=wrong[0].hint)
        problem_lines.show(wrong)
        explain_emptiness(loaded)
    mention(told, server)
    off = [line.name for line in told if line.state == "disabled" and server in {None, line.name}]
    if off and not found:
        note(f"nothing is listed: {', '.join(off)} {'is' if len(off) == 1 else 'are'} disabled")
        advise(f"`multitap enable {off[0]}` enables it")
    return tuple(one for one in found if server in {None, one.server})


def check_server(
    live: RunningGateway, loaded: Loaded, told: Iterable[StatusLine], server: str | None
) -> None:
    """Check that a gateway has a server.

    Raises:
        UnknownName: It has none of that name.
        ConfigError: Its entry cannot be used.
    """
    if server is None or server in {line.name for line in told}:
        return
    if live.runs(loaded):
        require(loaded, server)
    raise UnknownName(
        f"the gateway has no server named {server!r}", hint="`multitap status` lists all servers"
    )


def mention(told: Iterable[StatusLine], server: str | None) -> None:
    """Report why a server is not listed, if so.

    Raises:
        Unavailable: It was requested by name.
    """
    for line in told:
        if server in {None, line.name}:
            _mention(line, alone=server is not None)


def fits(pattern: str | None, name: str, *texts: str) -> bool:
    """Whether a name matches a glob, or a plain text is part of the name or description."""
    if pattern is None:
        return True
    if any(char in pattern for char in "*?["):
        return fnmatchcase(name, pattern)
    return any(pattern.casefold() in text.casefold() for text in (name, *texts))


async def _look(
    loaded: Loaded,
    options: CommonOptions,
    collect: Callable[["Hub"], Iterable[_Listed]],
    server: str | None,
) -> tuple[tuple[_Listed, ...], tuple[StatusLine, ...]]:
    from multitap.cli.command_hub import asleep, open_settled  # noqa: PLC0415 - 0.5 s that a gateway spares

    async with open_settled(loaded, options, only=server) as hub:
        return tuple(collect(hub)), status_lines(loaded, hub.snapshot(), asleep(loaded))


def _mention(line: StatusLine, *, alone: bool) -> None:
    if line.fine:
        if line.state == "asleep" and line.server and not line.server.stale:
            note(f"{line.name} has never been started, so what it offers is unknown")
            advise(f"`multitap doctor {line.name}` starts it once")
        return
    failure = line.server.failure if line.server else None
    otherwise = line.note or line.state
    if alone:
        raise Unavailable.because(line.name, failure, otherwise)
    note(f"{line.name} is not listed: {failure or otherwise}")
