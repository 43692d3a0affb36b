"""Loads a gateway's tokens from the user's store and a file, again when they change."""

import logging
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.to_thread

from multitap.errors import ConfigError, MultitapError
from multitap.http.server.access import Admitted, Token, read_tokens
from multitap.http.server.rate_limit import Rate, RateLimit
from multitap.records import dataclass
from multitap.trust.access_tokens import AccessToken, AccessTokens, parts

logger = logging.getLogger(__name__)

_Stamp = tuple[int, ...] | None
_UNREAD = (-1,)


@dataclass(frozen=True, slots=True)
class _Key:
    """One active token, and what it admits."""

    token: AccessToken
    admitted: Admitted


class ActiveKeys:
    """The user's active tokens; a `TokenHashes`."""

    def __init__(self, keys: Mapping[str, _Key] = MappingProxyType({})) -> None:
        self._keys = keys
        self.tokens = {token_id: key.token for token_id, key in keys.items()}
        """By id."""
        self.used: dict[str, float] = {}
        """When tokens were last used, by id, if that is not saved yet."""

    def with_tokens(self, tokens: Iterable[AccessToken]) -> "ActiveKeys":
        """The same with other tokens; rates that are partly used stay so."""
        known = self._keys
        after = ActiveKeys(
            {
                one.id: known[one.id] if self.tokens.get(one.id) == one else _key(one)
                for one in tokens
            }
        )
        after.used = self.used
        return after

    def find(self, bearer: bytes) -> Admitted | None:
        return self._find(bearer, is_console=False)

    def find_console(self, given: bytes) -> Admitted | None:
        """The owner of a token for the web console; see `find`."""
        return self._find(given, is_console=True)

    def _find(self, bearer: bytes, *, is_console: bool) -> Admitted | None:
        if (found := parts(bearer)) is None:
            return None
        token_id, secret = found
        key, now = self._keys.get(token_id), time.time()
        # a token for the console is not valid for clients, and the other way round
        if key is None or key.token.is_console is not is_console:
            return None
        if not key.token.opens_with(secret) or key.token.state(now) != "active":
            return None
        self.used[token_id] = now
        return key.admitted


class TokenSources:
    """The current tokens of a gateway.

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, store: AccessTokens, file: Path | None = None) -> None:
        self._store = store
        self._file = file
        self._all: tuple[AccessToken, ...] = ()
        self._store_stamp: _Stamp = _UNREAD
        self._file_stamp: _Stamp = None
        self.revoked_elsewhere: frozenset[str] = frozenset()
        """The ids of tokens that other replicas of a cluster revoked."""
        self.keys = ActiveKeys()
        self.tokens: tuple[Token, ...] = ()
        if file is not None:
            self._file_stamp = _stamp(file)
            self.tokens = read_tokens(file)
        self.refresh()

    def __len__(self) -> int:
        """How many tokens admit clients."""
        clients = sum(not one.is_console for one in self.keys.tokens.values())
        return clients + len(self.tokens)

    def refresh(self) -> frozenset[str] | None:
        """Read changed sources again; the principals that lost access, or None without a change."""
        before, tokens, keys = self._principals(), self.tokens, self.keys
        self._read_store()
        self._read_file()
        now = time.time()
        gone = self.revoked_elsewhere
        active = tuple(
            one for one in self._all if one.state(now) == "active" and one.id not in gone
        )
        if {one.id: one for one in active} != keys.tokens:
            self.keys = keys.with_tokens(active)
        if self.tokens is tokens and self.keys is keys:
            return None
        after = self._principals()
        return frozenset(who for who, what in before.items() if after.get(who) != what)

    @property
    def revoked_here(self) -> frozenset[str]:
        """The ids of tokens that were revoked in the store."""
        return frozenset(one.id for one in self._all if one.revoked is not None)

    async def note_uses(self) -> None:
        """Save when tokens were last used."""
        # swapped before the await: uses during it go to the next note
        used, self.keys.used = self.keys.used, {}
        if used:
            try:
                await anyio.to_thread.run_sync(self._store.note_uses, used)
            except (MultitapError, OSError) as exc:
                logger.warning("the last use of tokens cannot be saved: %s", exc)

    def _principals(self) -> dict[str, AccessToken | Token]:
        return {**{token.principal: token for token in self.tokens}, **self.keys.tokens}

    def _read_store(self) -> None:
        stamp = self._store.stamp()
        if stamp == self._store_stamp:
            return
        # taken before the read: a change during it has another stamp, and is read next time
        self._store_stamp = stamp
        try:
            self._all = tuple(self._store.all())
        except (MultitapError, OSError) as exc:  # its folder may be removed at this moment
            logger.warning("keeping the previous tokens: %s", exc)

    def _read_file(self) -> None:
        if self._file is None or (stamp := _stamp(self._file)) == self._file_stamp:
            return
        self._file_stamp = stamp
        try:
            tokens = read_tokens(self._file)
        except ConfigError as exc:
            logger.warning("keeping the previous tokens: %s", exc)
            return
        if tokens != self.tokens:
            self.tokens = tokens


def _key(token: AccessToken) -> _Key:
    rate = RateLimit(Rate.parse(token.rate)) if token.rate else None
    return _Key(token, Admitted(token.id, token.profile, token.allow, rate))


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):  # a pipe can be read only once
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
