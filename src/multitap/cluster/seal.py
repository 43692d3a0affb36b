"""Encrypts and authenticates shared data with the cluster's key."""

import os
from typing import TYPE_CHECKING

from multitap.later import Later

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives.ciphers import aead
else:
    exceptions = Later("cryptography.exceptions")
    aead = Later("cryptography.hazmat.primitives.ciphers.aead")

_NONCE = 12


class Seal:
    """Encrypts data, so that it cannot be read or changed without the key.

    Args:
        key: 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = aead.AESGCM(key)

    def seal(self, data: bytes, purpose: str) -> bytes:
        # random, since all replicas share the key and cannot share a counter
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, data, purpose.encode())

    def unseal(self, sealed: bytes, purpose: str) -> bytes | None:
        """The data sealed for a purpose; None if the purpose or the key differs."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], purpose.encode())
        except (exceptions.InvalidTag, ValueError):
            return None
