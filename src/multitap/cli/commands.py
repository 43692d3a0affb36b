"""Every command with its options; what it does is imported when it is run."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from multitap.cli.completion import complete_server, complete_tool
from multitap.cli.editing_commands import EDITING
from multitap.cli.exits import Exit
from multitap.cli.options import (
    CommonOptions,
    ServerCommand,
    config_option,
    duration,
    json_option,
    live_option,
    no_live_option,
    rate,
    with_config,
    with_either,
    with_gateway,
    with_servers,
)
from multitap.cli.stopping import Terminated
from multitap.version import VERSION

_HELP = {"help_option_names": ["-h", "--help"]}

watch_option = click.option(
    "--watch", is_flag=True, help="Do it again whenever the sources of the COMMAND change"
)


def _watched(options: CommonOptions, work: Callable[[], int]) -> int:
    from multitap.cli.offers.source_watch import on_every_change

    return on_every_change(options, work)


class Ordered(click.Group):
    """A group that lists its commands in the order in which a person comes to need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self.commands]


@click.group(cls=Ordered, context_settings=_HELP, invoke_without_command=True)
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


for _command in EDITING:
    multitap.add_command(_command)


@multitap.command()
@click.option(
    "--http",
    is_flag=False,
    flag_value="",
    metavar="[[HOST:]PORT]",
    help="Listen on HTTP instead of stdio; default address: 127.0.0.1:3000",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Require a bearer token: one of this file, or one of `multitap token`",
)
@click.option("--require-token", is_flag=True, help="Require a token on this machine, too")
@click.option("--insecure", is_flag=True, help="Accept every client without a token")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Also accept this Host name"
)
@click.option("--profile", metavar="NAME", help="Serve only what this profile shows")
@click.option("--demo", is_flag=True, help="Serve the bundled example servers")
@with_config
def serve(
    options: CommonOptions,
    *,
    http: str | None,
    token_file: Path | None,
    require_token: bool,
    insecure: bool,
    hosts: tuple[str, ...],
    profile: str | None,
    demo: bool,
) -> int:
    """Serve all configured servers as one MCP server

    Listens on stdio, for a client that starts it, or on HTTP.
    """
    try:
        from multitap.cli.gateways.serve_command import ServeOptions, serve

        serving = ServeOptions(
            http, token_file, insecure, hosts, require_token, profile=profile, demo=demo
        )
        return serve(options, serving)
    except Terminated:
        return Exit.DONE  # it serves until it is told to stop


@multitap.command(cls=ServerCommand)
@with_either
@json_option
def status(options: CommonOptions, *, as_json: bool) -> int:
    """Show the state of each server

    Asks a running gateway with the same configuration files, if there is one.
    """
    from multitap.cli.servers.status_command import status

    return status(options, as_json=as_json)


@multitap.command(cls=ServerCommand)
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

    return _watched(options, work) if watch else work()


@multitap.command(cls=ServerCommand)
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
    follow the COMMAND: they are the last word that is no argument, and all arguments after it.
    """
    from multitap.cli.offers.call_command import Show, call
    from multitap.cli.offers.typed_call import split

    options, name, arguments = split(options, name, arguments)
    show = Show(full=full, save=save, as_json=as_json)

    def work() -> int:
        return call(options, name, arguments, show)

    return _watched(options, work) if watch else work()


@multitap.command(cls=ServerCommand)
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


@multitap.command(cls=ServerCommand)
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


@multitap.command(cls=ServerCommand)
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


@multitap.command(cls=ServerCommand)
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


@multitap.command(cls=ServerCommand)
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


@multitap.command()
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.option("--offline", is_flag=True, help="Search the bundled catalog only")
@json_option
def search(words: tuple[str, ...], *, offline: bool, as_json: bool) -> int:
    """Find servers to add, in the catalog and the registry

    The catalog comes with Multitap. The registry is the official one, or the one of `registry` in
    your configuration or of MULTITAP_REGISTRY.
    """
    from multitap.cli.configuration.search_command import search

    return search(" ".join(words), offline=offline, as_json=as_json)


@multitap.group(cls=Ordered)
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


@multitap.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path())
@click.option("--yes", is_flag=True, help="Do not ask (for CI)")
@click.option(
    "--grant",
    "granted",
    multiple=True,
    metavar="NAME",
    help="With --yes, also let the project's servers use this secret (repeatable)",
)
@click.option("--list", "listing", is_flag=True, help="List the trusted projects")
@click.option("--remove", is_flag=True, help="Trust the project no longer")
@json_option
def trust(
    path: Path,
    *,
    yes: bool,
    granted: tuple[str, ...],
    listing: bool,
    remove: bool,
    as_json: bool,
) -> int:
    """Show what the project in PATH would run and send, and ask whether to trust it

    Nothing of a project is used before that. The answer holds for the content as it is shown: when
    it changes, you are asked again. Files that you name with --config need no trust.
    """
    from multitap.cli.configuration.trust_command import Answer, distrust, list_trusted, trust

    if listing and remove:
        raise click.UsageError("use either --list or --remove")
    if as_json and not listing:
        raise click.UsageError("--json goes with --list")
    if granted and not yes:
        raise click.UsageError("--grant goes with --yes")
    if listing:
        return list_trusted(as_json=as_json)
    return distrust(path) if remove else trust(path, Answer(yes=yes, granted=granted))


@multitap.group(cls=Ordered)
def policy() -> None:
    """Show which calls are allowed, asked about or denied"""


@policy.command("explain")
@click.argument("name", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | JSON | -]...")
@with_servers
@json_option
def explain_policy(
    options: CommonOptions, name: str, arguments: tuple[str, ...], *, as_json: bool
) -> int:
    """Show the decision about a call of a tool, and the rules behind it

    Nothing is called. Without arguments, shows what holds for every call.
    """
    from multitap.cli.configuration.policy_command import explain

    return explain(options, name, arguments, as_json=as_json)


@multitap.command()
@click.option("--verify", is_flag=True, help="Check that no entry was changed or removed")
@click.option("-s", "--server", shell_complete=complete_server, help="Only about this server")
@click.option("--kind", metavar="KIND", help="Only entries of this kind: call, question, secret, …")
@click.option("--since", metavar="SPAN", help="Only entries of this span of time, such as 2h")
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, metavar="N", help="At most N entries"
)
@with_config
@json_option
def audit(
    options: CommonOptions,
    *,
    verify: bool,
    server: str | None,
    kind: str | None,
    since: str | None,
    lines: int,
    as_json: bool,
) -> int:
    """Show who called what and what was decided, newest first

    With --verify, exits with code 1 if the record is not whole.
    """
    from multitap.cli.configuration import audit_command

    if verify:
        return audit_command.verify(options, as_json=as_json)
    wanted = audit_command.AuditOptions(server, kind, since, lines, as_json)
    return audit_command.audit(options, wanted)


@multitap.group(cls=Ordered)
def secret() -> None:
    """Keep secrets for `${auth:NAME}` in a configuration"""


@secret.command("set")
@click.argument("name")
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="NAME",
    help="Only this server may use it (repeatable)",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Send it only to this origin, such as https://api.example.com (repeatable)",
)
def set_secret(name: str, servers: tuple[str, ...], origins: tuple[str, ...]) -> int:
    """Store a secret, or replace it

    The value comes from a prompt or from standard input, never from the command line.
    """
    from multitap.cli.configuration.secret_command import set_secret

    return set_secret(name, servers, origins)


@secret.command("list")
@json_option
def list_secrets(*, as_json: bool) -> int:
    """List the names of stored secrets, and who may use them"""
    from multitap.cli.configuration.secret_command import list_secrets

    return list_secrets(as_json=as_json)


@secret.command("remove")
@click.argument("name")
def remove_secret(name: str) -> int:
    """Delete a secret"""
    from multitap.cli.configuration.secret_command import remove_secret

    return remove_secret(name)


@multitap.group(cls=Ordered)
def pins() -> None:
    """Review tools that changed since they were first seen"""


@pins.command("list")
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
def list_pins(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """List what is pinned, without starting a server"""
    from multitap.cli.servers.pins_command import list_pins

    return list_pins(options, server, as_json=as_json)


@pins.command("review")
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("--accept", "accepting", is_flag=True, help="Accept all changes that are shown")
@with_either
@json_option
def review_pins(
    options: CommonOptions, server: str | None, *, accepting: bool, as_json: bool
) -> int:
    """Show what changed, and accept it

    Asks on a terminal; elsewhere it only shows, unless --accept is given. Exits with code 1 if
    changes remain.
    """
    from multitap.cli.servers.pins_command import review_pins

    return review_pins(options, server, accepting=accepting, as_json=as_json)


@pins.command("reset")
@click.argument("server", shell_complete=complete_server)
@with_config
def reset_pins(options: CommonOptions, server: str) -> int:
    """Forget the pins of a server, so that its next list is pinned"""
    from multitap.cli.servers.pins_command import reset_pins

    return reset_pins(options, server)


@multitap.group(cls=Ordered)
def token() -> None:
    """Manage the tokens that let clients use the gateway over HTTP"""


@token.command("create")
@click.argument("name")
@click.option("--profile", metavar="NAME", help="Show only what this profile shows")
@click.option(
    "--allow",
    multiple=True,
    metavar="GLOB",
    help="Allow only tools whose name matches (repeatable)",
)
@click.option(
    "--expires", metavar="DURATION", callback=duration, help="End it after this time: 12h, 30d"
)
@click.option("--rate", metavar="N/UNIT", callback=rate, help="Allow this many requests: 100/min")
@json_option
def create_token(
    name: str,
    *,
    profile: str | None,
    allow: tuple[str, ...],
    expires: float | None,
    rate: str | None,
    as_json: bool,
) -> int:
    """Create a token and print it, this one time

    Running gateways accept it at once. Only its hash is stored.
    """
    from multitap.cli.gateways.token_command import NewToken, create_token

    return create_token(NewToken(name, profile, allow, expires, rate), as_json=as_json)


@token.command("list")
@json_option
def list_tokens(*, as_json: bool) -> int:
    """List the tokens, what they allow, and when they were last used"""
    from multitap.cli.gateways.token_command import list_tokens

    return list_tokens(as_json=as_json)


@token.command("revoke")
@click.argument("name", metavar="NAME|ID")
def revoke_token(name: str) -> int:
    """Revoke a token, or all tokens of a name

    Running gateways refuse it within a second, and end its sessions and calls.
    """
    from multitap.cli.gateways.token_command import revoke_token

    return revoke_token(name)


@multitap.command()
@click.argument("server", shell_complete=complete_server)
@click.option("--no-browser", is_flag=True, help="Print the address, and take the redirect's")
@click.option("--scope", metavar="SCOPES", help="Ask for these rights, separated by spaces")
@with_config
def login(options: CommonOptions, server: str, *, no_browser: bool, scope: str | None) -> int:
    """Log in to a server

    Opens a browser, and waits until you have agreed there. The login is kept, renewed when it
    expires, and used by running gateways at once.
    """
    from multitap.cli.servers.login_command import login

    return login(options, server, browser=not no_browser, scope=scope)


@multitap.command()
@click.argument("server", shell_complete=complete_server)
@click.option("--revoke", is_flag=True, help="Also have the authorization server void the tokens")
@with_config
def logout(options: CommonOptions, server: str, *, revoke: bool) -> int:
    """Forget the login to a server"""
    from multitap.cli.servers.login_command import logout

    return logout(options, server, revoke=revoke)


@multitap.command()
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


@multitap.command()
@click.argument("words", nargs=-1, metavar="[FILTER]...")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    metavar="N",
    help="Only the last N calls",
)
@click.option("--show", metavar="ID", help="Print the request and response of a recorded call")
@with_config
@json_option
def calls(
    options: CommonOptions, words: tuple[str, ...], *, lines: int, show: str | None, as_json: bool
) -> int:
    """List past calls, or those that match FILTER

    FILTER is made of terms such as server:github, tool:list_*, status:error, client:claude*,
    '>500ms', since:10m and words to find. A minus sign excludes: -status:ok.
    """
    from multitap.cli.gateways.calls_command import CallsOptions, calls

    return calls(options, CallsOptions(words, lines, show, as_json))


@multitap.group(cls=Ordered)
def sandbox() -> None:
    """Show what a confined server may use, and learn what it needs"""


@sandbox.command("show")
@click.argument("server", shell_complete=complete_server)
@with_config
@json_option
def show_sandbox(options: CommonOptions, server: str, *, as_json: bool) -> int:
    """Show whether a server is confined, and all that it may use"""
    from multitap.cli.servers.sandbox_command import show_sandbox

    return show_sandbox(options, server, as_json=as_json)


@sandbox.command("learn")
@click.argument("server", shell_complete=complete_server)
@click.option(
    "--call",
    "calls",
    multiple=True,
    metavar="TOOL={JSON}",
    help="Also call this tool, by the server's own name (repeatable)",
)
@click.option("--dry-run", is_flag=True, help="Print the rules, and write nothing")
@with_config
@json_option
def learn_sandbox(
    options: CommonOptions, server: str, *, calls: tuple[str, ...], dry_run: bool, as_json: bool
) -> int:
    """Start a server under observation, and write down the rules that it needs

    Meanwhile it can read everything that is not private, and reach every host.
    """
    from multitap.cli.servers.sandbox_command import learn_sandbox

    return learn_sandbox(options, server, calls, dry_run=dry_run, as_json=as_json)


@multitap.command()
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines")
@click.option(
    "--filter",
    "text",
    metavar="FILTER",
    help="Print events that match, as in `multitap calls`; also level:warning and kind:state",
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines"
)
@live_option
@no_live_option
@with_config
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON")
def logs(
    options: CommonOptions,
    server: str | None,
    *,
    follow: bool,
    text: str | None,
    lines: int | None,
    as_json: bool,
) -> int:
    """Print what a server wrote to stderr, or what happened

    With --filter, print past events instead: log messages, state changes and calls. With -f, also
    print events at a running gateway as they happen. Without SERVER, follow all servers.
    """
    if not follow and text is None and (server is None or as_json):
        raise click.UsageError("name a server, or use -f or --filter to see what happens")
    from multitap.cli.servers.logs_command import LogsOptions, logs

    return logs(options, server, LogsOptions(follow, lines, as_json, text))


@multitap.command(cls=ServerCommand)
@click.argument("words", nargs=-1, metavar="[SERVER] [TOOL [ARGUMENTS]...]")
@click.option("--full", is_flag=True, help="Print long messages in full")
@with_either
@click.option("--json", "as_json", is_flag=True, help="Print messages as lines of JSON")
def trace(options: CommonOptions, words: tuple[str, ...], *, full: bool, as_json: bool) -> int:
    """Print the messages to and from a server as they pass

    Follows a running gateway with the same configuration files until Ctrl-C. Without one, starts
    the server, calls TOOL if one is given, and ends. After a COMMAND, SERVER is left out.
    """
    server = None
    if options.typed is None:
        if not words:
            raise click.UsageError("Missing argument 'SERVER'.")
        server, words = words[0], words[1:]
    from multitap.cli.offers.trace_command import TraceOptions, trace

    tool, arguments = (words[0], words[1:]) if words else (None, ())
    return trace(options, TraceOptions(server, tool, arguments, full, as_json))


@multitap.command()
@with_gateway
@json_option
def stats(options: CommonOptions, *, as_json: bool) -> int:
    """Show calls, errors, times and clients of the running gateway"""
    from multitap.cli.gateways.stats_command import stats

    return stats(options, as_json=as_json)


@multitap.command(cls=ServerCommand)
@click.argument("server", required=False, shell_complete=complete_server)
@with_servers
@json_option
def doctor(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Diagnose problems and say how to fix them

    Starts lazy servers too.
    """
    from multitap.cli.servers.doctor_command import doctor

    return doctor(options, server, as_json=as_json)


@multitap.command()
@with_gateway
@json_option
def reload(options: CommonOptions, *, as_json: bool) -> int:
    """Reload the configuration of running gateways

    Reloads every gateway that has the same configuration files as this command.
    """
    from multitap.cli.gateways.reload_command import reload

    return reload(options, as_json=as_json)


@multitap.command()
@click.argument("server", shell_complete=complete_server)
@with_gateway
def restart(options: CommonOptions, server: str) -> int:
    """Restart a server of the running gateway"""
    from multitap.cli.gateways.reload_command import restart

    return restart(options, server)


@multitap.command()
def demo() -> int:
    """Show a hub at work with the bundled servers"""
    from multitap.cli.running import run_async
    from multitap.demo.__main__ import main

    run_async(main)
    return Exit.DONE


@multitap.group("self", cls=Ordered)
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
