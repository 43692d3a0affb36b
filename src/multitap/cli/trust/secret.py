"""`multitap secret`: stores secrets in the vault, lists their names, deletes them."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from multitap.cli.change.entries import Assignment, setting_edit
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration, require
from multitap.cli.edits import entry_places, run_edits, write_edits
from multitap.cli.options import (
    CommandGroup,
    CommonOptions,
    EditOptions,
    config_options,
    dry_run_option,
    json_option,
)
from multitap.cli.terminal import Exit, note, say_json, table
from multitap.config import HttpServer, Settings, StdioServer
from multitap.config.edit.clear_secrets import without_secrets
from multitap.config.edit.journal import FileEdit
from multitap.config.models import OAuth
from multitap.errors import ConfigError, counted
from multitap.principal import TOKEN_ISSUER, Person
from multitap.trust.personal_vault import PersonalVault, account_place, keys_of
from multitap.trust.tokens import AccessTokens
from multitap.trust.vault import LONGEST_VALUE, Secret, Vault


@click.group(cls=CommandGroup)
def secret() -> None:
    """Store secrets for `${auth:NAME}` in a configuration"""


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
@click.option(
    "--for",
    "user",
    metavar="USER",
    help="Store it for one person, at a server where people have their own accounts",
)
@click.option("--issuer", metavar="URL", help="The identity provider that knows USER")
@config_options
def set_secret(  # noqa: PLR0917 - one for each option
    options: CommonOptions,
    name: str,
    servers: tuple[str, ...],
    origins: tuple[str, ...],
    user: str | None,
    issuer: str | None,
) -> int:
    """Store a secret, or replace it

    The value comes from a prompt or from standard input, never from the command line.
    """
    if user is not None:
        return _set_personal(options, name, servers, user, issuer)
    vault = Vault()
    secret = vault.set(name, _read_secret(name), servers=servers, origins=origins)
    note(f"stored {name!r} in {_place(vault, secret)}; use it as `${{auth:{name}}}`")
    if not secret.is_in_keyring:
        note("no keyring works here: the file can be read by you alone, and is not encrypted")
    return Exit.DONE


@secret.command("list")
@json_option
def list_secrets(*, as_json: bool) -> int:
    """List the names of stored secrets, and who may use them"""
    vault = Vault()
    secrets = vault.secrets()
    if as_json:
        say_json(
            [
                {
                    "name": name,
                    "place": "keyring" if secret.is_in_keyring else str(vault.file),
                    "servers": secret.servers,
                    "origins": secret.origins,
                }
                for name, secret in sorted(secrets.items())
            ]
        )
    elif not secrets:
        note("no secrets are stored; `multitap secret set NAME` stores one")
    else:
        rows = [
            (
                name,
                _place(vault, secret),
                ", ".join(secret.servers) or "all of yours",
                ", ".join(secret.origins) or "any",
            )
            for name, secret in sorted(secrets.items())
        ]
        table(("NAME", "STORED IN", "SERVERS", "ORIGINS"), rows)
    return Exit.DONE


@secret.command("move")
@click.argument("names", nargs=-1, metavar="[SERVER]...", shell_complete=complete_server)
@dry_run_option
@config_options
def move_secrets(options: CommonOptions, names: Sequence[str], *, dry_run: bool) -> int:
    """Move plain-text keys from your configuration to the vault

    The configuration then refers to them as ${auth:SERVER/KEY}. Without SERVER, moves all of them.
    """
    loaded = load_configuration(options)
    loaded.check()
    for name in names:
        entry_places(loaded, name)  # an unknown name is an error
    vault = Vault()
    stored = {name: value for name in vault.secrets() if (value := vault.value(name))}
    # a key that several servers use is stored once
    moved: dict[str, str] = {}
    edits: list[FileEdit] = []
    for name, config in loaded.settings.servers.items():
        if (names and name not in names) or not isinstance(config, StdioServer | HttpServer):
            continue
        if config.provenance == "project":
            continue  # others use that file, and do not have this vault
        changed_fields, secrets = without_secrets(name, config, {**stored, **moved})
        if changed_fields:
            moved |= secrets
            edits.append(
                setting_edit(loaded, name, [*_leaves(changed_fields)], options, EditOptions())
            )
            note(f"{name}: {', '.join(secrets) or 'keys that the vault has already'}")
    if not edits:
        note("there are no keys in plain text")
        return Exit.DONE
    if dry_run:
        return run_edits("", edits, dry_run=True, done="")
    write_edits(f"secret move {' '.join(names)}".strip(), edits, secrets=moved)
    note(f"moved {counted(len(moved), 'key')} to the vault; `multitap undo` reverts it")
    return Exit.DONE


@secret.command("remove")
@click.argument("name")
def remove_secret(name: str) -> int:
    """Delete a secret"""
    Vault().remove(name)
    note(f"deleted {name!r}")
    return Exit.DONE


def _set_personal(
    options: CommonOptions, name: str, servers: tuple[str, ...], user: str, issuer: str | None
) -> int:
    if len(servers) != 1:
        raise ConfigError("a person's secret is for one server", hint="add `--server NAME`")
    loaded = load_configuration(options)
    require(loaded, servers[0])
    config = loaded.settings.servers[servers[0]]
    if not config.is_per_user:
        raise ConfigError(
            f"people have no accounts of their own at {servers[0]!r}",
            hint='set `credentials = "per-user"` for it',
        )
    if name not in keys_of(config):
        key_names = ", ".join(f"`{key}`" for key in keys_of(config)) or "none"
        raise ConfigError(
            f"{servers[0]!r} does not use the secret {name!r}", hint=f"it uses {key_names}"
        )
    person = find_person(loaded.settings, user, issuer)
    PersonalVault().set_key(person, *account_place(servers[0], config), name, _read_secret(name))
    note(f"stored {name!r} of {user} for {servers[0]!r}; running gateways use it by themselves")
    return Exit.DONE


def find_person(settings: Settings, user: str, issuer: str | None) -> Person:
    """The person that a command names.

    Raises:
        ConfigError: It is unclear who that is.
    """
    if issuer is not None:
        return Person(issuer, user)
    tokens = [token for token in AccessTokens().all() if user in {token.name, token.id}]
    # a token that replaced another has the accounts of the first one
    active = {token.owner or token.id for token in tokens if token.state(time.time()) == "active"}
    if len(active) == 1:
        return Person(TOKEN_ISSUER, *active)
    providers = [*settings.access.oidc.values()]
    if not active and len(providers) == 1:
        return Person(providers[0].issuer, user)
    several = f"{len(active)} tokens have that name" if active else "no token has that name"
    raise ConfigError(
        f"it is unclear who {user!r} is: {several}",
        hint="name the identity provider with `--issuer URL`, or a token by its id",
    )


def _read_secret(name: str) -> str:
    if sys.stdin.isatty():
        value: str = click.prompt(f"Value of {name}", hide_input=True, err=True)
        return value
    # with room for a line end; the vault refuses what is longer, so nothing is cut
    value = sys.stdin.read(LONGEST_VALUE + 2)
    # `echo` adds a line end that is not part of the secret
    return value.removesuffix("\n").removesuffix("\r")


def _place(vault: Vault, secret: Secret) -> str:
    return "the keyring" if secret.is_in_keyring else str(vault.file)


def _leaves(fields: Mapping[str, Any]) -> Iterator[Assignment]:
    """The values to set, with the members of a table one by one."""
    for key, value in fields.items():
        if isinstance(value, OAuth):
            yield Assignment((key, "client_secret"), value.client_secret)
        elif isinstance(value, Mapping):
            members: Mapping[str, object] = value  # pyright: ignore[reportUnknownVariableType]
            # to set the whole table would remove its other members
            yield from (Assignment((key, name), member) for name, member in members.items())
        else:
            yield Assignment((key,), [*value] if isinstance(value, tuple) else value)
