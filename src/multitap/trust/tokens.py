"""Access tokens for clients: created, listed, revoked; stored as hashes."""

import hashlib
import hmac
import re
import secrets
import string
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import msgspec

from multitap.errors import MultitapError, UnknownName, quoted
from multitap.files import USER_FOLDERS
from multitap.limits import Rate
from multitap.trust.audit import recorder
from multitap.trust.private_file import PrivateFile

PREFIX = "mtap"
"""The prefix of every token, so that scanners and people recognise it."""
LONGEST_NAME, MOST_GLOBS, MOST_TOKENS = 64, 64, 1000
# the alphabet of base32, without the digits that look like letters
_ID_LETTERS, _ID_LENGTH = string.ascii_lowercase + "234567", 12
_LETTERS, _LENGTH = string.ascii_letters + string.digits, 43
"""The form of a token: 256 bits, with characters that a double click selects as one word."""
_SHAPE = re.compile(rb"mtap_([a-z2-7]{12})_([A-Za-z0-9]{43})")
_ID = re.compile(r"\b[a-z2-7]{12}\b")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_REPAIR = "repair it, or move it away and create the tokens again"

TokenState = Literal["active", "expired", "revoked"]


class TokenError(MultitapError):
    """The tokens cannot be used or changed; the message says why, and what to do."""


class AccessToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one token, without the token itself."""

    id: str
    name: str
    digest: str
    created: float
    profile: str | None = None
    """The profile of its clients."""
    allow: tuple[str, ...] = ()
    """Globs over the names of tools that its clients may use; if empty, all are allowed."""
    expires: float | None = None
    rate: str | None = None
    """The rate of requests, such as `100/min`."""
    revoked: float | None = None
    is_console: bool = False
    """Whether it opens the web console, and nothing else."""
    owner: str = ""
    """The id of the first token that this one replaces: accounts at servers stay with it."""

    def __post_init__(self) -> None:
        if self.rate is not None:
            Rate.parse(self.rate)  # otherwise it would fail later, where nobody can fix it

    def __repr__(self) -> str:
        return f"<AccessToken {self.name} ({self.id})>"

    def state(self, now: float) -> TokenState:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"

    def opens_with(self, secret: bytes) -> bool:
        """Whether a token with our id is the right one, compared in constant time."""
        return hmac.compare_digest(_digest(secret), self.digest)


class TokenNames:
    """Shows tokens by their names: records keep ids, which stay when tokens are gone."""

    def __init__(self, tokens: Iterable[AccessToken]) -> None:
        self._names = {token.id: token.name for token in tokens}

    def __call__(self, text: str) -> str:
        """A text with the names of tokens in place of their ids."""
        return _ID.sub(lambda match: self._names.get(match[0], match[0]), text)


class _TokenList(msgspec.Struct, omit_defaults=True):
    version: int = 1
    tokens: list[AccessToken] = []


class AccessTokens:
    """All tokens of a user, in a file that only the user can read.

    Args:
        folder: The folder of the file; by default, the user's own.
    """

    def __init__(self, folder: Path | None = None) -> None:
        default = USER_FOLDERS.user_data_path / "tokens"
        self.folder = folder or default
        self._record = recorder(folder)
        self._file = PrivateFile(self.folder / "tokens.json", TokenError)
        # a separate file, so that gateways do not read all tokens again after each use
        self._uses = PrivateFile(self.folder / "uses.json", TokenError)

    def all(self) -> list[AccessToken]:
        """All tokens, with those that ended recently, the oldest first.

        Raises:
            TokenError: Others could read the file, or it is damaged.
        """
        return self._read().tokens

    def stamp(self) -> tuple[int, int, int] | None:
        """Differs after every change."""
        return self._file.stamp()

    def create(
        self,
        name: str,
        *,
        profile: str | None = None,
        allow: tuple[str, ...] = (),
        expires: float | None = None,
        rate: str | None = None,
        is_console: bool = False,
        owner: str = "",
    ) -> tuple[str, AccessToken]:
        """Create a token; returns it and its record.

        Args:
            name: A name for people; need not be unique.
            profile: The profile of its clients.
            allow: Globs over the names of tools that its clients may use.
            expires: When it expires, in seconds since the epoch.
            rate: The rate of requests.
            is_console: Whether it opens the web console, and nothing else.
            owner: The id of the first token that it replaces.

        Raises:
            TokenError: The name or the globs are not valid, or there are too many tokens.
        """
        if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            raise TokenError(
                f"{quoted(name)} cannot name a token",
                hint=f"use up to {LONGEST_NAME} letters, digits and . _ @ + -",
            )
        if len(allow) > MOST_GLOBS:
            raise TokenError(f"a token has at most {MOST_GLOBS} globs", hint="use a profile")
        token_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
        secret = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        stored = AccessToken(
            token_id,
            name,
            _digest(secret.encode()),
            time.time(),
            profile=profile,
            allow=allow,
            expires=expires,
            rate=rate,
            is_console=is_console,
            owner=owner,
        )
        with self._changing() as content:
            if is_console:  # each lasts for hours, and expired ones are of no interest
                content.tokens[:] = [
                    token for token in content.tokens if not _is_past_console(token)
                ]
            _make_room(content.tokens)
            content.tokens.append(stored)
        self._record("token.created", subject=name, decision="allow", detail=_limits(stored))
        return f"{PREFIX}_{token_id}_{secret}", stored

    def rotate(self, name: str, *, grace: float = 0.0) -> tuple[str, AccessToken, AccessToken]:
        """Replace a token by one with the same name and rights; returns it and both records.

        Args:
            name: The name or id of an active token.
            grace: Seconds for which the old one is still accepted.

        Raises:
            UnknownName: None is active, or several of that name are.
        """
        now = time.time()
        old = self._only_active(self._read().tokens, name)
        text, new = self.create(
            old.name,
            profile=old.profile,
            allow=old.allow,
            # a token for 30 days is followed by another one for 30 days
            expires=None if old.expires is None else now + old.expires - old.created,
            rate=old.rate,
            is_console=old.is_console,
            owner=old.owner or old.id,
        )
        if not grace:
            return text, new, self.revoke(old.id)[0]
        end = now + grace if old.expires is None else min(old.expires, now + grace)
        ending = msgspec.structs.replace(old, expires=end)
        with self._changing() as content:
            content.tokens = [ending if token.id == old.id else token for token in content.tokens]
        self._record("token.rotated", subject=name, decision="allow", detail=f"id {old.id}")
        return text, new, ending

    @staticmethod
    def _only_active(tokens: Iterable[AccessToken], name: str) -> AccessToken:
        now = time.time()
        active = [token for token in tokens if token.state(now) == "active"]
        meant = [token for token in active if token.id == name]
        meant = meant or [token for token in active if token.name == name]
        if not meant:
            raise UnknownName(
                f"no active token named {quoted(name)}", hint="`multitap token list` shows them"
            )
        if len(meant) > 1:
            ids = ", ".join(token.id for token in meant)
            raise UnknownName(
                f"{len(meant)} active tokens are named {quoted(name)}",
                hint=f"use an id instead: {ids}",
            )
        return meant[0]

    def revoke(self, name: str, *, all_of_name: bool = False) -> list[AccessToken]:
        """Revoke the active token with an id or a name; returns what was revoked.

        Args:
            name: The id or the name.
            all_of_name: Whether a name may mean several tokens.

        Raises:
            UnknownName: None is active, or several of that name are.
        """
        now = time.time()
        with self._changing() as content:
            active = [token for token in content.tokens if token.state(now) == "active"]
            named = [token for token in active if token.name == name] if all_of_name else []
            meant = named or [self._only_active(active, name)]
            content.tokens = [
                msgspec.structs.replace(token, revoked=now) if token in meant else token
                for token in content.tokens
            ]
        for token in meant:
            self._record(
                "token.revoked", subject=token.name, decision="deny", detail=f"id {token.id}"
            )
        return meant

    def uses(self) -> Mapping[str, float]:
        """When each token was last used, by its id."""
        return self._read_uses()

    def note_uses(self, used: Mapping[str, float]) -> None:
        """Record when tokens were last used; several gateways may do so at once."""
        with self._uses.hold_lock():
            # Only of tokens that exist: otherwise the file would grow with each token that was ever
            # used.
            ids = {token.id for token in self._read().tokens}
            uses = self._read_uses()
            for token_id in ids & used.keys():
                uses[token_id] = max(uses.get(token_id, 0.0), used[token_id])
            saved = {token_id: at for token_id, at in uses.items() if token_id in ids}
            self._uses.write(msgspec.json.encode(saved))

    def _read_uses(self) -> dict[str, float]:
        try:
            return msgspec.json.decode(self._uses.read() or b"{}", type=dict[str, float])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}  # nothing depends on it

    def _read(self) -> _TokenList:
        return self._file.load(_TokenList, repair=_REPAIR)

    def _changing(self) -> AbstractContextManager[_TokenList]:
        return self._file.changing(_TokenList, repair=_REPAIR)


def parts(bearer: bytes) -> tuple[str, bytes] | None:
    """The id and the secret of a token; None if it is malformed."""
    match = _SHAPE.fullmatch(bearer)
    return (match[1].decode(), match[2]) if match else None


def _digest(secret: bytes) -> str:
    # no slow hash: 256 random bits cannot be guessed
    return hashlib.sha256(secret).hexdigest()


def _limits(token: AccessToken) -> str:
    """The rights of a token, as text for the log."""
    limits = [f"id {token.id}"]
    limits += [f"profile {token.profile}"] if token.profile else []
    limits += [f"tools {', '.join(token.allow)}"] if token.allow else []
    limits += [f"rate {token.rate}"] if token.rate else []
    if token.expires is not None:
        limits.append(f"until {time.strftime('%Y-%m-%d %H:%M', time.localtime(token.expires))}")
    return "; ".join(limits)


def _is_past_console(token: AccessToken) -> bool:
    return token.is_console and token.state(time.time()) != "active"


# Never an active one: that would lock out a client without notice.
def _make_room(tokens: list[AccessToken]) -> None:
    """Forget the oldest token that ended.

    Raises:
        TokenError: All are active.
    """
    now = time.time()
    while len(tokens) >= MOST_TOKENS:
        ended = next((token for token in tokens if token.state(now) != "active"), None)
        if ended is None:
            raise TokenError(f"there are {MOST_TOKENS} tokens", hint="revoke some of them first")
        tokens.remove(ended)
