"""Collects tools, resources and prompts for the commands that list them."""

import time
from collections.abc import Iterable, Mapping, Sequence, Sized
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from multitap.cli.completion import last_listed
from multitap.cli.configuration import (
    explain_emptiness,
    load_configuration,
    problem_reason,
    require,
    show_problems,
)
from multitap.cli.options import CommonOptions
from multitap.cli.target import Question, Target
from multitap.cli.terminal import Exit, advise, note
from multitap.cli.use.status import StatusLine, server_lines
from multitap.control.messages import GatewayState
from multitap.control.methods import Control
from multitap.errors import ConfigError, Unavailable, UnknownName, counted


class ServerOffer(Protocol):
    """A tool, resource or prompt, and the server that has it."""

    @property
    def server(self) -> str: ...


_Listed = TypeVar("_Listed", bound=ServerOffer)


def list_offers(
    options: CommonOptions, question: Question[list[_Listed]], *, server: str | None
) -> tuple[_Listed, ...]:
    """The offers of all servers, or of one.

    Reports each server that cannot be asked.

    Raises:
        UnknownName: There is no such server.
        Unavailable: The requested server cannot be asked.
        ConfigError: No configuration file can be read.
    """
    loaded = load_configuration(options)
    if options.typed is not None:  # it was requested by name
        server = next(iter(loaded.settings.servers), None)
    target = Target(options, loaded)
    if target.gateway is None and server is not None:
        require(loaded, server)

    async def look(control: Control) -> tuple[GatewayState, list[_Listed]]:
        return await control.state(), await question(control)

    listed = _last_listed(target, options)
    state, offers = target.look(look, server=server, listed=listed)
    _tell_age([listed[name] for name in listed if server in {None, name}])
    lines = server_lines(target, state)
    if target.gateway is not None:
        check_server(target, lines, server)
    else:
        errors = [problem for problem in loaded.errors if problem.server is None]
        # while one file can be read, its servers are listed
        if errors and not loaded.settings.servers:
            raise ConfigError(problem_reason(errors[0]), hint=errors[0].hint)
        show_problems(errors)
        explain_emptiness(loaded)
    for line in lines:
        if server in {None, line.name}:
            mention(line, alone=server is not None)
    off = [line.name for line in lines if line.state == "disabled" and server in {None, line.name}]
    if off and not offers:
        note(f"nothing is listed: {', '.join(off)} {'is' if len(off) == 1 else 'are'} disabled")
        advise(f"`multitap enable {off[0]}` enables it")
    return tuple(offer for offer in offers if server in {None, offer.server})


def _last_listed(target: Target, options: CommonOptions) -> Mapping[str, float]:
    """The servers that need not be asked, and when they last said what they offer."""
    if target.gateway is not None or options.asks_servers or options.typed is not None:
        return {}
    return last_listed(target.loaded)


def _tell_age(times: Sequence[float]) -> None:
    if times:
        # of the oldest list, so that no other is older than we say
        age = ago(time.time() - min(times))
        note(f"as of {age}; `--wait 1m` asks the servers again")


def ago(seconds: float) -> str:
    """How long ago something was."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "just now"


def check_server(target: Target, lines: Iterable[StatusLine], server: str | None) -> None:
    """Check that a gateway has a server.

    Raises:
        UnknownName: It has none of that name.
        ConfigError: Its entry cannot be used.
    """
    if server is None or server in {line.name for line in lines}:
        return
    if target.has_these_files:
        require(target.loaded, server)
    raise UnknownName(
        f"the gateway has no server named {server!r}", hint="`multitap status` lists all servers"
    )


def fits(pattern: str | None, name: str, *texts: str) -> bool:
    """Whether a name matches a glob, or a plain text is part of the name or description."""
    if pattern is None:
        return True
    if any(char in pattern for char in "*?["):
        # not `fnmatch`, which ignores the case on some systems
        return fnmatchcase(name, pattern)
    return any(pattern.casefold() in text.casefold() for text in (name, *texts))


def check_matches(pattern: str | None, offers: Sized, listed: Sized) -> Exit:
    """Report a pattern that matches nothing; returns the exit code."""
    if pattern is None or listed:
        return Exit.DONE
    note(f"nothing matches {pattern!r}")
    if offers:
        advise("without a pattern, everything is listed")
    return Exit.FAILED


def mention(line: StatusLine, *, alone: bool, done: str = "listed") -> None:
    """Report why a server is not listed, if so; raises if it was requested by name."""
    if line.fine:
        if line.state == "asleep" and line.server and not line.server.stale:
            note(f"{line.name} has never been started, so what it offers is unknown")
            advise(f"`multitap doctor {line.name}` starts it once")
        return
    failure = line.server.failure if line.server else None
    otherwise = line.note or line.state
    if alone:
        raise Unavailable.because(line.name, failure, otherwise)
    note(f"{line.name} is not {done}: {failure or otherwise}")
