"""Keyrings for tests: none at all, whatever the machine has, and one in a file."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import keyring
from keyring.backend import KeyringBackend
from keyring.backends import fail
from keyring.errors import PasswordDeleteError


@contextmanager
def no_keyring():
    """Nothing is written to the keyring of who runs the tests."""
    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())
    yield
    keyring.set_keyring(before)


class FolderKeyring(KeyringBackend):
    priority = -1  # nobody finds it by themselves

    def _file(self):
        return Path(os.environ["TEST_KEYRING"])

    def _read(self):
        return json.loads(self._file().read_text()) if self._file().exists() else {}

    def _write(self, kept):
        self._file().write_text(json.dumps(kept))

    def get_password(self, service, username):
        return self._read().get(f"{service} {username}")

    def set_password(self, service, username, password):
        self._write({**self._read(), f"{service} {username}": password})

    def delete_password(self, service, username):
        kept = self._read()
        if kept.pop(f"{service} {username}", None) is None:
            raise PasswordDeleteError(username)
        self._write(kept)
