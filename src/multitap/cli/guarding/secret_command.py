"""`multitap secret`: stores secrets in the vault, lists their names, deletes them."""

import sys

import click

from multitap.cli.exits import Exit
from multitap.cli.terminal.output import note, say_json
from multitap.cli.terminal.tables import table
from multitap.trust.secrets.vault import LONGEST_VALUE, Secret, Vault


def set_secret(name: str, servers: tuple[str, ...], origins: tuple[str, ...]) -> int:
    """Store a secret under a name."""
    vault = Vault()
    secret = vault.set(name, _read_secret(name), servers=servers, origins=origins)
    note(f"stored {name!r} in {_place(vault, secret)}; use it as `${{auth:{name}}}`")
    if not secret.is_in_keyring:
        note("no keyring works here: the file can be read by you alone, and is not encrypted")
    return Exit.DONE


def list_secrets(*, as_json: bool) -> int:
    """List the stored secrets, without their values."""
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


def remove_secret(name: str) -> int:
    """Delete a secret."""
    Vault().remove(name)
    note(f"deleted {name!r}")
    return Exit.DONE


def _read_secret(name: str) -> str:
    if sys.stdin.isatty():
        value: str = click.prompt(f"Value of {name}", hide_input=True, err=True)
        return value
    value = sys.stdin.read(LONGEST_VALUE + 2)
    # `echo` adds a line end that is not part of the secret
    return value.removesuffix("\n").removesuffix("\r")


def _place(vault: Vault, secret: Secret) -> str:
    return "the keyring" if secret.is_in_keyring else str(vault.file)
