"""The tokens of a gateway: from the user's store and a file, read again when they change."""

import hashlib
import logging
import math
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.to_thread
import msgspec

from multitap.config.access import ToolGrant
from multitap.errors import ConfigError, MultitapError
from multitap.limits import Rate, RateLimit
from multitap.principal import ANONYMOUS, Principal, token_principal
from multitap.trust.tokens import AccessToken, AccessTokens, parts

logger = logging.getLogger(__name__)

_Stamp = tuple[int, ...] | None
_UNREAD = (-1,)
_LARGEST = 16 * 1024 * 1024  # bytes of a file of tokens
# characters: shorter ones can be guessed over a network
_SHORTEST = 16


class Token(msgspec.Struct, frozen=True):
    """One token of a token file."""

    secret: bytes
    principal: str
    profile: str | None = None
    subject: str = ""
    """Whose accounts it uses; by default, those of its name."""

    def __repr__(self) -> str:
        return f"<Token of {self.principal!r}>"


class Admitted(msgspec.Struct, frozen=True):
    """The principal of an admitted request, and its rights."""

    principal: Principal = ANONYMOUS
    profile: str | None = None
    allow: tuple[str, ...] = ()
    """Globs for the tools that it may use; empty: all."""
    rate: RateLimit | None = None
    """Its rate limit, if any."""
    grants: tuple[ToolGrant, ...] | None = None
    """What access rules give it, one beside the other; None: it is not subject to rules."""
    deny: tuple[str, ...] = ()
    """Globs for tools that it may not use in any case."""
    is_admin: bool = False
    """Whether an access rule says that it runs the gateway."""
    digest: bytes = b""
    """The SHA-256 of its token, if an identity provider issued it."""
    expires: float = math.inf
    """When that token expires, in seconds since the epoch."""
    scopes: frozenset[str] = frozenset()
    """The scopes of that token."""
    proof: bytes = b""
    """A digest of the proof that came with it, if it is bound to a key."""


ANYBODY = Admitted()
"""What clients without a token get under `--insecure`."""


class _Key(msgspec.Struct, frozen=True):
    """One active token, and what it admits."""

    token: AccessToken
    admitted: Admitted


class ActiveKeys:
    """The user's active tokens."""

    def __init__(self, keys: Mapping[str, _Key] = MappingProxyType({})) -> None:
        self._keys = keys
        self.tokens = {token_id: key.token for token_id, key in keys.items()}
        """By id."""
        self.used: dict[str, float] = {}
        """When tokens were last used, by id, if that is not saved yet."""

    def with_tokens(self, tokens: Iterable[AccessToken]) -> "ActiveKeys":
        """The same with other tokens; rates that are partly used stay so."""
        after = ActiveKeys(
            {
                token.id: _Key(token, self._keys[token.id].admitted)
                if _gives_same_access(token, self.tokens.get(token.id))
                else _key(token)
                for token in tokens
            }
        )
        after.used = self.used
        return after

    def find(self, bearer: bytes) -> Admitted | None:
        """What a token admits; None if it is unknown or no longer valid."""
        return self._find(bearer, is_console=False)

    def find_console(self, bearer: bytes) -> Admitted | None:
        """The owner of a token for the web console; see `find`."""
        return self._find(bearer, is_console=True)

    def _find(self, bearer: bytes, *, is_console: bool) -> Admitted | None:
        if (id_and_secret := parts(bearer)) is None:
            return None
        token_id, secret = id_and_secret
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
        clients = sum(not token.is_console for token in self.keys.tokens.values())
        return clients + len(self.tokens)

    def refresh(self) -> frozenset[str] | None:
        """Read changed sources again; the principals that lost access, or None without a change."""
        before, tokens, keys = self._principals(), self.tokens, self.keys
        self._read_store()
        self._read_file()
        now = time.time()
        gone = self.revoked_elsewhere
        active = tuple(
            token for token in self._all if token.state(now) == "active" and token.id not in gone
        )
        if {token.id: token for token in active} != keys.tokens:
            self.keys = keys.with_tokens(active)
        if self.tokens is tokens and self.keys is keys:
            return None
        after = self._principals()
        return frozenset(
            name for name, token in before.items() if not _gives_same_access(token, after.get(name))
        )

    @property
    def revoked_here(self) -> frozenset[str]:
        """The ids of tokens that were revoked in the store."""
        return frozenset(token.id for token in self._all if token.revoked is not None)

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
        try:
            self._all = tuple(self._store.all())
        except (MultitapError, OSError) as exc:  # its folder may be removed at this moment
            logger.warning("keeping the previous tokens: %s", exc)
        # That of before the read: a change during it is read next time. Last: where there was too
        # little memory, it is read again.
        self._store_stamp = stamp

    def _read_file(self) -> None:
        if self._file is None or (stamp := _stamp(self._file)) == self._file_stamp:
            return
        try:
            tokens = read_tokens(self._file)
        except ConfigError as exc:
            logger.warning("keeping the previous tokens: %s", exc)
            tokens = self.tokens
        self._file_stamp = stamp  # as above
        if tokens != self.tokens:
            self.tokens = tokens


def _gives_same_access(token: AccessToken | Token, other: AccessToken | Token | None) -> bool:
    """Whether both give the same rights, perhaps until another time: a rotated token ends later."""
    if isinstance(token, AccessToken) and isinstance(other, AccessToken):
        token = msgspec.structs.replace(token, expires=other.expires)
    return token == other


def _key(token: AccessToken) -> _Key:
    rate = RateLimit(Rate.parse(token.rate)) if token.rate else None
    principal = token_principal(token.id, token.owner)
    return _Key(token, Admitted(principal, token.profile, token.allow, rate))


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):  # a pipe can be read only once
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def is_public(mode: int, owner: int, user: int) -> bool:
    """Whether others than `user` can read a file.

    The group of a file that belongs to root is root's decision: so do Kubernetes and administrators
    give a service its secrets.
    """
    is_given = owner == 0 and user != 0
    return bool(mode & (0o037 if is_given else 0o077))


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in a file: one a line, as `TOKEN`, `NAME=TOKEN` or `NAME@PROFILE=TOKEN`.

    Raises:
        ConfigError: The file cannot be used; the message never contains its contents.
    """
    try:
        with path.open(encoding="utf-8") as file:
            # of the open file, not of the path, so that the checked file is the one that is read
            status = os.fstat(file.fileno())
            if is_public(status.st_mode, status.st_uid, os.geteuid()):
                raise ConfigError(
                    f"{path}: other users can read it", hint=f"run `chmod 600 {path}`"
                )
            if status.st_size > _LARGEST:
                raise ConfigError(f"{path}: the tokens cannot be read: it is too large")
            lines = file.read().splitlines()
    except OSError as exc:
        raise ConfigError(f"{path}: the tokens cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the tokens cannot be read: not a text") from None
    tokens = [
        _token(line.strip(), f"{path}:{number}", number)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not tokens:
        raise ConfigError(f"{path}: it has no tokens", hint="write one per line")
    if len({token.secret for token in tokens}) < len(tokens):
        raise ConfigError(f"{path}: a token appears twice", hint="give each client its own")
    # tokens with the same name would share sessions
    if len({token.principal for token in tokens}) < len(tokens):
        raise ConfigError(f"{path}: a name appears twice", hint="give each token its own")
    return tuple(tokens)


def _token(line: str, place: str, number: int) -> Token:
    named, _, secret = line.partition("=") if "=" in line.rstrip("=") else ("", "", line)
    name, at, profile = (part.strip() for part in named.partition("@"))
    secret = secret.strip()
    if at and not profile:
        raise ConfigError(f"{place}: the profile after the @ is missing", hint="write `NAME=TOKEN`")
    if len(secret) < _SHORTEST or not secret.isascii() or " " in secret:
        raise ConfigError(
            f"{place}: a token has at least {_SHORTEST} ASCII characters and no spaces",
            hint="`openssl rand -hex 32` generates a good one",
        )
    # without a name, it is called by its line, where another token may be tomorrow
    subject = name or f"token-{hashlib.sha256(secret.encode()).hexdigest()[:16]}"
    return Token(secret.encode(), name or f"token-{number}", profile or None, subject)
