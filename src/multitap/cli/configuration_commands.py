"""Declares the commands that show the configuration, and `self`; see `commands`."""

import click

from multitap.cli.completion import complete_server
from multitap.cli.options import CommandGroup, json_option, runs, with_config


@click.group(cls=CommandGroup)
def config() -> None:
    """Inspect the configuration"""


@config.command()
@with_config
@json_option
@runs("configuration.config_command.check")
def check() -> None:
    """Check the configuration and show where each problem is

    Exits with code 3 if there are errors or warnings.
    """


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
@runs("configuration.config_command.show")
def show() -> None:
    """Show the effective configuration of all files, with secrets masked"""


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
@runs("configuration.config_command.explain")
def explain() -> None:
    """Show where each value of a server is set, and what it overrides

    Without SERVER, the values of the hub itself.
    """


@config.command()
@runs("configuration.config_command.schema")
def schema() -> None:
    """Print the JSON Schema of multitap.toml, for editors"""


@click.group("self", cls=CommandGroup)
def self_() -> None:
    """Manage this installation of Multitap"""


@self_.command("uninstall")
@click.option("--purge", is_flag=True, help="Also remove configuration, state, secrets and bundles")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking")
@runs("configuration.self_command.uninstall")
def uninstall_self() -> None:
    """Say how to remove Multitap; with --purge, also remove its data

    Shows everything that would be removed, and asks first.
    """
