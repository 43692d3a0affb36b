"""The accounts of people at servers: tokens and keys, encrypted, each for one person and server.

An entry belongs to a person, which is an issuer and a subject there: e-mail addresses are given to
others, and one person has several clients. It is encrypted for exactly that person, server and
address, so that a row that somebody moves or copies cannot be opened.
"""

import sqlite3
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from multitap.config.models import HttpServer, ServerConfig
from multitap.config.variables import variables_of
from multitap.files import Stamp
from multitap.principal import Person
from multitap.trust.audit import recorder
from multitap.trust.private_file import PrivateDatabase
from multitap.trust.single_use import bind
from multitap.trust.stored_logins import LoginSecrets, StoredLogin, TokenStoreError, holding_lock
from multitap.trust.vault import VaultError, private_folder
from multitap.trust.vault_key import VaultKeys

FILE_NAME = "people.sqlite3"
_TABLE = """
CREATE TABLE IF NOT EXISTS accounts (
    issuer TEXT NOT NULL, subject TEXT NOT NULL, server TEXT NOT NULL, url TEXT NOT NULL,
    changed_at REAL NOT NULL, sealed BLOB NOT NULL,
    PRIMARY KEY (issuer, subject, server, url)
) WITHOUT ROWID
"""
_FIND = "SELECT sealed FROM accounts WHERE issuer=? AND subject=? AND server=? AND url=?"
_PUT = "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM accounts WHERE issuer=? AND subject=? AND server=? AND url=?"
_DROP_ALL = "DELETE FROM accounts WHERE issuer=? AND subject=?"
_LIST = "SELECT issuer, subject, server, url, changed_at FROM accounts ORDER BY 1, 2, 3, 4"
_ALL = "SELECT issuer, subject, server, url, sealed FROM accounts"
_RENEW = "UPDATE accounts SET sealed=? WHERE issuer=? AND subject=? AND server=? AND url=?"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredLogin).decode


class PersonalAccount(NamedTuple):
    """An entry, without its secrets."""

    person: Person
    server: str
    url: str
    changed_at: float


class PersonalVault:
    """Everybody's accounts at servers, in one file that only the gateway's user can read.

    All methods may wait for a disk or a keyring: do not call them on the event loop.

    Args:
        folder: The folder of the file; by default, the user's own.

    Raises:
        VaultError: From every method: the file or the key cannot be used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or private_folder()
        self._database = PrivateDatabase(self.folder / FILE_NAME, VaultError, (_TABLE,))
        self._keys = VaultKeys(self.folder, is_used=lambda: self.stamp() is not None)
        self._record = recorder(folder)

    def stamp(self) -> Stamp:
        """Differs after every change of any entry; cheap to read."""
        return self._database.stamp()

    def accounts(self, person: Person | None = None) -> Sequence[PersonalAccount]:
        """All entries, or those of one person."""
        if self.stamp() is None:
            return ()
        rows = self._database.use(lambda connection: connection.execute(_LIST).fetchall())
        entries = [PersonalAccount(Person(*row[:2]), *row[2:]) for row in rows]
        return [entry for entry in entries if person in {None, entry.person}]

    def servers_of_all(self) -> Mapping[Person, Sequence[str]]:
        """The servers at which each person has an account."""
        servers: dict[Person, list[str]] = {}
        for account in self.accounts():
            servers.setdefault(account.person, []).append(account.server)
        return servers

    def find(self, person: Person, server: str, url: str) -> StoredLogin | None:
        """An entry with its secrets; None if there is none, or it cannot be opened."""
        if self.stamp() is None:
            return None
        where = (*person, server, url)
        row = self._database.use(lambda connection: connection.execute(_FIND, where).fetchone())
        return None if row is None else self._open_sealed(row[0], where)

    def save(self, person: Person, login: StoredLogin) -> None:
        """Store an entry, in place of an earlier one for that server and address."""
        where = (*person, login.server, login.url)
        self._keys.seals()  # before there is a file: from then on, no first key is created

        def put(connection: sqlite3.Connection) -> None:
            # while nobody else changes entries: a rotation in between would forget the key
            sealed = self._keys.current().seal(_encode(login), _purpose(where))
            connection.execute(_PUT, (*where, login.changed_at, sealed))

        self._database.use(put)

    def remove(self, person: Person, server: str, url: str) -> bool:
        """Forget an entry; returns whether there was one."""
        if self.stamp() is None:
            return False
        where = (*person, server, url)
        return bool(
            self._database.use(lambda connection: connection.execute(_DROP, where).rowcount)
        )

    def remove_person(self, person: Person) -> int:
        """Forget everything of a person; returns how many entries that were."""
        if self.stamp() is None:
            return 0
        count = self._database.use(
            lambda connection: connection.execute(_DROP_ALL, person).rowcount
        )
        self._record("accounts.removed", subject=str(person), decision="deny")
        return count

    def set_key(self, person: Person, server: str, url: str, name: str, value: str) -> None:
        """Store one of the secrets that a person gives for a server, beside the others."""
        stored = self.find(person, server, url)
        keys = {**(stored.secrets.keys if stored and stored.secrets else {}), name: value}
        self.save(person, key_account(server, url, keys))
        self._record("secret.set", subject=f"{name} of {person}", server=server)

    def rotate(self) -> int:
        """Encrypt all entries with a new key; returns how many.

        An interruption loses nothing: until all entries have the new key, both are kept.
        """
        changed = self._keys.begin_change()
        count = self._database.use(self._seal_again)
        self._keys.end_change()
        place = self._keys.describe()
        detail = f"{count} entries; {'a new key in' if changed else 'the first key of'} {place}"
        self._record("vault.rotated", subject="accounts", detail=detail)
        return count

    @property
    def key_place(self) -> str:
        """Where the key is, for people."""
        return self._keys.describe()

    def note(self, kind: str, person: Person, server: str, detail: str, *, allow: bool) -> None:
        """Add an entry about a person's account to the audit log."""
        decision = "allow" if allow else "deny"
        self._record(kind, subject=str(person), server=server, decision=decision, detail=detail)

    def _seal_again(self, connection: sqlite3.Connection) -> int:
        seal, count = self._keys.current(), 0
        for *where, sealed in connection.execute(_ALL).fetchall():
            login = self._open_sealed(sealed, tuple(where))
            if login is None:
                raise VaultError(
                    f"the account of {where[1]} at {where[2]} cannot be opened with any key",
                    hint="add the old key after the new one, and try again",
                )
            fresh = seal.seal(_encode(login), _purpose(tuple(where)))
            count += connection.execute(_RENEW, (fresh, *where)).rowcount
        return count

    def _open_sealed(self, sealed: bytes, where: tuple[str, ...]) -> StoredLogin | None:
        for again in (False, True):  # another process may have changed the key
            for seal in self._keys.seals(again=again):
                if (opened := seal.unseal(sealed, _purpose(where))) is not None:
                    return _decode(opened.data)
        return None


class PersonalTokenStore:
    """One person's part of the vault; see `LoginStore`."""

    def __init__(self, vault: PersonalVault, person: Person) -> None:
        self._vault = vault
        self._person = person

    def find(self, server: str, url: str) -> StoredLogin | None:
        try:
            return self._vault.find(self._person, server, url)
        except VaultError as exc:
            raise TokenStoreError(str(exc), hint=exc.hint) from None

    def add(self, login: StoredLogin) -> None:
        self.save(login)
        detail = f"at {login.issuer}" if login.issuer else "a key of their own"
        self._vault.note("account.connected", self._person, login.server, detail, allow=True)

    def save(self, login: StoredLogin) -> None:
        self._vault.save(self._person, login)

    def remove(self, server: str, url: str) -> bool:
        if not self._vault.remove(self._person, server, url):
            return False
        self._vault.note("account.disconnected", self._person, server, "", allow=False)
        return True

    def note_failure(self, server: str, reason: str) -> None:
        self._vault.note("account.failed", self._person, server, reason, allow=False)

    @asynccontextmanager
    async def renewing(self, server: str, url: str) -> AsyncGenerator[None]:
        """Lock an entry: while entered, no other process renews it."""
        async with holding_lock(self._vault.folder, f"{self._person.mark} {server} {url}"):
            yield


def key_account(server: str, url: str, keys: dict[str, str]) -> StoredLogin:
    """The entry for secrets that a person types: no authorization server is part of it."""
    return StoredLogin(
        server=server,
        url=url,
        issuer="",
        resource="",
        token_endpoint="",
        client_id="",
        changed_at=time.time(),
        secrets=LoginSecrets(access_token="", keys=keys),
    )


def keys_of(config: ServerConfig) -> tuple[str, ...]:
    """The names of the keys that each person has to give for a server."""
    names = (
        reference.name
        for field, reference in variables_of(config)
        # the client that we are at an authorization server is the gateway's
        if reference.source == "auth" and not field.startswith("oauth.")
    )
    return tuple(dict.fromkeys(names))


def account_place(server: str, config: ServerConfig) -> tuple[str, str]:
    """Where a person's account at a server is kept: another address needs another account."""
    if isinstance(config, HttpServer):
        return config.login_name(server), config.url
    return server, ""


def _purpose(where: tuple[str, ...]) -> str:
    return f"account {bind(*where).hex()}"
