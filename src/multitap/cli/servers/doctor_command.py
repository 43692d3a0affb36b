"""`multitap doctor`: checks every server phase by phase and says what to do."""

import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace

import anyio

from multitap.cli.command_hub import adapt, all_awake, open_command_hub
from multitap.cli.configuration.chosen_configuration import (
    explain_emptiness,
    load_configuration,
    require,
)
from multitap.cli.exits import Exit
from multitap.cli.known_names import rule_warnings
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.servers import server_checks
from multitap.cli.servers.provider_objections import MOST_TOOLS
from multitap.cli.servers.server_checks import Check, CheckVerdict
from multitap.cli.servers.server_programs import of_address, of_package, of_program
from multitap.cli.terminal.output import Colour, colour_text, say, say_json
from multitap.cli.terminal.progress import progress
from multitap.config import HttpServer, Loaded, StdioServer
from multitap.errors import ConfigError
from multitap.hub.hub import Hub
from multitap.printable import printable
from multitap.records import dataclass
from multitap.trust.projects.trusted_projects import expand_trusted
from multitap.version import VERSION
from multitap.wire.process.sandbox_support import support_here

STEADY = 0.2
"""Seconds that a server has to stay up: some crash right after the start."""

_COLOURS: dict[CheckVerdict, Colour] = {
    CheckVerdict.OK: "green",
    CheckVerdict.WARN: "yellow",
    CheckVerdict.FAILED: "red",
    CheckVerdict.SKIPPED: "bright_black",
}
_INDENT = " " * 21


@dataclass(frozen=True, slots=True)
class Findings:
    """The checks of one server, or of the installation."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def fine(self) -> bool:
        return all(check.verdict is not CheckVerdict.FAILED for check in self.checks)


def doctor(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Examine one server or all."""
    loaded = load_configuration(options)
    if server is not None and server not in {*loaded.broken, *loaded.held}:
        require(loaded, server)
    findings = run_async(lambda: _examine(loaded, options, server))
    # after the run, which has stored what the servers offer
    idle = tuple(server_checks.of_problems(rule_warnings(loaded)))
    findings[0] = replace(findings[0], checks=(*findings[0].checks, *idle))
    if as_json:
        say_json([asdict(found) for found in findings])
    else:
        for found in findings:
            _show(found)
        explain_emptiness(loaded)
    if loaded.errors:
        return Exit.CONFIG
    return Exit.DONE if all(found.fine for found in findings) else Exit.UNAVAILABLE


async def _examine(loaded: Loaded, options: CommonOptions, server: str | None) -> list[Findings]:
    programs: dict[str, Check] = {}

    async def find(name: str, config: StdioServer) -> None:
        with suppress(ConfigError):  # already reported by its variables
            expanded = expand_trusted(loaded, name, config)
            if isinstance(expanded, StdioServer):
                programs[name] = await of_program(expanded)

    known = loaded.settings.servers.keys() | loaded.broken.keys() | loaded.held.keys()
    names = [name for name in loaded.merged.servers if name in known and server in {None, name}]
    async with open_command_hub(loaded, adapt(loaded, options, all_awake, only=server)) as hub:
        async with progress(hub), anyio.create_task_group() as tasks:
            for name, config in loaded.settings.servers.items():
                if name in names and isinstance(config, StdioServer):
                    tasks.start_soon(find, name, config)
            with anyio.move_on_after(options.patience()):
                await hub.settled()
                if hub.catalog.tools:
                    await anyio.sleep(STEADY)
                    await hub.settled()
                await hub.scanned()
        return [
            Findings("multitap", tuple(_of_everything(loaded, hub))),
            *(Findings(name, tuple(_of_server(loaded, hub, name, programs))) for name in names),
        ]


def _of_everything(loaded: Loaded, hub: Hub) -> Iterator[Check]:
    yield Check("version", CheckVerdict.OK, f"{VERSION}, Python {platform.python_version()}")
    yield from server_checks.of_problems(one for one in loaded.problems if one.server is None)
    for seen in loaded.sources:
        if seen.found and seen.intact:
            how = f" ({seen.dialect})" if seen.dialect else ""
            yield Check("config", CheckVerdict.OK, f"{seen.source.path}{how}")
    for one in loaded.pending:
        if one.kind != "server":
            yield from server_checks.of_trust(one)
    for warning in hub.warnings:
        yield Check("state", CheckVerdict.WARN, warning)
    yield Check("state", CheckVerdict.OK, str(loaded.state_directory))
    yield server_checks.of_sandbox_support(support_here())
    if (count := len(hub.catalog.tools)) > MOST_TOOLS:
        hint = "hide some with `filter`"
        yield Check(
            "tools", CheckVerdict.WARN, f"{count} in total; OpenAI accepts {MOST_TOOLS}", hint
        )


def _of_server(
    loaded: Loaded, hub: Hub, name: str, programs: Mapping[str, Check]
) -> Iterator[Check]:
    yield from server_checks.of_config(loaded, name)
    yield from server_checks.of_trust(loaded.held.get(name))
    config = loaded.settings.servers.get(name)
    if config is None:
        return
    if not config.enabled:
        yield Check("start", CheckVerdict.SKIPPED, "disabled")
        return
    yield from server_checks.of_relaxation(config)
    needed = [*server_checks.of_variables(loaded, name)]
    if isinstance(config, HttpServer):
        needed.append(of_address(config))
    elif name in programs:
        needed.append(programs[name])
    if isinstance(config, StdioServer) and (
        check := of_package(config, hub.pins.package(name, config))
    ):
        needed.append(check)
    yield from needed
    server = hub.snapshot().server(name)
    # the rest would only repeat the reason in other words
    if any(check.verdict is CheckVerdict.FAILED for check in needed):
        yield from server_checks.of_nothing(server)
        return
    yield from server_checks.of_sandbox(server)
    yield from server_checks.of_connection(server)
    yield from server_checks.of_health(server)
    tools = [tool for tool in hub.catalog.tools.values() if tool.server == name]
    yield from server_checks.of_schemas(server, tools)


def _show(found: Findings) -> None:
    say(printable(found.subject))
    for check in found.checks:
        verdict = colour_text(f"{check.verdict:<6}", _COLOURS[check.verdict], sys.stdout)
        say(f"  {verdict}  {check.phase:<9}  {printable(check.text)}")
        for words in check.details:
            say(f"{_INDENT}| {printable(words)}")
        if check.hint:
            say(f"{_INDENT}hint: {printable(check.hint)}")
        if check.code:
            say(f"{_INDENT}more: `multitap help {check.code}`")
