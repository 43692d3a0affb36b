"""Declares the commands about tools, resources and prompts; see `commands`."""

from collections.abc import Callable
from pathlib import Path

import click

from multitap.cli.completion import complete_server, complete_tool
from multitap.cli.options import (
    CommonOptions,
    ServerCommand,
    json_option,
    with_either,
    with_servers,
)

watch_option = click.option(
    "--watch", is_flag=True, help="Do it again whenever the sources of the COMMAND change"
)


def _watch(options: CommonOptions, work: Callable[[], int]) -> int:
    from multitap.cli.offers.source_watch import on_every_change

    return on_every_change(options, work)


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only tools of this server")
@click.option("--schema", is_flag=True, help="Show the arguments of each tool")
@watch_option
@with_either
@json_option
def tools(
    options: CommonOptions,
    pattern: str | None,
    *,
    server: str | None,
    schema: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """List the tools, or those that match PATTERN

    PATTERN is a text to find in names and descriptions, or a shell-style glob that matches the
    whole name. Asks a running gateway with the same configuration files, if there is one.
    With a COMMAND after -- or with --url, list the tools of that server alone.
    """
    from multitap.cli.offers.tools_command import tools

    def work() -> int:
        return tools(options, pattern, server=server, schema=schema, as_json=as_json)

    return _watch(options, work) if watch else work()


@click.command(cls=ServerCommand)
@click.argument("name", required=False, metavar="NAME", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | JSON | -]...")
@watch_option
@click.option("--full", is_flag=True, help="Print long results in full")
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="DIR", help="Save images and files in DIR"
)
@with_either
@json_option
def call(
    options: CommonOptions,
    name: str | None,
    arguments: tuple[str, ...],
    *,
    watch: bool,
    full: bool,
    save: Path | None,
    as_json: bool,
) -> int:
    """Call a tool

    KEY=VALUE is converted to the type in the tool's schema, KEY=@FILE reads the value from a file,
    and KEY:=JSON is always parsed as JSON. Repeat a key to make a list. To give all arguments at
    once, pass a JSON object, or - to read one from standard input.

    With a COMMAND after -- or with --url, call a tool of that server. NAME and its arguments may
    follow the COMMAND: the last word that is not an argument, and all arguments after it.
    """
    from multitap.cli.offers.call_command import ResultOptions, call
    from multitap.cli.offers.typed_call import split

    # click cannot tell the server's command from the tool and its arguments
    options, name, arguments = split(options, name, arguments)
    show = ResultOptions(full=full, save=save, as_json=as_json)

    def work() -> int:
        return call(options, name, arguments, show)

    return _watch(options, work) if watch else work()


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only tools of this server")
@click.option("--summary", is_flag=True, help="Show servers only, not their tools")
@with_either
@json_option
def tokens(
    options: CommonOptions, pattern: str | None, *, server: str | None, summary: bool, as_json: bool
) -> int:
    """Show what each tool costs in a model's context

    Counts names, descriptions and arguments of all tools, or of those that match PATTERN.
    """
    from multitap.cli.offers.tokens_command import tokens

    return tokens(options, pattern, server=server, summary=summary, as_json=as_json)


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@with_either
@json_option
def resources(
    options: CommonOptions, pattern: str | None, *, server: str | None, as_json: bool
) -> int:
    """List the resources and resource templates"""
    from multitap.cli.offers.resources_command import resources

    return resources(options, pattern, server=server, as_json=as_json)


@click.command(cls=ServerCommand)
@click.argument("uri")
@click.option(
    "-s", "--server", shell_complete=complete_server, help="Which server, if several have it"
)
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Save it in DIR")
@with_either
@json_option
def read(
    options: CommonOptions, uri: str, *, server: str | None, save: Path | None, as_json: bool
) -> int:
    """Print a resource"""
    from multitap.cli.offers.resources_command import read

    return read(options, uri, server=server, save=save, as_json=as_json)


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@with_either
@json_option
def prompts(
    options: CommonOptions, pattern: str | None, *, server: str | None, as_json: bool
) -> int:
    """List the prompts and their arguments"""
    from multitap.cli.offers.prompts_command import prompts

    return prompts(options, pattern, server=server, as_json=as_json)


@click.command(cls=ServerCommand)
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@with_either
@json_option
def prompt(options: CommonOptions, name: str, arguments: tuple[str, ...], *, as_json: bool) -> int:
    """Fill in a prompt and print it

    KEY=@FILE reads the value from a file.
    """
    from multitap.cli.offers.prompts_command import prompt

    return prompt(options, name, arguments, as_json=as_json)


@click.command()
@click.argument("server", shell_complete=complete_server)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to FILE instead of printing",
)
@click.option("--async", "is_async", is_flag=True, help="For `open_hub` rather than `SyncHub`")
@with_either
def generate(options: CommonOptions, server: str, *, output: Path | None, is_async: bool) -> int:
    """Write a typed Python client of a server

    A class with a method for each tool, whose parameters have the types of its schema.
    """
    from multitap.cli.offers.generate_command import generate

    return generate(options, server, output=output, is_async=is_async)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.option("--offline", is_flag=True, help="Search the bundled catalog only")
@json_option
def search(words: tuple[str, ...], *, offline: bool, as_json: bool) -> int:
    """Find servers to add, in the catalog and the registry

    The catalog comes with Multitap. The registry is the official one, unless `registry` in your
    configuration or MULTITAP_REGISTRY names another.
    """
    from multitap.cli.adding.search_command import search

    return search(" ".join(words), offline=offline, as_json=as_json)


@click.command()
@click.option(
    "--model", metavar="[PROVIDER/]NAME", help="Model to talk to; default: the configured one"
)
@click.option(
    "--agent", metavar="NAME", help="Configured agent whose prompt, model and tools to use"
)
@click.option("--continue", "resume", is_flag=True, help="Go on with the last conversation")
@with_servers
def chat(options: CommonOptions, *, model: str | None, agent: str | None, resume: bool) -> int:
    """Talk to a model that uses the tools of your servers

    @SERVER:URI adds a resource, /SERVER:PROMPT uses a prompt, /help lists the commands.
    """
    from multitap.cli.chat.chat_command import ChatOptions, chat

    return chat(options, ChatOptions(model, agent, resume))
