"""Declares the commands about tools, resources and prompts; see `commands`."""

from functools import wraps
from typing import Any

import click

from multitap.cli.completion import complete_server, complete_tool
from multitap.cli.options import (
    FILE,
    CommonOptions,
    ServerCommand,
    Work,
    json_option,
    runs,
    with_either,
    with_servers,
)

_watch_option = click.option(
    "--watch", is_flag=True, help="Repeat whenever the sources of the COMMAND change"
)


def _watching(command: Work) -> Work:
    @wraps(command)
    def work(options: CommonOptions, *, watch: bool, **given: Any) -> int:
        if not watch:
            return command(options, **given)
        from multitap.cli.offers.source_watch import on_every_change

        return on_every_change(options, lambda: command(options, **given))

    return work


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only tools of this server")
@click.option("--schema", is_flag=True, help="Show the arguments of each tool")
@_watch_option
@with_either
@json_option
@_watching
@runs("offers.tools_command.tools")
def tools() -> None:
    """List the tools, or those that match PATTERN

    PATTERN is a text to find in names and descriptions, or a shell-style glob that matches the
    whole name. Asks a running gateway with the same configuration files, if there is one.
    With a COMMAND after -- or with --url, list the tools of that server alone.
    """


@click.command(cls=ServerCommand)
@click.argument("name", required=False, metavar="NAME", shell_complete=complete_tool)
@click.argument("given", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | JSON | -]...")
@_watch_option
@click.option("--full", is_flag=True, help="Print long results in full")
@click.option("--save", type=FILE, metavar="DIR", help="Save images and files in DIR")
@with_either
@json_option
@_watching
@runs("offers.call_command.call")
def call() -> None:
    """Call a tool

    KEY=VALUE is converted to the type in the tool's schema, KEY=@FILE reads the value from a file,
    and KEY:=JSON is always parsed as JSON. Repeat a key to make a list. To give all arguments at
    once, pass a JSON object, or - to read one from standard input.

    With a COMMAND after -- or with --url, call a tool of that server. NAME and its arguments may
    follow the COMMAND: the last word that is not an argument, and all arguments after it.
    """


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only tools of this server")
@click.option("--summary", is_flag=True, help="Show servers only, not their tools")
@with_either
@json_option
@runs("offers.tokens_command.tokens")
def tokens() -> None:
    """Show what each tool costs in a model's context

    Counts names, descriptions and arguments of all tools, or of those that match PATTERN.
    """


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@with_either
@json_option
@runs("offers.resources_command.resources")
def resources() -> None:
    """List the resources and resource templates"""


@click.command(cls=ServerCommand)
@click.argument("uri")
@click.option(
    "-s", "--server", shell_complete=complete_server, help="Which server, if several have it"
)
@click.option("--save", type=FILE, metavar="DIR", help="Save it in DIR")
@with_either
@json_option
@runs("offers.resources_command.read")
def read() -> None:
    """Print a resource"""


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@with_either
@json_option
@runs("offers.prompts_command.prompts")
def prompts() -> None:
    """List the prompts and their arguments"""


@click.command(cls=ServerCommand)
@click.argument("name")
@click.argument("given", nargs=-1, metavar="[KEY=VALUE]...")
@with_either
@json_option
@runs("offers.prompts_command.prompt")
def prompt() -> None:
    """Fill in a prompt and print it

    KEY=@FILE reads the value from a file.
    """


@click.command()
@click.argument("server", shell_complete=complete_server)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Write to FILE instead of printing",
)
@click.option(
    "--async", "is_async", is_flag=True, help="Write it for `open_hub` instead of `SyncHub`"
)
@with_either
@runs("offers.generate_command.generate")
def generate() -> None:
    """Write a typed Python client for a server

    A class with a method for each tool, whose parameters have the types of its schema.
    """


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.option("--offline", is_flag=True, help="Search the bundled catalog only")
@json_option
@runs("adding.search_command.search")
def search() -> None:
    """Find servers to add, in the catalog and the registry

    The catalog comes with Multitap. The registry is the official one, unless `registry` in your
    configuration or MULTITAP_REGISTRY names another.
    """


@click.command()
@click.option(
    "--model", metavar="[PROVIDER/]NAME", help="Model to talk to; default: the configured one"
)
@click.option(
    "--agent", metavar="NAME", help="Configured agent whose prompt, model and tools to use"
)
@click.option("--continue", "resume", is_flag=True, help="Continue the last conversation")
@with_servers
@runs("chat.chat_command.chat", given_as="ChatOptions")
def chat() -> None:
    """Talk to a model that uses the tools of your servers

    @SERVER:URI adds a resource, /SERVER:PROMPT uses a prompt, /help lists the commands.
    """
