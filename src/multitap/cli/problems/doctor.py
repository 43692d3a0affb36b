"""`multitap doctor`: checks every server phase by phase and says what to do."""

import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

import anyio
import click
import msgspec

from multitap.cli.completion import complete_server, rule_warnings
from multitap.cli.configuration import explain_emptiness, load_configuration, require
from multitap.cli.options import CommonOptions, ServerCommand, json_option, server_options
from multitap.cli.own_hub import adapt, all_awake, open_command_hub
from multitap.cli.problems import checks as server_checks
from multitap.cli.problems.checks import (
    MOST_TOOLS,
    Check,
    CheckResult,
    check_address,
    check_package,
    check_program,
)
from multitap.cli.progress import progress
from multitap.cli.signals import run_async
from multitap.cli.terminal import Colour, Exit, colour_text, say, say_json
from multitap.config import HttpServer, Loaded, StdioServer
from multitap.errors import ConfigError
from multitap.hub.hub import Hub
from multitap.printable import printable
from multitap.sandbox.levels import support_here
from multitap.trust.projects import expand_trusted
from multitap.version import VERSION

STEADY = 0.2
"""Seconds that a server has to stay up: some crash right after the start."""

_COLOURS: dict[CheckResult, Colour] = {
    CheckResult.OK: "green",
    CheckResult.WARN: "yellow",
    CheckResult.FAILED: "red",
    CheckResult.SKIPPED: "bright_black",
}
_INDENT = " " * 21


class Findings(msgspec.Struct, frozen=True):
    """The checks of one server, or of the installation."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def fine(self) -> bool:
        return all(check.verdict is not CheckResult.FAILED for check in self.checks)


@click.command(cls=ServerCommand)
@click.argument("server", required=False, shell_complete=complete_server)
@server_options
@json_option
def doctor(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Diagnose problems and say how to fix them

    Starts lazy servers too.
    """
    loaded = load_configuration(options)
    # those cannot be used, and this command says why
    if server is not None and server not in {*loaded.broken, *loaded.held}:
        require(loaded, server)
    findings = run_async(lambda: _examine(loaded, options, server))
    # after the run, which has stored what the servers offer
    idle = tuple(server_checks.check_problems(rule_warnings(loaded)))
    findings[0] = Findings(findings[0].subject, (*findings[0].checks, *idle))
    if as_json:
        say_json(msgspec.to_builtins(findings))
    else:
        for subject in findings:
            _show(subject)
        explain_emptiness(loaded)
    if loaded.errors:
        return Exit.CONFIG
    return Exit.DONE if all(subject.fine for subject in findings) else Exit.UNAVAILABLE


async def _examine(loaded: Loaded, options: CommonOptions, server: str | None) -> list[Findings]:
    programs: dict[str, Check] = {}

    async def find(name: str, config: StdioServer) -> None:
        with suppress(ConfigError):  # the check of its variables reports it
            expanded = expand_trusted(loaded, name, config)
            if isinstance(expanded, StdioServer):
                programs[name] = await check_program(expanded)

    usable = loaded.settings.servers.keys() | loaded.broken.keys() | loaded.held.keys()
    names = [name for name in loaded.merged.servers if name in usable and server in {None, name}]
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
    yield Check("version", CheckResult.OK, f"{VERSION}, Python {platform.python_version()}")
    yield from server_checks.check_problems(
        problem for problem in loaded.problems if problem.server is None
    )
    for seen in loaded.sources:
        if seen.found and seen.intact:
            how = f" ({seen.dialect})" if seen.dialect else ""
            yield Check("config", CheckResult.OK, f"{seen.source.path}{how}")
    for part in loaded.pending:
        if part.kind != "server":
            yield from server_checks.check_trust(part)
    for warning in hub.warnings:
        yield Check("state", CheckResult.WARN, warning)
    yield Check("state", CheckResult.OK, str(loaded.state_directory))
    yield server_checks.check_sandbox_support(support_here())
    if (count := len(hub.catalog.tools)) > MOST_TOOLS:
        hint = "hide some with `filter`"
        yield Check(
            "tools", CheckResult.WARN, f"{count} in total; OpenAI accepts {MOST_TOOLS}", hint
        )


def _of_server(
    loaded: Loaded, hub: Hub, name: str, programs: Mapping[str, Check]
) -> Iterator[Check]:
    yield from server_checks.check_config(loaded, name)
    yield from server_checks.check_trust(loaded.held.get(name))
    config = loaded.settings.servers.get(name)
    if config is None:
        return
    if not config.enabled:
        yield Check("start", CheckResult.SKIPPED, "disabled")
        return
    yield from server_checks.check_relaxation(config)
    needed = [*server_checks.check_variables(loaded, name)]
    if isinstance(config, HttpServer):
        needed.append(check_address(config))
    elif name in programs:
        needed.append(programs[name])
    if isinstance(config, StdioServer) and (
        check := check_package(config, hub.pins.package(name, config))
    ):
        needed.append(check)
    yield from needed
    server = hub.snapshot().server(name)
    # the rest would only repeat the reason in other words
    if any(check.verdict is CheckResult.FAILED for check in needed):
        yield from server_checks.skip_connection(server)
        return
    yield from server_checks.check_sandbox(server)
    yield from server_checks.check_connection(server)
    yield from server_checks.check_health(server)
    tools = [tool for tool in hub.catalog.tools.values() if tool.server == name]
    yield from server_checks.check_schemas(server, tools)


def _show(findings: Findings) -> None:
    say(printable(findings.subject))
    for check in findings.checks:
        show_check(check)


def show_check(check: Check) -> None:
    """Print one check, with what to do about it."""
    verdict = colour_text(f"{check.verdict:<6}", _COLOURS[check.verdict], sys.stdout)
    say(f"  {verdict}  {check.phase:<9}  {printable(check.text)}")
    for detail in check.details:
        say(f"{_INDENT}| {printable(detail)}")
    if check.hint:
        say(f"{_INDENT}hint: {printable(check.hint)}")
    if check.code:
        say(f"{_INDENT}more: `multitap help {check.code}`")
