"""`multitap vault`: the accounts that people have connected, and the key that encrypts them."""

import time

import click

from multitap.cli.options import CommandGroup, json_option
from multitap.cli.terminal import Exit, note, say_json, table
from multitap.errors import counted
from multitap.trust.personal_vault import PersonalVault


@click.group(cls=CommandGroup)
def vault() -> None:
    """Show the accounts that people connected, and change their key"""


@vault.command("list")
@json_option
def list_accounts(*, as_json: bool) -> int:
    """List who has connected an account at which server"""
    accounts = PersonalVault().accounts()
    if as_json:
        say_json(
            [
                {
                    "issuer": account.person.issuer,
                    "subject": account.person.subject,
                    "server": account.server,
                    "url": account.url,
                    "changed_at": account.changed_at,
                }
                for account in accounts
            ]
        )
    elif not accounts:
        note("nobody has connected an account of their own yet")
    else:
        rows = [
            (
                str(account.person),
                account.server,
                time.strftime("%Y-%m-%d %H:%M", time.localtime(account.changed_at)),
            )
            for account in accounts
        ]
        table(("PERSON", "SERVER", "CHANGED"), rows)
    return Exit.DONE


@vault.command()
def rotate() -> int:
    """Encrypt all accounts with a new key

    Running gateways use the new key at once. A key in the environment is not changed: put a new one
    before the old one, run this, then remove the old one.
    """
    personal = PersonalVault()
    count = personal.rotate()
    note(f"encrypted {counted(count, 'account')} with the key in {personal.key_place}")
    return Exit.DONE
