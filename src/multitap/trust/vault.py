"""Secrets at rest: in the system's keyring, or in a file that only its owner can read."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import platformdirs

from multitap.config.models import HttpServer, ServerConfig
from multitap.config.scope import Scope, Unresolved, expand
from multitap.errors import MultitapError, UnknownName, quoted

SERVICE = "multitap"
"""The name under which a keyring keeps our secrets."""
LONGEST_NAME, LONGEST_VALUE = 128, 64 * 1024
_FILE, _LOCK = "secrets.json", "lock"
_OTHERS = 0o077
_AUTH_VARIABLE = "${auth:"


class VaultError(MultitapError):
    """The vault cannot be used as it is; says why, and what to do."""


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the vault knows about one secret."""

    servers: tuple[str, ...] = ()
    """Servers that may use it; none named: every server of the user's own configuration."""
    origins: tuple[str, ...] = ()
    """Origins that it may be sent to; none named: wherever those servers are."""
    value: str | None = None
    """None: the keyring has it."""

    def __repr__(self) -> str:
        return f"<Secret for {self.servers or 'all'} at {self.origins or 'any origin'}>"

    @property
    def is_in_keyring(self) -> bool:
        return self.value is None


class _Content(msgspec.Struct, omit_defaults=True):
    version: int = 1
    secrets: dict[str, Secret] = {}


class Vault:
    """Keeps secrets by name.

    A file says which there are and who may use them. The values are in the system's keyring where
    one works, else in that file too, which only its owner may read.

    Args:
        folder: Where the file is; the user's own place if not given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        default = platformdirs.user_data_path("multitap", appauthor=False) / "vault"
        self.folder = folder or default

    @property
    def file(self) -> Path:
        return self.folder / _FILE

    def secrets(self) -> Mapping[str, Secret]:
        """All secrets by name, without the values that a keyring has.

        Raises:
            VaultError: Others could read the file, or it is damaged.
        """
        return self._read().secrets

    def set(
        self, name: str, value: str, *, servers: tuple[str, ...] = (), origins: tuple[str, ...] = ()
    ) -> Secret:
        """Keep a secret, in place of an earlier one of that name.

        Args:
            name: Letters, digits, anything printable that can stand in `${auth:NAME}`.
            value: The secret.
            servers: Who may use it.
            origins: Where it may be sent, as `https://host`.

        Raises:
            VaultError: The name or value cannot be kept, or the file cannot be used.
        """
        _check_name(name)
        if not value or len(value) > LONGEST_VALUE:
            raise VaultError(f"a secret has 1 to {LONGEST_VALUE:,} characters")
        checked = tuple(origin_of(origin) for origin in origins)
        with self._changing() as content:
            kept = None if _kept_by_keyring(name, value) else value
            secret = content.secrets[name] = Secret(servers, checked, kept)
        return secret

    def remove(self, name: str) -> None:
        """Forget a secret.

        Raises:
            UnknownName: There is none of that name.
        """
        with self._changing() as content:
            secret = content.secrets.pop(name, None)
            if secret is None:
                raise UnknownName(
                    f"no secret named {quoted(name)}", hint="`multitap secret list` shows them"
                )
        if secret.is_in_keyring:
            _forget_in_keyring(name)

    def value(self, name: str) -> str | None:
        """A secret's value, whoever asks; None where there is none of that name."""
        secret = self._read().secrets.get(name)
        if secret is None:
            return None
        return _from_keyring(name) if secret.value is None else secret.value

    def value_for(self, name: str, server: str, origin: str | None) -> str | None:
        """A secret's value for a server that may use it; None where there is none of that name.

        Args:
            name: Which one.
            server: Who wants it.
            origin: Where the server is; None for a program.

        Raises:
            Unresolved: The server may not use it.
        """
        secret = self._read().secrets.get(name)
        if secret is None:
            return None
        if secret.servers and server not in secret.servers:
            _refuse(name, f"is not for the server {quoted(server)}", f"--server {server}")
        if secret.origins and origin not in secret.origins:
            place = f"the origin {origin}" if origin else "a program"
            _refuse(name, f"is not for {place}", f"--origin {origin}" if origin else "")
        return self.value(name)

    def _read(self) -> _Content:
        try:
            handle = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return _Content()
        except OSError as exc:
            raise VaultError(f"{self.file} cannot be read: {exc.strerror}") from None
        with open(handle, "rb") as file:  # noqa: PTH123 - it is open already
            _check_owner(self.file, os.fstat(file.fileno()))
            _check_owner(self.folder, self.folder.stat())
            text = file.read()
        try:
            return msgspec.json.decode(text, type=_Content)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise VaultError(
                f"{self.file} is damaged: {exc}", hint="repair it, or move it away and start again"
            ) from None

    @contextmanager
    def _changing(self) -> Generator[_Content]:
        """Change the content; two who do so at the same time do it one after the other."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise VaultError(f"{self.folder} cannot be written: {exc.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self._read()
            yield content
            self._write(msgspec.json.encode(content))
        finally:
            os.close(lock)

    def _write(self, text: bytes) -> None:
        fresh = self.folder / f".{_FILE}.{os.getpid()}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(fresh, flags, 0o600), "wb") as file:  # noqa: PTH123 - for its mode
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.file)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            raise VaultError(f"{self.file} cannot be written: {exc.strerror}") from None


def scope_for(
    server: str, config: ServerConfig, folder: Path | None = None, *, is_own: bool = True
) -> Scope:
    """What the variables in a server's configuration stand for, secrets included.

    Args:
        server: Its name.
        config: Where it is, and what it wants.
        folder: The folder that is worked in; the current one if not given.
        is_own: Whether the user wrote all of its configuration; a project's gets no secret.
    """
    scope = Scope.of_process(folder)
    return replace(scope, auth=_secrets_for(server, config, scope, is_own=is_own))


def model_scope(folder: Path | None = None) -> Scope:
    """What the variables in a model's configuration stand for; to secrets it is called `model`."""
    return replace(Scope.of_process(folder), auth=partial(_value_or_reason, "model", None))


def _secrets_for(
    server: str, config: ServerConfig, scope: Scope, *, is_own: bool
) -> Callable[[str], str | None]:
    def look_up(name: str) -> str | None:
        if not is_own:
            raise Unresolved(
                f"the server of a project gets no secrets, and wants `{name}`",
                variable=name,
                hint="if you trust the project, name its file: `--config`, `MULTITAP_CONFIG`",
            )
        origin = None
        if isinstance(config, HttpServer) and _AUTH_VARIABLE not in config.url:
            origin = origin_of(expand(config.url, scope))
        return _value_or_reason(server, origin, name)

    return look_up


def _value_or_reason(server: str, origin: str | None, name: str) -> str | None:
    try:
        return Vault().value_for(name, server, origin)
    except VaultError as exc:
        raise Unresolved(str(exc), variable=name, hint=exc.hint) from None


def origin_of(url: str) -> str:
    """`https://host` or `https://host:port` of a web address.

    Raises:
        VaultError: It has none.
    """
    from yarl import URL  # noqa: PLC0415 - only secrets with origins need it

    try:
        return str(URL(url).origin())
    except ValueError:
        raise VaultError(
            f"{quoted(url)} is not a web address", hint="write `https://host`"
        ) from None


def _refuse(name: str, reason: str, option: str) -> None:
    command = " ".join(filter(None, ("multitap secret set", name, option)))
    raise Unresolved(f"the secret `{name}` {reason}", variable=name, hint=f"run `{command}`")


def _check_name(name: str) -> None:
    odd = not name.isprintable() or name != name.strip() or "}" in name or ":-" in name
    if not name or odd or len(name) > LONGEST_NAME:
        raise VaultError(
            f"{quoted(name)} cannot name a secret",
            hint=f"use up to {LONGEST_NAME} printable characters without `}}` and `:-`",
        )


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in {os.geteuid(), 0}:
        raise VaultError(f"{path} belongs to somebody else", hint="use a folder of your own")
    if status.st_mode & _OTHERS:
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise VaultError(f"others can read {path}", hint=f"run `chmod {mode} {path}`")


# A keyring is asked for what it just kept: some take everything and keep nothing.
def _kept_by_keyring(name: str, value: str) -> bool:
    import keyring  # noqa: PLC0415 - slow, and seldom needed
    from keyring.errors import KeyringError  # noqa: PLC0415

    try:
        keyring.set_password(SERVICE, name, value)
        return keyring.get_password(SERVICE, name) == value
    except (KeyringError, OSError, RuntimeError):
        return False


def _from_keyring(name: str) -> str:
    import keyring  # noqa: PLC0415 - see above
    from keyring.errors import KeyringError  # noqa: PLC0415

    try:
        value = keyring.get_password(SERVICE, name)
    except (KeyringError, OSError, RuntimeError) as exc:
        raise VaultError(f"the keyring does not answer: {exc}", hint="unlock it") from None
    if value is None:
        raise VaultError(
            f"the keyring has lost the secret {quoted(name)}",
            hint=f"run `multitap secret set {name}`",
        )
    return value


def _forget_in_keyring(name: str) -> None:
    import keyring  # noqa: PLC0415 - see above
    from keyring.errors import KeyringError  # noqa: PLC0415

    with contextlib.suppress(KeyringError, OSError, RuntimeError):
        keyring.delete_password(SERVICE, name)
