"""Secrets at rest: in the system keyring, or in a file only its owner can read."""

import contextlib
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from multitap.config.models import HttpServer, ServerConfig
from multitap.config.variables import Scope, Unresolved, expand
from multitap.errors import MultitapError, UnknownName, quoted
from multitap.files import USER_FOLDERS
from multitap.trust.audit import recorder
from multitap.trust.private_file import PrivateFile

KEYRING_SERVICE = "multitap"
"""Our service name in a keyring."""


class KeyringUnavailable(MultitapError):
    """The keyring cannot be read."""


def store_in_keyring(name: str, value: str) -> bool:
    """Store a text; returns whether the keyring has it now.

    The text is read back: some keyrings accept everything and store nothing.
    """
    import keyring  # noqa: PLC0415 - slow, and seldom needed
    from keyring.errors import KeyringError  # noqa: PLC0415

    try:
        keyring.set_password(KEYRING_SERVICE, name, value)
        return keyring.get_password(KEYRING_SERVICE, name) == value
    except (KeyringError, OSError, RuntimeError):
        return False


def read_from_keyring(name: str) -> str | None:
    """The text of that name; None if it is lost.

    Raises:
        KeyringUnavailable: It does not answer.
    """
    import keyring  # noqa: PLC0415 - see above
    from keyring.errors import KeyringError  # noqa: PLC0415

    try:
        return keyring.get_password(KEYRING_SERVICE, name)
    except (KeyringError, OSError, RuntimeError) as exc:
        raise KeyringUnavailable(f"the keyring does not answer: {exc}", hint="unlock it") from None


def delete_from_keyring(name: str) -> None:
    """Delete a text."""
    import keyring  # noqa: PLC0415 - see above
    from keyring.errors import KeyringError  # noqa: PLC0415

    with contextlib.suppress(KeyringError, OSError, RuntimeError):
        keyring.delete_password(KEYRING_SERVICE, name)


LONGEST_NAME, LONGEST_VALUE = 128, 64 * 1024
_FILE = "secrets.json"
_AUTH_VARIABLE = "${auth:"
_REPAIR = "repair it, or move it away and start again"


class VaultError(MultitapError):
    """The vault cannot be used; the message says why, and what to do."""


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """The vault's record of one secret."""

    servers: tuple[str, ...] = ()
    """Servers that may use it; if empty, every server of the user's own configuration."""
    origins: tuple[str, ...] = ()
    """Origins that it may be sent to; if empty, those of the servers."""
    value: str | None = None
    """None if the keyring has it."""

    def __repr__(self) -> str:
        return f"<Secret for {self.servers or 'all'} at {self.origins or 'any origin'}>"

    @property
    def is_in_keyring(self) -> bool:
        return self.value is None


class _VaultContent(msgspec.Struct, omit_defaults=True):
    version: int = 1
    secrets: dict[str, Secret] = {}


class Vault:
    """Keeps secrets by name.

    A file lists the secrets and who may use them. The values are in the system's keyring if one
    works, otherwise in that file too, which only its owner may read.

    Args:
        folder: The folder of the file; by default, the user's own.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or private_folder()
        self._record = recorder(folder)
        self._file = PrivateFile(self.folder / _FILE, VaultError)

    @property
    def file(self) -> Path:
        return self._file.path

    def secrets(self) -> Mapping[str, Secret]:
        """All secrets by name, without the values that a keyring has.

        Raises:
            VaultError: Others could read the file, or it is damaged.
        """
        return self._read().secrets

    def set(
        self, name: str, value: str, *, servers: tuple[str, ...] = (), origins: tuple[str, ...] = ()
    ) -> Secret:
        """Store a secret, in place of an earlier one of that name.

        Only `servers` may use it, and it is sent only to `origins`, such as `https://host`.

        Raises:
            VaultError: The name or value is not allowed, or the file cannot be used.
        """
        _check_name(name)
        if not value or len(value) > LONGEST_VALUE:
            raise VaultError(f"a secret has 1 to {LONGEST_VALUE:,} characters")
        checked = tuple(origin_of(origin) for origin in origins)
        with self._changing() as content:
            # the keyring first: a name in the file must have its value
            stored = None if store_in_keyring(name, value) else value
            secret = content.secrets[name] = Secret(servers, checked, stored)
        bound = ", ".join((*servers, *checked))
        self._record("secret.set", subject=name, detail=f"for {bound}" if bound else "")
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
            # after the file, for the same reason
            delete_from_keyring(name)
        self._record("secret.removed", subject=name)

    def value(self, name: str) -> str | None:
        """A secret's value, regardless of who asks; None if there is none of that name."""
        secret = self._read().secrets.get(name)
        if secret is None:
            return None
        return _from_keyring(name) if secret.value is None else secret.value

    def value_for(self, name: str, server: str, origin: str | None) -> str | None:
        """A secret's value for a server that may use it; None if there is none of that name.

        Args:
            name: The name of the secret.
            server: The server that wants it.
            origin: The server's origin; None for a program.

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

    def _read(self) -> _VaultContent:
        return self._file.load(_VaultContent, repair=_REPAIR)

    def _changing(self) -> AbstractContextManager[_VaultContent]:
        return self._file.changing(_VaultContent, repair=_REPAIR)


def private_folder() -> Path:
    """The folder of the user's secrets and logins."""
    return USER_FOLDERS.user_data_path / "vault"


def scope_for(
    server: str,
    config: ServerConfig,
    folder: Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    granted: Collection[str] = (),
) -> Scope:
    """The scope for a server's variables, with its secrets.

    Args:
        server: Its name.
        config: Its configuration.
        folder: The working folder; by default, the current one.
        env: The variables; by default, those of this process.
        granted: The secrets that a project's server may use; it gets no others.
    """
    scope = replace(_scope_in(folder, env), base=config.home.paths)
    return replace(scope, auth=_secrets_for(server, config, scope, granted))


def model_scope(folder: Path | None = None, env: Mapping[str, str] | None = None) -> Scope:
    """The scope for a model's variables; for secrets, it counts as the server `model`."""
    return replace(_scope_in(folder, env), auth=partial(_value_or_reason, "model", None))


def _scope_in(folder: Path | None, env: Mapping[str, str] | None) -> Scope:
    scope = Scope.of_process(folder)
    return scope if env is None else replace(scope, env=env)


def _secrets_for(
    server: str, config: ServerConfig, scope: Scope, granted: Collection[str]
) -> Callable[[str], str | None]:
    def look_up(name: str) -> str | None:
        if config.provenance == "project" and name not in granted:
            raise Unresolved(
                f"it comes with a project, and you have not granted it the secret `{name}`",
                variable=name,
                hint="`multitap trust` shows it and asks",
            )
        origin = None
        # The origin of an address that contains a secret cannot be checked before the secret is
        # known; such a server gets no secret that is bound to an origin.
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
        VaultError: It is not a web address.
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
    # the last two would end a variable, or begin its default
    odd = not name.isprintable() or name != name.strip() or "}" in name or ":-" in name
    if not name or odd or len(name) > LONGEST_NAME:
        raise VaultError(
            f"{quoted(name)} cannot name a secret",
            hint=f"use up to {LONGEST_NAME} printable characters without `}}` and `:-`",
        )


def _from_keyring(name: str) -> str:
    try:
        value = read_from_keyring(name)
    except KeyringUnavailable as exc:
        raise VaultError(str(exc), hint=exc.hint) from None
    if value is None:
        raise VaultError(
            f"the keyring has lost the secret {quoted(name)}",
            hint=f"run `multitap secret set {name}`",
        )
    return value
