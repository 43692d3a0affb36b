"""What a sign-in gives a client: a code, then tokens that are renewed one after the other.

A sign-in is one record. Its access and refresh tokens only name it, sealed, so nobody can make one
up, and nothing is stored for requests of strangers. Each refresh token works once: one that comes
again was copied by somebody, and ends the whole sign-in.
"""

import hashlib
import hmac
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from anyio import to_thread

from multitap.errors import MultitapError
from multitap.identity.sign_in import ProviderTokens, SignInAttempt
from multitap.trust.private_file import PrivateDatabase
from multitap.trust.single_use import Seal, as_text, from_text
from multitap.trust.vault import private_folder

FILE_NAME = "sign-ins.sqlite3"
_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL
) WITHOUT ROWID
"""
_FOREVER = 1e18  # seconds since 1970: SQLite compares it like any other moment
ACCESS_PREFIX, REFRESH_PREFIX = "mta_", "mtr_"
"""How our tokens begin, so that scanners and people recognise them."""
CODE_LIFE = 60.0
"""Seconds to use a code: the client does so at once."""
HOP_LIFE = 600.0
"""Seconds to sign in at the provider."""
RENEWAL = 60.0
"""Seconds that the provider may take to renew a sign-in."""
_REPLAY = 600.0  # seconds for which a second use of a code is recognised
_TRIES = 5  # attempts of a change that races with others
Seals = Callable[[], Sequence[Seal]]
"""The keys: the first one seals, all of them unseal."""
_Sealed = TypeVar("_Sealed", bound=msgspec.Struct)
_ENDED = b"ended"  # not sealed, so it cannot be read as a sign-in


class RecordsUnavailable(MultitapError):
    """The file cannot be used."""


class SignInRecords(Protocol):
    """Small values by key; in a cluster, those of its coordinator."""

    async def read(self, key: str) -> bytes | None: ...

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        """Replace a value if it equals `expected`, None if missing; returns whether it did."""
        ...

    async def delete(self, key: str) -> bool: ...


class FileRecords:
    """Values in a SQLite file that only its owner can read; see `SignInRecords`."""

    def __init__(
        self, folder: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = (folder or private_folder()) / FILE_NAME
        self._database = PrivateDatabase(self.path, RecordsUnavailable, (_TABLE,))
        self._clock = clock

    async def read(self, key: str) -> bytes | None:
        def find(opened: sqlite3.Connection) -> bytes | None:
            return self._find(opened, key)

        return await to_thread.run_sync(self._database.use, find)

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        expires = _FOREVER if ttl is None else self._clock() + ttl

        def replace(opened: sqlite3.Connection) -> bool:
            # within one transaction: other processes use the same file
            if self._find(opened, key) != expected:
                return False
            # expired ones go with each write, so that the file does not grow
            opened.execute("DELETE FROM records WHERE expires <= ?", (self._clock(),))
            opened.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (key, value, expires))
            return True

        return await to_thread.run_sync(self._database.use, replace)

    async def delete(self, key: str) -> bool:
        def remove(opened: sqlite3.Connection) -> bool:
            return opened.execute("DELETE FROM records WHERE key = ?", (key,)).rowcount > 0

        return await to_thread.run_sync(self._database.use, remove)

    def _find(self, opened: sqlite3.Connection, key: str) -> bytes | None:
        query = "SELECT value FROM records WHERE key = ? AND expires > ?"
        row = opened.execute(query, (key, self._clock())).fetchone()
        return None if row is None else row[0]


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """One person who signed in with one client."""

    provider: str
    """The provider's name in the configuration."""
    issuer: str
    subject: str
    client_id: str
    client: str
    """A short form of the client's id, for people and rules."""
    scopes: tuple[str, ...]
    resource: str
    claims: Mapping[str, Any]
    signed_in: float
    tokens: ProviderTokens = ProviderTokens()
    generation: int = 0
    """How often it was renewed."""
    renewing: float = 0.0
    """Until when somebody renews it, in seconds since 1970; 0 if nobody does."""

    def __repr__(self) -> str:
        return f"<SignIn at {self.provider}>"


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """What a code stands for."""

    sign_in: SignIn | None
    """None once it was used."""
    id: str
    """The sign-in that it begins."""
    challenge: str
    redirect_uri: str
    is_explicit: bool
    """Whether the request named the redirect URI."""
    expires: float
    client_id: str


class AccessRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked a person for."""

    client_id: str
    client: str
    redirect_uri: str
    is_explicit: bool
    challenge: str
    scopes: tuple[str, ...]
    resource: str
    state: str | None = None


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """A person who agreed and is at the provider now."""

    request: AccessRequest
    browser: str
    """The value of the cookie of the browser in which they agreed."""
    attempt: SignInAttempt


class AccessClaim(msgspec.Struct, frozen=True, array_like=True):
    """The content of an access token."""

    id: str
    expires: float
    scopes: tuple[str, ...]


class _Ticket(msgspec.Struct, frozen=True, array_like=True):
    """The content of a code, and of the state of a sign-in at the provider."""

    id: str


class RefreshClaim(msgspec.Struct, frozen=True, array_like=True):
    """The content of a refresh token."""

    id: str
    generation: int


class Stolen(Exception):
    """A token or code that was used already came again.

    Args:
        sign_in: What was revoked for it, if there was anything.
    """

    def __init__(self, sign_in: SignIn | None) -> None:
        super().__init__("it was used before")
        self.sign_in = sign_in


class RenewalPending(MultitapError):
    """A refresh token came again while it is being used: it cannot be told yet what came of it."""


class Grants:
    """Issues codes and tokens, and knows which sign-ins are valid.

    Args:
        life: Seconds for which a sign-in can be renewed, from its last renewal on.
    """

    def __init__(
        self,
        records: SignInRecords,
        seals: Seals,
        life: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records = records
        self._seals = seals
        self._life = life
        self.clock = clock

    def seal(self, value: msgspec.Struct, purpose: str) -> str:
        """A text that only we can read."""
        return as_text(self._seals()[0].seal(msgspec.json.encode(value), purpose))

    def unseal(
        self, text: str, kind: type[_Sealed], purpose: str, life: float | None = None
    ) -> _Sealed | None:
        """The value in a text; None if it is not ours, for another purpose, or too old."""
        for seal in self._seals():
            opened = seal.unseal(from_text(text), purpose)
            if opened is not None and (life is None or opened.time + life > self.clock()):
                return _read(opened.data, kind)
        return None

    def derive(self, purpose: str, name: str) -> str:
        """A secret that belongs to a name, the same at every replica."""
        return self._seals()[0].name(purpose, name)

    async def take_once(self, kind: str, name: str, life: float) -> bool:
        """Whether something is used for the first time, at any replica."""
        return await self._records.swap(f"once/{kind}/{_digest(name)}", None, b"1", ttl=life)

    async def issue_code(self, code: Code) -> str:
        """A code for a client, to be used once."""
        key = f"code/{code.id}"
        await self._records.swap(key, None, self._pack(code, key), ttl=_REPLAY)
        return self.seal(_Ticket(code.id), "code")

    async def take_code(self, text: str, client_id: str) -> Code | None:
        """What a code stands for, once; None if there is no such code for this client.

        One attempt counts, whatever is wrong with the rest of the request: a thief cannot try.

        Raises:
            Stolen: It was used before; whatever came of it is revoked.
        """
        # sealed: what strangers invent is refused without a look at the records
        ticket = self.unseal(text, _Ticket, "code", _REPLAY)
        if ticket is None:
            return None
        key = f"code/{ticket.id}"
        stored = await self._records.read(key)
        code = self._unpack(stored, Code, key)
        # one for another client is not used up: only its own may try it
        if code is None or code.client_id != client_id:
            return None
        used = self._pack(msgspec.structs.replace(code, sign_in=None), key)
        if code.sign_in is None or not await self._records.swap(key, stored, used, ttl=_REPLAY):
            sign_in = await self.find(code.id)
            await self._prevent(code.id)
            raise Stolen(sign_in)
        return code

    def new_state(self) -> str:
        """A name for a sign-in at the provider that nobody else can make up."""
        return self.seal(_Ticket(secrets.token_urlsafe(18)), "state")

    async def keep_hop(self, state: str, hop: "Hop") -> None:
        """Remember why somebody is sent to the provider."""
        if (ticket := self.unseal(state, _Ticket, "state", HOP_LIFE)) is not None:
            key = f"hop/{ticket.id}"
            await self._records.swap(key, None, self._pack(hop, key), ttl=HOP_LIFE)

    async def take_hop(self, state: str, browser: str) -> "Hop | None":
        """Why somebody was sent to the provider, once, and only by the same browser."""
        ticket = self.unseal(state, _Ticket, "state", HOP_LIFE)
        if ticket is None:
            return None
        key = f"hop/{ticket.id}"
        hop = self._unpack(await self._records.read(key), Hop, key)
        # another browser gets nothing, and takes nothing away from the right one
        if hop is None or not hmac.compare_digest(hop.browser.encode(), browser.encode()):
            return None
        return hop if await self._records.delete(key) else None

    async def begin(self, sign_in_id: str, sign_in: SignIn, life: float) -> bool:
        """Store a new sign-in; False if its code was used twice meanwhile."""
        key = f"sign-in/{sign_in_id}"
        return await self._records.swap(key, None, self._pack(sign_in, key), ttl=life)

    async def find(self, sign_in_id: str) -> SignIn | None:
        """A sign-in; None if it has ended."""
        key = f"sign-in/{sign_in_id}"
        return self._unpack(await self._records.read(key), SignIn, key)

    def access_token(self, sign_in_id: str, scopes: Sequence[str], life: float) -> str:
        claim = AccessClaim(sign_in_id, self.clock() + life, tuple(scopes))
        return ACCESS_PREFIX + self.seal(claim, "access token")

    def refresh_token(self, sign_in_id: str, generation: int) -> str:
        return REFRESH_PREFIX + self.seal(RefreshClaim(sign_in_id, generation), "refresh token")

    def read_access(self, token: str) -> AccessClaim | None:
        """The content of an access token; None if it is not ours, or expired."""
        if not token.startswith(ACCESS_PREFIX):
            return None
        claim = self.unseal(token.removeprefix(ACCESS_PREFIX), AccessClaim, "access token")
        return claim if claim is not None and claim.expires > self.clock() else None

    def read_refresh(self, token: str) -> RefreshClaim | None:
        """The content of a refresh token; None if it is not ours."""
        if not token.startswith(REFRESH_PREFIX):
            return None
        return self.unseal(token.removeprefix(REFRESH_PREFIX), RefreshClaim, "refresh token")

    async def claim_renewal(self, claim: RefreshClaim) -> SignIn | None:
        """Be the only one who renews a sign-in, for a while; None if it has ended.

        Raises:
            Stolen: The refresh token was used before; the sign-in is revoked.
            RenewalPending: It is being used at this moment.
        """
        key = f"sign-in/{claim.id}"
        for _ in range(_TRIES):
            stored = await self._records.read(key)
            sign_in = self._unpack(stored, SignIn, key)
            if sign_in is None:
                return None
            if sign_in.generation != claim.generation:
                # its owner or a thief has the other copy, and nobody can tell which is which
                await self.revoke(claim.id)
                raise Stolen(sign_in)
            now = self.clock()
            if sign_in.renewing > now:
                # not theft yet: the provider may be slow, and the client impatient
                raise RenewalPending("this refresh token is being used")
            claimed = msgspec.structs.replace(sign_in, renewing=now + RENEWAL)
            if await self._records.swap(key, stored, self._pack(claimed, key), ttl=self._life):
                return claimed
        raise RenewalPending("this refresh token is being used")

    async def settle(self, sign_in_id: str, claimed: SignIn, after: SignIn) -> bool:
        """Store what became of a renewal; False if the sign-in was revoked or claimed again."""
        key = f"sign-in/{sign_in_id}"
        stored = await self._records.read(key)
        current = self._unpack(stored, SignIn, key)
        if (
            current is None
            or current.generation != claimed.generation
            or current.renewing != claimed.renewing
        ):
            return False
        settled = self._pack(msgspec.structs.replace(after, renewing=0.0), key)
        return await self._records.swap(key, stored, settled, ttl=self._life)

    async def revoke(self, sign_in_id: str) -> None:
        """End a sign-in, with all of its tokens."""
        await self._records.delete(f"sign-in/{sign_in_id}")

    async def _prevent(self, sign_in_id: str) -> None:
        """End a sign-in even if it is only just beginning."""
        # not deleted: `begin` stores a sign-in only where nothing is
        key = f"sign-in/{sign_in_id}"
        for _ in range(_TRIES):
            if await self._records.swap(key, await self._records.read(key), _ENDED, ttl=_REPLAY):
                return

    def _pack(self, value: msgspec.Struct, key: str) -> bytes:
        return self._seals()[0].seal(msgspec.json.encode(value), key)

    def _unpack(self, stored: bytes | None, kind: type[_Sealed], key: str) -> _Sealed | None:
        for seal in self._seals() if stored is not None else ():
            if (opened := seal.unseal(stored or b"", key)) is not None:
                return _read(opened.data, kind)
        return None


def _read(data: bytes, kind: type[_Sealed]) -> _Sealed | None:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:  # of another version
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
