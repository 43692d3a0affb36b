"""The keys that encrypt what people store at a gateway: where they come from, and their change."""

import base64
import binascii
import os
import secrets
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from multitap.files import Stamp
from multitap.trust.private_file import PrivateFile
from multitap.trust.single_use import Seal
from multitap.trust.vault import (
    KeyringUnavailable,
    VaultError,
    read_from_keyring,
    store_in_keyring,
)

VARIABLE = "MULTITAP_VAULT_KEY"
"""Contains the keys themselves."""
FILE_VARIABLE = "MULTITAP_VAULT_KEY_FILE"
"""Names a file that contains them."""
FILE_NAME = "vault.key"
_KEYRING_NAME = "vault key"
_BYTES = 32
_HINT = "a key is 32 random bytes in base64: `openssl rand -base64 32`"

Place = Literal["environment", "file", "keyring"]


class VaultKeys:
    """The keys of one vault: the first one encrypts, all of them decrypt.

    The environment comes first, then the file that it names, then the file in the vault's folder,
    then the system's keyring. If none of them has a key, one is created: in the keyring if one
    works, otherwise in the file.

    Args:
        folder: The vault's folder.
        is_used: Whether anything is encrypted already.

    Raises:
        VaultError: From every method: there are keys that cannot be used.
    """

    def __init__(self, folder: Path, is_used: Callable[[], bool]) -> None:
        self._is_used = is_used
        named = os.environ.get(FILE_VARIABLE)
        self._file = PrivateFile(Path(named) if named else folder / FILE_NAME, VaultError)
        self._stamp: Stamp = None
        self._seals: Sequence[Seal] = ()

    @cached_property
    def place(self) -> Place:
        """Where the keys are kept."""
        if os.environ.get(VARIABLE):
            return "environment"
        if FILE_VARIABLE in os.environ or self._file.stamp() is not None:
            return "file"
        try:
            if read_from_keyring(_KEYRING_NAME) is not None:
                return "keyring"
        except KeyringUnavailable as exc:
            # a locked keyring may have the key of what is there: a new one could not open it
            if self._is_used():
                raise VaultError(str(exc), hint=exc.hint) from None
        return self._create()

    def describe(self) -> str:
        """Where the keys are kept, for people."""
        match self.place:
            case "environment":
                return VARIABLE
            case "file":
                return str(self._file.path)
            case "keyring":
                return "the keyring"

    def seals(self, *, again: bool = False) -> Sequence[Seal]:
        """The keys, ready for use; read `again` if another process may have changed them."""
        stamp = self._file.stamp() if self.place == "file" else None
        if not self._seals or again or stamp != self._stamp:
            self._stamp = stamp
            self._seals = [Seal(key) for key in _parse(self._read(), self.describe())]
        return self._seals

    def current(self) -> Seal:
        """The key that encrypts; read again where nothing tells that it has changed."""
        return self.seals(again=self.place == "keyring")[0]

    def begin_change(self) -> bool:
        """Add a new key before the others; False in the environment, which cannot be changed."""
        if self.place == "environment":
            return False
        self._write(f"{_new_key()}\n{self._read()}")
        return True

    def end_change(self) -> None:
        """Forget all keys but the first: nothing is encrypted with them any more."""
        if self.place != "environment":
            self._write(self._read().split()[0])

    def _create(self) -> Place:
        key = _new_key()
        if store_in_keyring(_KEYRING_NAME, key):
            return "keyring"
        with self._file.hold_lock():
            if self._file.read() is None:  # or another process was first
                self._file.write(key.encode())
        return "file"

    def _read(self) -> str:
        match self.place:
            case "environment":
                return os.environ[VARIABLE]
            case "keyring":
                try:
                    return read_from_keyring(_KEYRING_NAME) or ""
                except KeyringUnavailable as exc:
                    raise VaultError(str(exc), hint=exc.hint) from None
            case "file":
                # decodes anything: what is not a key is refused, with a message
                return (self._file.read() or b"").decode("latin-1")

    def _write(self, keys: str) -> None:
        if self.place == "file":
            with self._file.hold_lock():
                self._file.write(keys.encode())
        elif not store_in_keyring(_KEYRING_NAME, keys):
            raise VaultError("the keyring does not store the key", hint="unlock it")
        self._seals = ()


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def _parse(text: str, place: str) -> list[bytes]:
    keys: list[bytes] = []
    for word in text.split():
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != _BYTES:
            # never the word itself: it may be a key with a typing error
            raise VaultError(f"{place}: key {len(keys) + 1} cannot be used", hint=_HINT)
        keys.append(key)
    if not keys:
        raise VaultError(f"{place} has no key for the accounts of people", hint=_HINT)
    return keys
