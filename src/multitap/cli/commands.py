"""Every command with a line about it; its options are declared when it is used.

A new command is a line here and a function in one of the `*_commands` modules.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
from click.exceptions import NoSuchCommand

from multitap.cli.options import CommonOptions, config_option
from multitap.version import VERSION

_HELP = {"help_option_names": ["-h", "--help"]}


class _Command(NamedTuple):
    """Where a command is declared, and what it is for."""

    module: str
    function: str
    words: str


# To declare a command takes longer than to run a small one, and there are dozens: `--help` needs
# only these lines. They are in the order in which a person comes to need them.
SECTIONS: Mapping[str, Mapping[str, _Command]] = {
    "Set up": {
        "import": _Command(
            "editing_commands", "import_servers", "Import the servers of other clients"
        ),
        "search": _Command(
            "offer_commands", "search", "Find servers to add, in the catalog and the registry"
        ),
        "add": _Command("editing_commands", "add", "Add a server"),
        "install": _Command("editing_commands", "install", "Add Multitap to other clients"),
        "uninstall": _Command(
            "editing_commands", "uninstall", "Remove Multitap from other clients"
        ),
        "export": _Command(
            "editing_commands", "export", "Write your servers in another client's format"
        ),
    },
    "Change": {
        "enable": _Command("editing_commands", "enable", "Enable servers"),
        "disable": _Command(
            "editing_commands", "disable", "Disable servers, and keep their entries"
        ),
        "rename": _Command(
            "editing_commands",
            "rename",
            "Rename a server, also where profiles and agents mention it",
        ),
        "set": _Command("editing_commands", "set_setting", "Change settings of a server"),
        "remove": _Command("editing_commands", "remove", "Remove servers"),
        "undo": _Command("editing_commands", "undo", "Undo the last change to files"),
    },
    "Use": {
        "status": _Command("server_commands", "status", "Show the state of each server"),
        "tools": _Command("offer_commands", "tools", "List the tools, or those that match PATTERN"),
        "call": _Command("offer_commands", "call", "Call a tool"),
        "resources": _Command(
            "offer_commands", "resources", "List the resources and resource templates"
        ),
        "read": _Command("offer_commands", "read", "Print a resource"),
        "prompts": _Command("offer_commands", "prompts", "List the prompts and their arguments"),
        "prompt": _Command("offer_commands", "prompt", "Fill in a prompt and print it"),
        "tokens": _Command(
            "offer_commands", "tokens", "Show what each tool costs in a model's context"
        ),
        "generate": _Command(
            "offer_commands", "generate", "Write a typed Python client of a server"
        ),
        "chat": _Command(
            "offer_commands", "chat", "Talk to a model that uses the tools of your servers"
        ),
    },
    "Serve": {
        "serve": _Command(
            "serving_commands", "serve", "Serve all configured servers as one MCP server"
        ),
        "console": _Command(
            "serving_commands",
            "console",
            "Print a link to the web console of the running gateway",
        ),
        "cluster": _Command("serving_commands", "cluster", "Show the gateways that act as one"),
        "stats": _Command(
            "serving_commands",
            "stats",
            "Show calls, errors, times and clients of the running gateway",
        ),
        "calls": _Command(
            "serving_commands", "calls", "List past calls, or those that match FILTER"
        ),
        "reload": _Command(
            "serving_commands", "reload", "Reload the configuration of running gateways"
        ),
        "restart": _Command(
            "serving_commands", "restart", "Restart a server of the running gateway"
        ),
        "token": _Command(
            "trust_commands",
            "token",
            "Manage the tokens that let clients use the gateway over HTTP",
        ),
    },
    "Find problems": {
        "doctor": _Command(
            "server_commands", "doctor", "Diagnose problems and say how to fix them"
        ),
        "help": _Command(
            "server_commands", "help_", "Explain a failure code, an error message or a command"
        ),
        "logs": _Command(
            "server_commands", "logs", "Print what a server wrote to stderr, or what happened"
        ),
        "trace": _Command(
            "server_commands", "trace", "Print the messages to and from a server as they pass"
        ),
        "config": _Command("configuration_commands", "config", "Inspect the configuration"),
    },
    "Trust": {
        "trust": _Command(
            "trust_commands",
            "trust",
            "Review what the project in PATH would run and send, and trust it",
        ),
        "login": _Command("server_commands", "login", "Log in to a server"),
        "logout": _Command("server_commands", "logout", "Forget the login to a server"),
        "secret": _Command(
            "trust_commands", "secret", "Keep secrets for `${auth:NAME}` in a configuration"
        ),
        "pins": _Command(
            "trust_commands", "pins", "Review tools that changed since they were first seen"
        ),
        "sandbox": _Command(
            "trust_commands",
            "sandbox",
            "Show what a confined server may use, and learn what it needs",
        ),
        "policy": _Command(
            "trust_commands", "policy", "Show which calls are allowed, asked about or denied"
        ),
        "audit": _Command(
            "trust_commands", "audit", "Show who called what and what was decided, newest first"
        ),
    },
    "Multitap": {
        "demo": _Command("serving_commands", "demo", "Show a hub at work with the bundled servers"),
        "self": _Command("configuration_commands", "self_", "Manage this installation of Multitap"),
    },
}
COMMANDS: Mapping[str, _Command] = {
    name: home for section in SECTIONS.values() for name, home in section.items()
}


class CommandTable(click.Group):
    """The commands above, each imported when somebody names it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        found: click.Command = getattr(import_module(f"multitap.cli.{home.module}"), home.function)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(args[0], possibilities=[*COMMANDS], ctx=ctx)  # suggests a near one
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, home.words) for name, home in section.items()])


@click.group(cls=CommandTable, context_settings=_HELP, invoke_without_command=True)
@config_option
@click.version_option(
    VERSION,
    "-V",
    "--version",
    message="%(prog)s %(version)s",
    help="Print the version",
)
@click.pass_context
def multitap(ctx: click.Context, files: tuple[Path, ...]) -> int | None:
    """Every MCP server you use, in one place

    Without a command, at a terminal: open the screen.
    """
    if ctx.invoked_subcommand is not None:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(ctx.get_help())
        return None
    from multitap.cli.gateways.screen_command import screen

    return screen(CommonOptions(files))
