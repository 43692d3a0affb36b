"""`multitap doctor`: what is wrong with the servers, phase by phase, and what to do about it."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import anyio

from multitap.cli import checks
from multitap.cli.asked import Asked
from multitap.cli.checks import Check, Verdict
from multitap.cli.configured import configured, explain_emptiness, require, state_directory
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.opening import adapted, all_awake, opened
from multitap.cli.output import Colour, painted, say
from multitap.cli.programs import of_address, of_program
from multitap.cli.progress import progress
from multitap.cli.providers import MOST_TOOLS
from multitap.cli.running import run_async
from multitap.config import (
    HttpServer,
    Loaded,
    Scope,
    StdioServer,
    expand_server,
)
from multitap.errors import ConfigError
from multitap.hub import Hub
from multitap.printable import printable
from multitap.records import dataclass
from multitap.version import VERSION

STEADY = 0.2
"""Seconds that a server has to stay up: some fall over right after they are up."""

_COLOURS: dict[Verdict, Colour] = {
    Verdict.OK: "green",
    Verdict.ODD: "yellow",
    Verdict.FAILED: "red",
    Verdict.SKIPPED: "bright_black",
}
_INDENT = " " * 21


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found out about one server, or about what all of them share."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def fine(self) -> bool:
        return all(check.verdict is not Verdict.FAILED for check in self.checks)


def doctor(asked: Asked, server: str | None, *, as_json: bool) -> int:
    """Examine one server or all."""
    loaded = configured(asked)
    if server is not None and server not in loaded.broken:
        require(loaded, server)
    findings = run_async(lambda: _examined(loaded, asked, server))
    if as_json:
        say_json([asdict(found) for found in findings])
    else:
        for found in findings:
            _show(found)
        explain_emptiness(loaded)
    if loaded.errors:
        return Exit.CONFIG
    return Exit.DONE if all(found.fine for found in findings) else Exit.UNAVAILABLE


async def _examined(loaded: Loaded, asked: Asked, server: str | None) -> list[Findings]:
    scope = Scope(os.environ, loaded.search.folder, Path.home())
    programs: dict[str, Check] = {}

    async def find(name: str, config: StdioServer) -> None:
        with suppress(ConfigError):  # told by its variables
            expanded = expand_server(config, scope)
            if isinstance(expanded, StdioServer):
                programs[name] = await of_program(expanded)

    known = loaded.settings.servers.keys() | loaded.broken.keys()
    names = [name for name in loaded.merged.servers if name in known and server in {None, name}]
    async with opened(loaded, adapted(loaded, asked, all_awake, only=server)) as hub:
        async with progress(hub), anyio.create_task_group() as tasks:
            for name, config in loaded.settings.servers.items():
                if name in names and isinstance(config, StdioServer):
                    tasks.start_soon(find, name, config)
            with anyio.move_on_after(asked.patience()):
                await hub.settled()
                if hub.catalog.tools:
                    await anyio.sleep(STEADY)
                    await hub.settled()
        return [
            Findings("multitap", tuple(_of_everything(loaded, hub))),
            *(
                Findings(name, tuple(_of_server(loaded, hub, name, scope, programs)))
                for name in names
            ),
        ]


def _of_everything(loaded: Loaded, hub: Hub) -> Iterator[Check]:
    yield Check("version", Verdict.OK, f"{VERSION}, Python {platform.python_version()}")
    yield from checks.of_problems(one for one in loaded.problems if one.server is None)
    for seen in loaded.sources:
        if seen.found and seen.intact:
            how = f" ({seen.dialect})" if seen.dialect else ""
            yield Check("config", Verdict.OK, f"{seen.source.path}{how}")
    for warning in hub.store.warnings:
        yield Check("state", Verdict.ODD, warning)
    yield Check("state", Verdict.OK, str(state_directory(loaded)))
    if (count := len(hub.catalog.tools)) > MOST_TOOLS:
        hint = "hide some with `filter`"
        yield Check("tools", Verdict.ODD, f"{count} in all; OpenAI takes {MOST_TOOLS}", hint)


def _of_server(
    loaded: Loaded, hub: Hub, name: str, scope: Scope, programs: Mapping[str, Check]
) -> Iterator[Check]:
    yield from checks.of_config(loaded, name)
    config = loaded.settings.servers.get(name)
    if config is None:
        return
    if not config.enabled:
        yield Check("start", Verdict.SKIPPED, "disabled")
        return
    needed = [*checks.of_variables(loaded, name, scope)]
    if isinstance(config, HttpServer):
        needed.append(of_address(config))
    elif name in programs:
        needed.append(programs[name])
    yield from needed
    server = hub.snapshot().server(name)
    if any(check.verdict is Verdict.FAILED for check in needed):
        yield from checks.of_nothing(server)
        return
    yield from checks.of_connection(server)
    yield from checks.of_health(server)
    tools = [tool for tool in hub.catalog.tools.values() if tool.server == name]
    yield from checks.of_schemas(server, tools)


def _show(found: Findings) -> None:
    say(printable(found.subject))
    for check in found.checks:
        verdict = painted(f"{check.verdict:<6}", _COLOURS[check.verdict], sys.stdout)
        say(f"  {verdict}  {check.phase:<9}  {printable(check.text)}")
        for words in check.details:
            say(f"{_INDENT}| {printable(words)}")
        if check.hint:
            say(f"{_INDENT}hint: {printable(check.hint)}")
