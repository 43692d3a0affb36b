"""Declares the commands that show the configuration and uninstall; see `commands`."""

import click

from multitap.cli.command_group import CommandGroup
from multitap.cli.completion import complete_server
from multitap.cli.options import CommonOptions, json_option, with_config


@click.group(cls=CommandGroup)
def config() -> None:
    """Inspect the configuration"""


@config.command()
@with_config
@json_option
def check(options: CommonOptions, *, as_json: bool) -> int:
    """Check the configuration and show where each problem is

    Exits with code 3 if there are errors or warnings.
    """
    from multitap.cli.configuration.config_command import check

    return check(options, as_json=as_json)


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
def show(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Show the effective configuration of all files, with secrets masked"""
    from multitap.cli.configuration.config_command import show

    return show(options, server, as_json=as_json)


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
def explain(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Show where each value of a server is set, and what it overrides

    Without SERVER, the values of the hub itself.
    """
    from multitap.cli.configuration.config_command import explain

    return explain(options, server, as_json=as_json)


@config.command()
def schema() -> int:
    """Print the JSON Schema of multitap.toml, for editors"""
    from multitap.cli.configuration.config_command import schema

    return schema()


@click.group("self", cls=CommandGroup)
def self_() -> None:
    """Manage this installation of Multitap"""


@self_.command("uninstall")
@click.option("--purge", is_flag=True, help="Also remove configuration, state, secrets and bundles")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking")
def uninstall_self(*, purge: bool, yes: bool) -> int:
    """Say how to remove Multitap; with --purge, remove what it keeps

    Shows everything that would be removed, and asks first.
    """
    from multitap.cli.configuration.self_command import uninstall

    return uninstall(purge=purge, yes=yes)
