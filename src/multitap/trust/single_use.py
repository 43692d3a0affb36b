"""Binds what is issued to its purpose and a time, and lets it be used once.

Permissions, tickets, links and logins are issued for one principal, one thing and one state. In one
process they are remembered in `Issued`, in a cluster in records that all replicas share
(`SingleUse`). Data that leaves the process is sealed, with a time and a nonce inside; a
`ReplayGuard` accepts each message once.
"""

import base64
import hashlib
import hmac
import math
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from multitap.errors import MultitapError

WINDOW = 30.0
"""Seconds that a message between replicas may take, clocks that differ included."""
MOST_REMEMBERED = 32_768
"""Messages that a guard remembers; beyond that, it accepts only newer ones than it forgot."""

_NONCE = 12
_TIME = struct.Struct(">d")

Clocks = Callable[[], tuple[float, float]]
"""Reads a clock that never jumps but may stop, and one that never stops but may jump."""


def read_clocks() -> tuple[float, float]:
    """This machine's clocks, in seconds."""
    return time.monotonic(), time.time()


def as_text(data: bytes) -> str:
    """Data for addresses, cookies and headers, where `=` would be quoted: base64url."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_text(text: str) -> bytes:
    """What `as_text` was given; empty if it cannot be."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError:
        return b""


def bind(*binding: str | bytes) -> bytes:
    """A digest of values; other values, or the same ones split differently, have another."""
    hashed = hashlib.sha256()
    for part in binding:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8))
        hashed.update(data)
    return hashed.digest()


class Issued:
    """What was issued in this process and is not used yet.

    Args:
        most: The most that is remembered; beyond that, the oldest is dropped.
        clocks: Reads the clocks.
    """

    def __init__(self, most: int = 1024, *, clocks: Clocks = read_clocks) -> None:
        self._most = most
        self._clocks = clocks
        self._until: dict[bytes, tuple[float, float]] = {}

    def issue(self, *binding: str | bytes, life: float) -> None:
        """Allow one use within `life` seconds, by a caller that names the same values."""
        steady, wall = self._clocks()
        digest = bind(*binding)
        # removed and added again, so that the oldest is dropped first
        self._until.pop(digest, None)
        self._until[digest] = steady + life, wall + life
        if len(self._until) > self._most:
            del self._until[next(iter(self._until))]

    def take(self, *binding: str | bytes) -> bool:
        """Use what was issued for these values; False if it was not, was used or has expired."""
        until = self._until.pop(bind(*binding), None)
        steady, wall = self._clocks()
        # whichever is first: one clock stops while the machine sleeps, the other may be set back
        return until is not None and steady < until[0] and wall < until[1]

    def forget(self) -> None:
        """Invalidate everything that was issued."""
        self._until.clear()


class Unsealed(NamedTuple):
    """Sealed data, and when it was sealed."""

    data: bytes
    time: float
    """By the clock of the one who sealed it."""
    nonce: bytes
    """Different for all that is sealed."""


class Seal:
    """Encrypts data, so that it cannot be read or changed without the key.

    Args:
        key: 32 bytes.
        clock: Seconds since 1970; for messages, by a clock that all holders of the key share.
    """

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import

        self._key = key
        self._cipher = AESGCM(key)
        self.clock = clock

    def seal(self, data: bytes, purpose: str) -> bytes:
        # random, since all replicas share the key and cannot share a counter
        nonce = os.urandom(_NONCE)
        timed = _TIME.pack(self.clock()) + data
        return nonce + self._cipher.encrypt(nonce, timed, purpose.encode())

    def unseal(self, sealed: bytes, purpose: str) -> Unsealed | None:
        """The data sealed for a purpose; None if the purpose or the key differs."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

        nonce = sealed[:_NONCE]
        try:
            timed = self._cipher.decrypt(nonce, sealed[_NONCE:], purpose.encode())
            (moment,) = _TIME.unpack_from(timed)
        except (InvalidTag, ValueError, struct.error):
            return None
        return Unsealed(timed[_TIME.size :], moment, nonce)

    def name(self, *binding: str | bytes) -> str:
        """A name that only holders of the key can derive from these values."""
        return hmac.digest(self._key, b"name" + bind(*binding), "sha256").hex()


class ReplayGuard:
    """Accepts each message once, and no old ones.

    Args:
        clock: The clock that the messages are sealed by.
        since: The time before which everything is old.
        window: Seconds after which a message is old.
        most: How many messages are remembered.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        since: float = -math.inf,
        window: float = WINDOW,
        most: int = MOST_REMEMBERED,
    ) -> None:
        self._clock = clock
        self._since = since
        self._window = window
        self._most = most
        self._seen: dict[bytes, float] = {}

    def accept(self, message: Unsealed) -> bool:
        """Whether a message is recent and has not been accepted before."""
        now = self._clock()
        while self._seen and next(iter(self._seen.values())) < now - self._window:
            self._drop_oldest()
        is_recent = max(self._since, now - self._window) < message.time <= now + self._window
        if not is_recent or message.nonce in self._seen:
            return False
        self._seen[message.nonce] = message.time
        if len(self._seen) > self._most:
            self._drop_oldest()
        return True

    def _drop_oldest(self) -> None:
        # what is no longer remembered stays refused, even if the clock is set back
        nonce = next(iter(self._seen))
        self._since = max(self._since, self._seen.pop(nonce))


class SharedRecords(Protocol):
    """Records that all replicas share; implemented by a cluster's coordinator."""

    async def read(self, key: str) -> bytes | None: ...

    async def write(self, key: str, value: bytes, *, ttl: float | None = None) -> None: ...

    async def delete(self, key: str) -> bool: ...


class SingleUse:
    """What was issued and is not used yet, in this process or in all replicas of a cluster.

    Args:
        life: Seconds after which it expires.
        most: The most that this process remembers.
        clocks: Reads the clocks.
    """

    def __init__(self, life: float, *, most: int = 1024, clocks: Clocks = read_clocks) -> None:
        self._life = life
        self._here = Issued(most, clocks=clocks)
        self._cluster: tuple[SharedRecords, Seal, ReplayGuard] | None = None

    def share(self, records: SharedRecords, seal: Seal) -> None:
        """Remember in records from now on what all replicas may use."""
        self._cluster = records, seal, ReplayGuard(seal.clock, window=self._life)

    async def issue(self, *binding: str | bytes) -> None:
        """Allow one use by a caller that names the same values."""
        if self._cluster is None:
            self._here.issue(*binding, life=self._life)
            return
        records, seal, _ = self._cluster
        name = f"once/{seal.name(*binding)}"
        # If it cannot be stored, it is not issued: kept here and there, it could be used twice.
        with suppress(MultitapError):
            await records.write(name, seal.seal(b"", name), ttl=self._life)

    async def take(self, *binding: str | bytes) -> bool:
        """Use what was issued for these values; False if it was not, was used or has expired."""
        if self._cluster is None:
            return self._here.take(*binding)
        records, seal, guard = self._cluster
        name = f"once/{seal.name(*binding)}"
        try:
            sealed = await records.read(name)
            issued = None if sealed is None else seal.unseal(sealed, name)
            # Deleted by one replica only. The guard refuses a used one that somebody puts back.
            return issued is not None and await records.delete(name) and guard.accept(issued)
        except MultitapError:  # the coordinator is down
            return False
