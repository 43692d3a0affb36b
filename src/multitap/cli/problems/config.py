"""`multitap config`: shows the files' problems, the effective values, and their origin."""

import json
from collections.abc import Iterable
from typing import Any

import click

from multitap.cli import configuration
from multitap.cli.completion import complete_server, rule_warnings
from multitap.cli.configuration import explain_emptiness, load_configuration, near, require
from multitap.cli.options import CommandGroup, CommonOptions, config_options, json_option
from multitap.cli.terminal import Exit, note, say, say_json, table
from multitap.config import Explained, Loaded, Place, ServerConfig, json_schema_text, masked
from multitap.config.checks import plain, table_of
from multitap.config.edit.toml_edit import to_toml
from multitap.config.problems import serious
from multitap.config.projects import Untrusted
from multitap.errors import ConfigError, counted
from multitap.printable import printable
from multitap.trust.projects import expand_trusted

Tables = dict[str, Any]


@click.group(cls=CommandGroup)
def config() -> None:
    """Inspect the configuration"""


@config.command()
@config_options
@json_option
def check(options: CommonOptions, *, as_json: bool) -> int:
    """Check the configuration and show where each problem is

    Exits with code 3 if there are errors or warnings.
    """
    loaded = load_configuration(options)
    problems = (*loaded.problems, *rule_warnings(loaded))
    if as_json:
        say_json(
            {
                "sources": [
                    {"path": str(seen.source.path), "found": seen.found, "dialect": seen.dialect}
                    for seen in loaded.sources
                ],
                "servers": [*loaded.settings.servers],
                "problems": [configuration.problem_json(problem) for problem in problems],
            }
        )
    else:
        configuration.show_problems(problems, write=lambda text: say(printable(text)))
        _sum_up(loaded)
    return Exit.CONFIG if serious(problems) else Exit.DONE


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@config_options
@json_option
def show(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Show the effective configuration of all files, with secrets masked"""
    loaded = load_configuration(options)
    if server is not None:
        require(loaded, server)
    written = _in_force(loaded, server)
    if as_json:
        say_json(written)
    elif written:
        say(to_toml(written))
    if not as_json:
        explain_emptiness(loaded)
        configuration.show_problems(loaded.errors)
    return Exit.CONFIG if loaded.errors else Exit.DONE


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@config_options
@json_option
def explain(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Show where each value of a server is set, and what it overrides

    Without SERVER, the values of the hub itself.
    """
    loaded = load_configuration(options)
    # a server that cannot be used has values to explain, too
    if server is not None and server not in loaded.merged.servers:
        require(loaded, server)
    explanation = loaded.explain(server)
    if as_json:
        say_json(
            {
                "values": [_explain(value) for value in explanation.values],
                "dropped": [_explain(value) for value in explanation.dropped],
            }
        )
        return Exit.DONE
    if explanation.values:
        _show_values(explanation.values)
    if explanation.dropped:
        say("\nnot in effect, because a later file redefines the server:")
        _show_values(explanation.dropped)
    configuration.show_problems(
        problem for problem in loaded.problems if server and problem.server == server
    )
    return Exit.DONE


@config.command()
def schema() -> int:
    """Print the JSON Schema of multitap.toml, for editors"""
    say(json_schema_text().rstrip())
    return Exit.DONE


def _sum_up(loaded: Loaded) -> None:
    for seen in loaded.sources:
        if not (seen.found and seen.intact):
            continue
        how = f" ({seen.dialect})" if seen.dialect else ""
        note(f"read {seen.source.path}{how}")
    if loaded.merged.servers:
        missing = _unset_variables(loaded)
        for name, reason in missing.items():
            note(f"{name} cannot start here: {reason}")
        usable = len(loaded.settings.servers) - len(missing)
        note(f"{usable:,} of {counted(len(loaded.merged.servers), 'server')} can be used")
    explain_emptiness(loaded)


def _of_anybody(config: ServerConfig) -> ServerConfig:
    """The server of a person who has given everything that it asks for."""
    if not config.is_per_user:
        return config
    from multitap.hub.personal_servers import MARK, with_values  # noqa: PLC0415 - few have people
    from multitap.trust.personal_vault import keys_of  # noqa: PLC0415 - as above

    return with_values(config, dict.fromkeys((*keys_of(config), MARK), "value"))


def _unset_variables(loaded: Loaded) -> dict[str, str]:
    """Servers with variables that have no value now, and what they lack."""
    missing: dict[str, str] = {}
    for name, config in loaded.settings.servers.items():
        try:
            expand_trusted(loaded, name, _of_anybody(config))
        except Untrusted:
            continue  # reported otherwise
        except ConfigError as exc:
            missing[name] = str(exc)
    return missing


def _in_force(loaded: Loaded, server: str | None) -> Tables:
    settings = loaded.settings
    servers = {
        name: _as_tables(config)
        for name, config in settings.servers.items()
        if server in {None, name}
    }
    hub = {} if server else _as_tables(settings)
    return {**hub, "servers": servers} if servers else hub


def _as_tables(model: Any) -> Tables:
    written = table_of(model)
    return {key: masked(key, value) for key, value in written.items() if key != "servers"}


def _show_values(values: Iterable[Explained]) -> None:
    rows: list[tuple[str, str, str]] = []
    for value in values:
        if value.value is None:
            continue  # a default that says nothing
        rows.append((value.key, _show(value.key, value.value), _place(value.place)))
        rows += (
            ("", f"overrides {_show(value.key, lower.value)}", _place(lower.place))
            for lower in value.overrode
        )
    table(("KEY", "VALUE", "FROM"), rows)


def _explain(value: Explained) -> Tables:
    return {
        "key": value.key,
        "value": _harmless(value.key, value.value),
        "place": value.place and str(value.place),
        "overrode": [
            {"value": _harmless(value.key, lower.value), "place": str(lower.place)}
            for lower in value.overrode
        ],
    }


def _show(key: str, value: Any) -> str:
    return json.dumps(_harmless(key, value), ensure_ascii=False)


def _harmless(key: str, value: Any) -> Any:
    # the last step before output: every value passes here
    return masked(key, plain(value))


def _place(place: Place | None) -> str:
    return "default" if place is None else str(near(place))
