"""OAuth tokens at rest: who issued them, and for whom."""

import contextlib
import hashlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import msgspec

from multitap.errors import MultitapError
from multitap.files import try_lock
from multitap.trust import vault
from multitap.trust.audit import recorder
from multitap.trust.private_file import PrivateFile
from multitap.trust.vault import private_folder

ClientAuth = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
"""How a client authenticates at an authorization server."""

_FILE = "logins.json"
_LOOK_AGAIN = 0.05  # seconds between attempts to get a lock that another process holds


class TokenStoreError(MultitapError):
    """The logins cannot be used; the message says why, and what to do."""


class LoginSecrets(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The secrets of a login."""

    access_token: str
    expires_at: float | None = None
    """By the system's clock; None if the authorization server states none."""
    refresh_token: str | None = None
    client_secret: str | None = None
    """The secret of a client that was registered for this login; not a configured one."""
    proof_key: str | None = None
    """The private key that the tokens are bound to (DPoP), as PEM."""
    keys: Mapping[str, str] = {}
    """Instead of tokens: the secrets that a person typed for a server, by name."""

    def __repr__(self) -> str:
        return "<LoginSecrets>"


class StoredLogin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One login: valid for one server at one URL, granted by one issuer."""

    server: str
    url: str
    issuer: str
    resource: str
    """The resource for which the tokens are valid, as the server states it (RFC 8707)."""
    token_endpoint: str
    revocation_endpoint: str | None = None
    client_id: str
    client_auth: ClientAuth = "none"
    registered: bool = False
    """Whether we registered the client, and can register it again."""
    redirect_uri: str = ""
    scope: str = ""
    """The granted scope, or the requested one if the answer has none."""
    changed_at: float = 0.0
    """By the system's clock; the later of two copies wins."""
    by_machine: bool = False
    """Whether a program logs in by itself: then only where it does so is stored, never a token."""
    secrets: LoginSecrets | None = None
    """None if the keyring has them, or if there are none to store."""


class _Content(msgspec.Struct, omit_defaults=True):
    version: int = 1
    logins: dict[str, StoredLogin] = {}


class TokenStore:
    """Keeps logins by server name and URL, beside the vault and by the same rules.

    All methods may wait for a disk, a lock or a keyring: do not call them on the event loop.

    Args:
        folder: The folder of the file; by default, the user's own.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = PrivateFile((folder or private_folder()) / _FILE, TokenStoreError)
        self._record = recorder(folder)

    @property
    def file(self) -> Path:
        return self._file.path

    def stamp(self) -> object:
        """A stamp that differs after every change of any login; cheap to read."""
        return self._file.stamp()

    def logins(self) -> Sequence[StoredLogin]:
        """All logins, without the secrets in the keyring.

        Raises:
            TokenStoreError: Others could read the file, or it is damaged.
        """
        return tuple(self._read().logins.values())

    def find(self, server: str, url: str) -> StoredLogin | None:
        """The login of a server, with its secrets; None if there is none for that URL."""
        login = self._read().logins.get(_key(server, url))
        if login is None or login.secrets is not None or login.by_machine:
            return login
        try:
            text = vault.read_from_keyring(_keyring_name(login))
        except vault.KeyringUnavailable as exc:
            raise TokenStoreError(str(exc), hint=exc.hint) from None
        if text is None:
            return None  # equivalent to logged out
        with contextlib.suppress(msgspec.DecodeError):
            secrets = msgspec.json.decode(text, type=LoginSecrets)
            return msgspec.structs.replace(login, secrets=secrets)
        return None

    def add(self, login: StoredLogin) -> None:
        """Store a login that a person just granted, with an audit entry."""
        self.save(login)
        detail = f"at {login.issuer}" + (f" with the scope {login.scope}" if login.scope else "")
        self._record("login", server=login.server, decision="allow", detail=detail)

    def note_failure(self, server: str, reason: str) -> None:
        """Record a failed login and its reason."""
        self._record("login.failed", server=server, decision="deny", detail=reason)

    def save(self, login: StoredLogin) -> None:
        """Store a login, in place of an earlier one of that server."""
        with self._file.hold_lock():
            content = self._read()
            # The keyring first: otherwise a crash could leave a login without its secrets.
            if login.by_machine or _keep_secrets(login):
                login = msgspec.structs.replace(login, secrets=None)
            content.logins[_key(login.server, login.url)] = login
            self._file.write(msgspec.json.encode(content))

    def remove(self, server: str, url: str) -> bool:
        """Forget a login; returns whether there was one."""
        with self._file.hold_lock():
            content = self._read()
            login = content.logins.pop(_key(server, url), None)
            if login is None:
                return False
            self._file.write(msgspec.json.encode(content))
        if login.secrets is None and not login.by_machine:
            vault.delete_from_keyring(_keyring_name(login))
        self._record("logout", server=server, decision="deny", detail=f"at {login.issuer}")
        return True

    @asynccontextmanager
    async def renewing(self, server: str, url: str) -> AsyncGenerator[None]:
        """Lock a login: while entered, no other process renews it."""
        async with holding_lock(self._file.path.parent, _key(server, url)):
            yield

    def _read(self) -> _Content:
        return self._file.load(_Content, repair="move it away, and log in again")


@asynccontextmanager
async def holding_lock(folder: Path, login: str) -> AsyncGenerator[None]:
    """While entered, no other process holds the lock of the same login."""
    # one lock per login: a slow authorization server does not delay others
    digest = hashlib.sha256(login.encode()).hexdigest()[:16]
    path = folder / f"login-{digest}.lock"
    file = PrivateFile(path, TokenStoreError)
    lock = await anyio.to_thread.run_sync(file.open_lock, path)
    try:
        # polled: a thread that waits for a lock cannot be cancelled
        while not try_lock(lock):
            await anyio.sleep(_LOOK_AGAIN)
        yield
    finally:
        os.close(lock)


def _keep_secrets(login: StoredLogin) -> bool:
    text = msgspec.json.encode(login.secrets).decode()
    return vault.store_in_keyring(_keyring_name(login), text)


# By URL as well: an entry that gets another address must not send it the tokens of the old one.
def _key(server: str, url: str) -> str:
    return f"{server} {url}"


def _keyring_name(login: StoredLogin) -> str:
    return f"login {_key(login.server, login.url)}"
