"""OAuth tokens at rest: who issued them, and for whom."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import msgspec

from multitap.errors import MultitapError
from multitap.trust.audit import recorder
from multitap.trust.private_file import PrivateFile
from multitap.trust.secrets import system_keyring
from multitap.trust.secrets.vault import private_folder

ClientAuth = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
"""How a client shows an authorization server who it is."""

_FILE = "logins.json"
_LOOK_AGAIN = 0.05  # seconds until a lock that another process holds is tried again


class TokenStoreError(MultitapError):
    """The logins cannot be used as they are; says why, and what to do."""


class LoginSecrets(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What nobody else may see of a login."""

    access_token: str
    expires_at: float | None = None
    """By the system's clock; None if the authorization server did not say."""
    refresh_token: str | None = None
    client_secret: str | None = None
    """Of a client that was registered for this login; a configured one stays where it is."""
    proof_key: str | None = None
    """The private key that the tokens are bound to (DPoP), as PEM."""

    def __repr__(self) -> str:
        return "<LoginSecrets>"


class StoredLogin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One login: good for one server at one URL, given by one issuer."""

    server: str
    url: str
    issuer: str
    resource: str
    """What the tokens are good for, in the words of the server (RFC 8707)."""
    token_endpoint: str
    revocation_endpoint: str | None = None
    client_id: str
    client_auth: ClientAuth = "none"
    registered: bool = False
    """Whether the client was registered by us, and can be registered again."""
    redirect_uri: str = ""
    scope: str = ""
    """What was granted, or asked for where the answer did not say."""
    changed_at: float = 0.0
    """By the system's clock; of two copies, the later one holds."""
    secrets: LoginSecrets | None = None
    """None if the keyring has them."""


class _Content(msgspec.Struct, omit_defaults=True):
    version: int = 1
    logins: dict[str, StoredLogin] = {}


class TokenStore:
    """Keeps logins by server name and URL, beside the vault and by the same rules.

    Everything here may wait for a disk, a lock or a keyring: off the loop, please.

    Args:
        folder: Where the file is; the user's own place if not given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = PrivateFile((folder or private_folder()) / _FILE, TokenStoreError)
        self._record = recorder(folder)

    @property
    def file(self) -> Path:
        return self._file.path

    def stamp(self) -> object:
        """Differs after every change of any login; cheap enough to look at often."""
        return self._file.stamp()

    def logins(self) -> Sequence[StoredLogin]:
        """All of them, without what the keyring has.

        Raises:
            TokenStoreError: Others could read the file, or it is damaged.
        """
        return tuple(self._read().logins.values())

    def find(self, server: str, url: str) -> StoredLogin | None:
        """The login of a server, with its secrets; None where there is none for that URL."""
        login = self._read().logins.get(_key(server, url))
        if login is None or login.secrets is not None:
            return login
        try:
            text = system_keyring.recall(_keyring_name(login))
        except system_keyring.KeyringUnavailable as exc:
            raise TokenStoreError(str(exc), hint=exc.hint) from None
        if text is None:
            return None  # as good as logged out
        with contextlib.suppress(msgspec.DecodeError):
            secrets = msgspec.json.decode(text, type=LoginSecrets)
            return msgspec.structs.replace(login, secrets=secrets)
        return None

    def add(self, login: StoredLogin) -> None:
        """Keep the login that a person just granted, and record that they did."""
        self.save(login)
        words = f"at {login.issuer}" + (f" with the scope {login.scope}" if login.scope else "")
        self._record("login", server=login.server, decision="allow", detail=words)

    def note_failure(self, server: str, words: str) -> None:
        """Record that a person was asked to log in, and why nothing came of it."""
        self._record("login.failed", server=server, decision="deny", detail=words)

    def save(self, login: StoredLogin) -> None:
        """Keep a login, in place of an earlier one of that server."""
        with self._file.hold_lock():
            content = self._read()
            text = msgspec.json.encode(login.secrets).decode()
            # The keyring before the file: the other way round, a crash leaves a login whose secrets
            # are nowhere.
            if system_keyring.keep(_keyring_name(login), text):
                login = msgspec.structs.replace(login, secrets=None)
            content.logins[_key(login.server, login.url)] = login
            self._file.write(msgspec.json.encode(content))

    def remove(self, server: str, url: str) -> bool:
        """Forget a login; whether there was one."""
        with self._file.hold_lock():
            content = self._read()
            login = content.logins.pop(_key(server, url), None)
            if login is None:
                return False
            self._file.write(msgspec.json.encode(content))
        if login.secrets is None:
            system_keyring.forget(_keyring_name(login))
        self._record("logout", server=server, decision="deny", detail=f"at {login.issuer}")
        return True

    @asynccontextmanager
    async def renewing(self, server: str, url: str) -> AsyncGenerator[None]:
        """Within the block nobody else, in whatever process, renews that login."""
        # a lock of its own for each: one slow authorization server holds up nobody else
        digest = hashlib.sha256(_key(server, url).encode()).hexdigest()[:16]
        path = self._file.path.with_name(f"login-{digest}.lock")
        lock = await anyio.to_thread.run_sync(self._file.open_lock, path)
        try:
            # tried again and again, not waited for: a thread that waits cannot be given up
            while not _taken(lock):
                await anyio.sleep(_LOOK_AGAIN)
            yield
        finally:
            os.close(lock)

    def _read(self) -> _Content:
        return self._file.load(_Content, repair="move it away, and log in again")


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# By URL as well: an entry that gets another address must not send it the tokens of the old one.
def _key(server: str, url: str) -> str:
    return f"{server} {url}"


def _keyring_name(login: StoredLogin) -> str:
    return f"login {_key(login.server, login.url)}"
