"""The secret that all replicas share: from a file, the environment, or the cluster itself."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from multitap.cluster.coordinator import Records
from multitap.errors import ConfigError

VARIABLE = "MULTITAP_CLUSTER_KEY"
_SIZE = 32
_LEAST = 16  # characters; the key protects everything that replicas say to each other
_PROOF = b"the key of a multitap cluster"
_HINT = f"give all replicas the same key: `--cluster-key-file FILE`, {VARIABLE}, or none of them"


def given_key(path: Path | None, environ: Mapping[str, str]) -> bytes | None:
    """The key that this replica was started with; None: the cluster has it.

    Raises:
        ConfigError: It cannot be read, or is too short.
    """
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"the cluster key {str(path)!r} cannot be read: {exc}") from None
        source = str(path)
    elif VARIABLE in environ:
        text, source = environ[VARIABLE], VARIABLE
    else:
        return None
    if len(text.strip()) < _LEAST:
        raise ConfigError(
            f"the cluster key in {source} is too short",
            hint=f"use at least {_LEAST} characters, such as `openssl rand -hex 32` prints",
        )
    return hashlib.sha256(text.strip().encode()).digest()


async def agree_on_key(records: Records, given: bytes | None) -> bytes:
    """The key of the cluster.

    Raises:
        ConfigError: It is another one than this replica was given.
    """
    if given is None:
        if await records.read("key-proof") is not None and await records.read("key") is None:
            raise ConfigError("the cluster has a key that this replica was not given", hint=_HINT)
        fresh = base64.b64encode(secrets.token_bytes(_SIZE))
        # replicas that start together all offer one: the first is kept, and all read that
        await records.swap("key", None, fresh)
        kept = await records.read("key") or fresh
        try:
            given = base64.b64decode(kept, validate=True)
        except binascii.Error:
            raise ConfigError("the key that the cluster keeps is damaged", hint=_HINT) from None
        await keep_key(records, given, is_shared=True)
    elif await records.read("key") is not None:
        raise ConfigError(
            "the cluster has a key of its own, and this replica was given another one", hint=_HINT
        )
    else:
        await keep_key(records, given, is_shared=False)
    # read again: another replica may have written its own proof first
    if not hmac.compare_digest(await records.read("key-proof") or b"", _proof(given)):
        raise ConfigError(
            "the cluster's key differs from the one that this replica was given", hint=_HINT
        )
    return given


async def keep_key(records: Records, key: bytes, *, is_shared: bool) -> None:
    """Write down what newcomers need; again after the coordinator has lost it."""
    if is_shared:
        await records.swap("key", None, base64.b64encode(key))
    await records.swap("key-proof", None, _proof(key))


def _proof(key: bytes) -> bytes:
    return hmac.digest(key, _PROOF, hashlib.sha256).hex().encode()
