"""`multitap token`: creates, lists, replaces and revokes the tokens of clients."""

import time
from typing import Any

import click

from multitap.cli.options import CommandGroup, duration, json_option, rate
from multitap.cli.terminal import Exit, note, say, say_json, table
from multitap.trust.tokens import AccessToken, AccessTokens, TokenError, TokenNames

_COLUMNS = ("NAME", "ID", "STATE", "PROFILE", "ALLOW", "RATE", "EXPIRES", "LAST USE")


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
def create_token(name: str, *, expires: float | None, as_json: bool, **limits: Any) -> int:
    """Create a token and print it once

    Running gateways accept it at once. Only its hash is stored.
    """
    until = None if expires is None else time.time() + expires
    text, token = AccessTokens().create(name, expires=until, **limits)
    if as_json:
        say_json({"token": text, **_facts(token, None)})
        return Exit.DONE
    # only the token goes to standard output, for scripts
    note(f"created {token.name!r} with the id {token.id}; it is not shown again:")
    say(text)
    note("send it as `Authorization: Bearer TOKEN`; running gateways accept it at once")
    return Exit.DONE


@token.command("list")
@json_option
def list_tokens(*, as_json: bool) -> int:
    """List the tokens, what they allow, and when they were last used"""
    store = AccessTokens()
    tokens, uses = store.all(), store.uses()
    if as_json:
        say_json([_facts(token, uses.get(token.id)) for token in tokens])
    elif not tokens:
        note("there are no tokens; `multitap token create NAME` creates one")
    else:
        table(_COLUMNS, [_row(token, uses.get(token.id)) for token in tokens])
    return Exit.DONE


@token.command("rotate")
@click.argument("name", metavar="NAME|ID")
@click.option(
    "--grace",
    metavar="DURATION",
    callback=duration,
    help="Accept the old one for this time: 1h, 7d; default: revoke it now",
)
@json_option
def rotate_token(name: str, *, grace: float | None, as_json: bool) -> int:
    """Replace a token by a new one with the same name and rights, and print it once"""
    text, token, old = AccessTokens().rotate(name, grace=grace or 0.0)
    if as_json:
        say_json({"token": text, **_facts(token, None), "replaces": _facts(old, None)})
        return Exit.DONE
    ends = f"accepted until {_day(old.expires)}" if grace and old.expires else "revoked"
    note(f"the one with the id {old.id} is {ends}")
    note(f"created {token.name!r} with the id {token.id}; it is not shown again:")
    say(text)
    return Exit.DONE


@token.command("revoke")
@click.argument("name", metavar="NAME|ID")
@click.option("--all", "all_of_name", is_flag=True, help="Revoke all tokens of that name")
def revoke_token(name: str, *, all_of_name: bool) -> int:
    """Revoke a token

    Running gateways refuse it within a second, and end its sessions and calls.
    """
    for token in AccessTokens().revoke(name, all_of_name=all_of_name):
        note(f"revoked {token.name!r} with the id {token.id}")
    return Exit.DONE


def token_names() -> TokenNames:
    """Shows the user's tokens by name; as they are if their file cannot be read."""
    try:
        return TokenNames(AccessTokens().all())
    except TokenError:
        return TokenNames(())


def _facts(token: AccessToken, last_use: float | None) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "state": token.state(time.time()),
        "profile": token.profile,
        "allow": token.allow,
        "console": token.is_console,
        "rate": token.rate,
        "created": token.created,
        "expires": token.expires,
        "revoked": token.revoked,
        "last_use": last_use,
    }


def _row(token: AccessToken, last_use: float | None) -> tuple[str, ...]:
    return (
        token.name,
        token.id,
        token.state(time.time()),
        token.profile or "-",
        "web console" if token.is_console else ", ".join(token.allow) or "all",
        token.rate or "-",
        _day(token.expires) if token.expires else "never",
        _day(last_use) if last_use else "never",
    )


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
