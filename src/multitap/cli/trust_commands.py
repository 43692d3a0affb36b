"""Declares the commands about trust, access and policy; see `commands`."""

from pathlib import Path

import click

from multitap.cli.completion import complete_server, complete_tool
from multitap.cli.options import (
    FILE,
    CommandGroup,
    duration,
    json_option,
    rate,
    runs,
    with_config,
    with_either,
    with_project,
    with_servers,
)


@click.command()
@click.argument("path", type=FILE, default=Path())
@click.option("-y", "--yes", is_flag=True, help="Do not ask (for CI)")
@click.option(
    "--grant",
    "granted",
    multiple=True,
    metavar="NAME",
    help="With --yes, also let the project's servers use this secret (repeatable)",
)
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Trust later changes of its code and entries without asking, or no longer",
)
@click.option("--list", "listing", is_flag=True, help="List the trusted projects")
@click.option("--remove", is_flag=True, help="Stop trusting the project")
@json_option
@runs("guarding.trust_command.trust")
def trust() -> None:
    """Review what the project in PATH would run and send, and trust it

    Nothing of a project is used before that. Your answer applies to the content that is shown: when
    it changes, you are asked again, unless you --follow a project of your own. Files that you name
    with --config need no trust.
    """


@click.group(cls=CommandGroup)
def policy() -> None:
    """Show which calls are allowed, asked about or denied"""


@policy.command("explain")
@click.argument("name", shell_complete=complete_tool)
@click.argument("given", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | JSON | -]...")
@with_servers
@json_option
@runs("guarding.policy_command.explain")
def explain_policy() -> None:
    """Show the decision about a call of a tool, and the rules behind it

    Nothing is called. Without arguments, shows what applies to every call.
    """


@click.command()
@click.option("--verify", is_flag=True, help="Check that no entry was changed or removed")
@click.option(
    "-s", "--server", shell_complete=complete_server, help="Only entries about this server"
)
@click.option("--kind", metavar="KIND", help="Only entries of this kind: call, question, secret, …")
@click.option("--since", metavar="SPAN", help="Only entries from the last 2h, 30m, …")
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, metavar="N", help="At most N entries"
)
@with_config
@json_option
@runs("guarding.audit_command.audit", given_as="AuditOptions")
def audit() -> None:
    """Show who called what and what was decided, newest first

    With --verify, exits with code 1 if an entry was changed or removed.
    """


@click.group(cls=CommandGroup)
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
@runs("guarding.secret_command.set_secret")
def set_secret() -> None:
    """Store a secret, or replace it

    The value comes from a prompt or from standard input, never from the command line.
    """


@secret.command("list")
@json_option
@runs("guarding.secret_command.list_secrets")
def list_secrets() -> None:
    """List the names of stored secrets, and who may use them"""


@secret.command("move")
@click.argument("names", nargs=-1, metavar="[SERVER]...", shell_complete=complete_server)
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing")
@with_config
@runs("editing.edit_command.move_secrets")
def move_secrets() -> None:
    """Move plain-text keys from your configuration to the vault

    The configuration then refers to them as ${auth:SERVER/KEY}. Without SERVER, moves all of them.
    """


@secret.command("remove")
@click.argument("name")
@runs("guarding.secret_command.remove_secret")
def remove_secret() -> None:
    """Delete a secret"""


@click.group(cls=CommandGroup)
def pins() -> None:
    """Review tools that changed since they were first seen"""


@pins.command("list")
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
@runs("guarding.pins_command.list_pins")
def list_pins() -> None:
    """List what is pinned, without starting a server"""


@pins.command("review")
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("--accept", "accepting", is_flag=True, help="Accept all changes that are shown")
@with_either
@json_option
@runs("guarding.pins_command.review_pins")
def review_pins() -> None:
    """Show what changed, and accept it

    Asks on a terminal; elsewhere it only shows, unless --accept is given. Exits with code 1 if
    changes remain.
    """


@pins.command("reset")
@click.argument("server", shell_complete=complete_server)
@with_config
@runs("guarding.pins_command.reset_pins")
def reset_pins() -> None:
    """Forget the pins of a server, so that its next list is pinned"""


@click.group(cls=CommandGroup)
def token() -> None:
    """Manage the tokens that let clients use the gateway over HTTP"""


@token.command("create")
@click.argument("name")
@click.option("--profile", metavar="NAME", help="Limit clients to this profile")
@click.option(
    "--allow",
    multiple=True,
    metavar="GLOB",
    help="Allow only tools whose name matches (repeatable)",
)
@click.option(
    "--expires", metavar="DURATION", callback=duration, help="Expire after this time: 12h, 30d"
)
@click.option("--rate", metavar="N/UNIT", callback=rate, help="Allow this many requests: 100/min")
@json_option
@runs("guarding.token_command.create_token")
def create_token() -> None:
    """Create a token and print it once

    Running gateways accept it at once. Only its hash is stored.
    """


@token.command("list")
@json_option
@runs("guarding.token_command.list_tokens")
def list_tokens() -> None:
    """List the tokens, what they allow, and when they were last used"""


@token.command("revoke")
@click.argument("name", metavar="NAME|ID")
@runs("guarding.token_command.revoke_token")
def revoke_token() -> None:
    """Revoke a token, or all tokens of a name

    Running gateways refuse it within a second, and end its sessions and calls.
    """


@click.group(cls=CommandGroup)
def sandbox() -> None:
    """Choose how much a server is confined, and what it may use"""


@sandbox.command("show")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@with_config
@json_option
@runs("guarding.sandbox_command.show_sandbox")
def show_sandbox() -> None:
    """Show whether a server is confined, and everything that it may use"""


@sandbox.command("learn")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.option(
    "--call",
    "calls",
    multiple=True,
    metavar="TOOL={JSON}",
    help="Also call this tool, by the server's own name (repeatable)",
)
@click.option("--dry-run", is_flag=True, help="Print the rules, and write nothing")
@with_project
@json_option
@runs("guarding.sandbox_command.learn_sandbox")
def learn_sandbox() -> None:
    """Start a server under observation, and write the rules that it needs

    Meanwhile it can read everything that is not private, and reach every host.
    """


@sandbox.command("allow")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@click.option("--read", multiple=True, metavar="PATH", help="Let it read this (repeatable)")
@click.option("--write", multiple=True, metavar="PATH", help="Let it change this (repeatable)")
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing")
@with_config
@runs("guarding.sandbox_command.allow")
def allow() -> None:
    """Let a confined server use more hosts, files and folders

    HOST is a name, '*.name', an address or a network, with a port, or without
    one for ports 80 and 443; '*' is every public host. Hosts matter only under
    'strict': 'guard' leaves the network open.
    """


@sandbox.command("set")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.argument("level", type=click.Choice(["guard", "strict", "off"]))
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing")
@with_config
@runs("guarding.sandbox_command.set_level")
def set_level() -> None:
    """Choose how much a server is confined

    'guard' closes private places: keys, credentials, browsers, Multitap's own
    data. 'strict' closes everything that its rules do not open. 'off' does not
    confine it.
    """
