"""The secret that all replicas share: from a file, the environment, or the cluster itself."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

import anyio

from multitap.cluster.coordinator import Records
from multitap.errors import ConfigError

VARIABLE = "MULTITAP_CLUSTER_KEY"
_SIZE = 32
_LOOK = 0.1  # seconds between two checks for a key
_LEAST = 16  # characters; the key protects all messages between replicas
_PROOF = b"the key of a multitap cluster"
_HINT = f"give all replicas the same key: `--cluster-key-file FILE`, {VARIABLE}, or none of them"


def given_key(path: Path | None, environ: Mapping[str, str]) -> bytes | None:
    """The key in the file or the environment; None if neither is set.

    Raises:
        ConfigError: It cannot be read, or is too short.
    """
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
            raise ConfigError(f"the cluster key {str(path)!r} cannot be read: {reason}") from None
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


async def agree_on_key(records: Records, given: bytes | None, *, patience: float) -> bytes:
    """The key of the cluster.

    Args:
        records: Where replicas store it, or a proof of it.
        given: The key that this replica was started with.
        patience: Seconds to wait for others to store it again, before a new one is made.

    Raises:
        ConfigError: It differs from the key that this replica was given.
    """
    if given is None:
        key = await _shared_key(records, patience)
    elif await records.read("key") is not None:
        raise ConfigError(
            "the cluster has a key of its own, and this replica was given another one", hint=_HINT
        )
    else:
        key = given
    if not await keep_key(records, key, is_shared=given is None):
        raise ConfigError(
            "the cluster's key differs from the one that this replica was given", hint=_HINT
        )
    return key


async def keep_key(records: Records, key: bytes, *, is_shared: bool) -> bool:
    """Store the key or its proof again if it is missing; False if the cluster has another key."""
    proof, shared = _proof(key), base64.b64encode(key)
    # the key before its proof: a proof of another key would lock all replicas out
    if is_shared and not await _kept(records, "key", shared):
        return False
    return await _kept(records, "key-proof", proof)


async def _kept(records: Records, name: str, value: bytes) -> bool:
    # read first: it is nearly always there, and a script costs Redis more
    if await records.read(name) == value or await records.swap(name, None, value):
        return True
    # another replica was first, perhaps with the same key
    return await records.read(name) == value


async def _shared_key(records: Records, patience: float) -> bytes:
    """The key stored in the cluster; a new one if there is none."""
    until = anyio.current_time() + patience
    while True:
        is_proved = await records.read("key-proof") is not None
        kept = await records.read("key")
        if is_proved and kept is None:
            raise ConfigError("the cluster has a key that this replica was not given", hint=_HINT)
        # A coordinator without a key is new, or has lost everything. In that case the replicas
        # that run store their key again, and a new one would separate this one from them.
        if kept is not None or anyio.current_time() >= until:
            break
        await anyio.sleep(_LOOK)
    if kept is None:
        fresh = base64.b64encode(secrets.token_bytes(_SIZE))
        # replicas that start together all propose one: the first is kept, and all read that
        await records.swap("key", None, fresh)
        kept = await records.read("key") or fresh
    try:
        return base64.b64decode(kept, validate=True)
    except binascii.Error:
        raise ConfigError("the key that the cluster keeps is damaged", hint=_HINT) from None


def _proof(key: bytes) -> bytes:
    return hmac.digest(key, _PROOF, hashlib.sha256).hex().encode()
