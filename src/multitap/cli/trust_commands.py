"""Declares the commands about trust, access and policy; see `commands`."""

from pathlib import Path

import click

from multitap.cli.command_group import CommandGroup
from multitap.cli.completion import complete_server, complete_tool
from multitap.cli.options import (
    CommonOptions,
    duration,
    json_option,
    rate,
    with_config,
    with_either,
    with_servers,
)


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path())
@click.option("-y", "--yes", is_flag=True, help="Do not ask (for CI)")
@click.option(
    "--grant",
    "granted",
    multiple=True,
    metavar="NAME",
    help="With --yes, also let the project's servers use this secret (repeatable)",
)
@click.option("--list", "listing", is_flag=True, help="List the trusted projects")
@click.option("--remove", is_flag=True, help="Stop trusting the project")
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
    """Review what the project in PATH would run and send, and trust it

    Nothing of a project is used before that. The answer holds for the content as it is shown: when
    it changes, you are asked again. Files that you name with --config need no trust.
    """
    from multitap.cli.guarding.trust_command import TrustAnswer, distrust, list_trusted, trust

    if listing and remove:
        raise click.UsageError("use either --list or --remove")
    if as_json and not listing:
        raise click.UsageError("--json goes with --list")
    if granted and not yes:
        raise click.UsageError("--grant goes with --yes")
    if listing:
        return list_trusted(as_json=as_json)
    return distrust(path) if remove else trust(path, TrustAnswer(yes=yes, granted=granted))


@click.group(cls=CommandGroup)
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
    from multitap.cli.guarding.policy_command import explain

    return explain(options, name, arguments, as_json=as_json)


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
    from multitap.cli.guarding import audit_command

    if verify:
        return audit_command.verify(options, as_json=as_json)
    wanted = audit_command.AuditOptions(server, kind, since, lines, as_json)
    return audit_command.audit(options, wanted)


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
def set_secret(name: str, servers: tuple[str, ...], origins: tuple[str, ...]) -> int:
    """Store a secret, or replace it

    The value comes from a prompt or from standard input, never from the command line.
    """
    from multitap.cli.guarding.secret_command import set_secret

    return set_secret(name, servers, origins)


@secret.command("list")
@json_option
def list_secrets(*, as_json: bool) -> int:
    """List the names of stored secrets, and who may use them"""
    from multitap.cli.guarding.secret_command import list_secrets

    return list_secrets(as_json=as_json)


@secret.command("move")
@click.argument("servers", nargs=-1, metavar="[SERVER]...", shell_complete=complete_server)
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing")
@with_config
def move_secrets(options: CommonOptions, servers: tuple[str, ...], *, dry_run: bool) -> int:
    """Move plain-text keys from your configuration to the vault

    The configuration then refers to them as ${auth:SERVER/KEY}. Without SERVER, moves all of them.
    """
    from multitap.cli.editing.edit_command import EditOptions, move_secrets

    return move_secrets(options, servers, EditOptions(dry_run=dry_run))


@secret.command("remove")
@click.argument("name")
def remove_secret(name: str) -> int:
    """Delete a secret"""
    from multitap.cli.guarding.secret_command import remove_secret

    return remove_secret(name)


@click.group(cls=CommandGroup)
def pins() -> None:
    """Review tools that changed since they were first seen"""


@pins.command("list")
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
def list_pins(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """List what is pinned, without starting a server"""
    from multitap.cli.guarding.pins_command import list_pins

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
    from multitap.cli.guarding.pins_command import review_pins

    return review_pins(options, server, accepting=accepting, as_json=as_json)


@pins.command("reset")
@click.argument("server", shell_complete=complete_server)
@with_config
def reset_pins(options: CommonOptions, server: str) -> int:
    """Forget the pins of a server, so that its next list is pinned"""
    from multitap.cli.guarding.pins_command import reset_pins

    return reset_pins(options, server)


@click.group(cls=CommandGroup)
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
    "--expires", metavar="DURATION", callback=duration, help="Expire after this time: 12h, 30d"
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
    """Create a token and print it once

    Running gateways accept it at once. Only its hash is stored.
    """
    from multitap.cli.guarding.token_command import NewToken, create_token

    return create_token(NewToken(name, profile, allow, expires, rate), as_json=as_json)


@token.command("list")
@json_option
def list_tokens(*, as_json: bool) -> int:
    """List the tokens, what they allow, and when they were last used"""
    from multitap.cli.guarding.token_command import list_tokens

    return list_tokens(as_json=as_json)


@token.command("revoke")
@click.argument("name", metavar="NAME|ID")
def revoke_token(name: str) -> int:
    """Revoke a token, or all tokens of a name

    Running gateways refuse it within a second, and end its sessions and calls.
    """
    from multitap.cli.guarding.token_command import revoke_token

    return revoke_token(name)


@click.group(cls=CommandGroup)
def sandbox() -> None:
    """Show what a confined server may use, and learn what it needs"""


@sandbox.command("show")
@click.argument("server", shell_complete=complete_server)
@with_config
@json_option
def show_sandbox(options: CommonOptions, server: str, *, as_json: bool) -> int:
    """Show whether a server is confined, and all that it may use"""
    from multitap.cli.guarding.sandbox_command import show_sandbox

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
    from multitap.cli.guarding.sandbox_command import learn_sandbox

    return learn_sandbox(options, server, calls, dry_run=dry_run, as_json=as_json)


@sandbox.command("allow")
@click.argument("server", shell_complete=complete_server)
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing")
@with_config
def allow_hosts(
    options: CommonOptions, server: str, *, hosts: tuple[str, ...], dry_run: bool
) -> int:
    """Let a confined server reach more hosts

    HOST is a name, '*.name', an address or a network, with a port, or without
    one for ports 80 and 443; '*' is every public host.
    """
    from multitap.cli.guarding.sandbox_command import allow_hosts

    return allow_hosts(options, server, hosts, dry_run=dry_run)
