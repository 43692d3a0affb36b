"""Decides who may talk to the gateway over HTTP: by Host, Origin, token and local user."""

import hmac
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Protocol

from multitap.errors import ConfigError
from multitap.http.server.peer_user import Peer, PeerUsers
from multitap.http.server.rate_limit import RateLimit
from multitap.records import dataclass

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# characters: shorter ones can be guessed over a network
_SHORTEST = 16
_PUBLIC_MODE = 0o077
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(.+)")
_KNOWN = 256
"""Addresses that need no second look."""
_SINGLE = frozenset(
    {b"host", b"origin", b"authorization", b"content-type", b"mcp-session-id", b"sec-fetch-site"}
)
"""Headers whose second value would be anybody's guess."""
_OWN_SITES = frozenset({b"", b"none", b"same-origin"})
"""What browsers say of requests that no page of somebody else made; other programs say nothing."""
_CHALLENGE = ((b"www-authenticate", b"Bearer"),)
_FORWARDED = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"}
)
"""Headers of requests that a proxy passes on, besides `X-Forwarded-…`."""
TEXT = b"text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Token:
    """One secret that lets a client in."""

    secret: bytes = field(repr=False)
    principal: str
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a request is not even looked at."""

    status: int
    words: str
    extra: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that go with it."""
    kind: bytes = TEXT
    """What the words are."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whom a request is from."""

    principal: str = ""
    profile: str | None = None
    allow: tuple[str, ...] = ()
    """Globs over the names of tools that it may use; empty: any."""
    rate: RateLimit | None = None
    """Counts its requests; None if it may make as many as it likes."""


ANYBODY = Admitted()
"""The principal of every client without a token, where that is let in."""


class AnonymousAccess(Enum):
    """What becomes of a request without a token."""

    ADMITTED = "admitted"
    OWN_USER = "own user"
    """It is let in if it comes from our own user on this machine."""
    REFUSED = "refused"


class TokenHashes(Protocol):
    """Tokens that are known only by their hashes."""

    def find(self, bearer: bytes) -> Admitted | None:
        """Whose token it is; None: nobody's, or one that holds no more."""
        ...


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in a file: one a line, as `TOKEN`, `NAME=TOKEN` or `NAME@PROFILE=TOKEN`.

    Raises:
        ConfigError: The file cannot be used; says why, and never what is in it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            # of the open file, not of the path: what is checked is what is read
            if os.fstat(file.fileno()).st_mode & _PUBLIC_MODE:
                raise ConfigError(
                    f"{path}: other users can read it", hint=f"run `chmod 600 {path}`"
                )
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
    # who comes by one name shares sessions
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
    return Token(secret.encode(), name or f"token-{number}", profile or None)


class Access:
    """Decides about each request by its headers alone.

    A token that is sent has to be right, whether or not one is required: one that was revoked is
    worth less than none.

    Args:
        host: Where the gateway listens.
        tokens: Who is let in.
        hosts: Names by which it may be called besides.
        keys: Who is let in, too.
        unnamed: What becomes of requests without a token; they are refused if there are tokens.
        users: Knows the users of this machine.
    """

    def __init__(
        self,
        host: str,
        tokens: tuple[Token, ...] = (),
        hosts: tuple[str, ...] = (),
        *,
        keys: TokenHashes | None = None,
        unnamed: AnonymousAccess | None = None,
        users: PeerUsers | None = None,
    ) -> None:
        self.tokens = tokens
        self.keys = keys
        self._unnamed = unnamed or (AnonymousAccess.REFUSED if tokens else AnonymousAccess.ADMITTED)
        self._users = users
        named = {*_LOOPBACK, *hosts, f"[{host}]" if ":" in host else host}
        self._anywhere = host in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
        self._names = frozenset(name.lower() for name in named)
        self._known: set[tuple[bytes, bytes, bytes]] = set()

    def decide(
        self, headers: Mapping[bytes, bytes], peer: Peer | None = None
    ) -> Admitted | Rejected:
        """Whom a request is from, or why it is turned away."""
        key = (
            headers.get(b"host", b""),
            headers.get(b"origin", b""),
            headers.get(b"sec-fetch-site", b""),
        )
        if key not in self._known:
            if (denied := self._address(*key)) is not None:
                return denied
            # no more: strangers can make up as many as they like
            if len(self._known) < _KNOWN:
                self._known.add(key)
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            return self._bearer(given.strip())
        return self._without_token(headers, peer)

    def without_origin(self, headers: Mapping[bytes, bytes], peer: Peer) -> Rejected | None:
        """Why a request is turned away by its Host and its local user alone, if it is.

        For what has credentials and rules about origins of its own.
        """
        called = _name(headers.get(b"host", b"").decode("latin-1"))
        if called is None or not self._is_ours(called):
            return Rejected(421, "this Host is not served here; `--allow-host` allows it")
        # where nobody needs a token, our own user is all that tells friends from strangers
        users = self._users if self._unnamed is AnonymousAccess.OWN_USER else None
        if users is not None and peer.is_own(users) is not True:
            return Rejected(403, "other users of this machine may not use the console")
        return None

    def _address(self, host: bytes, origin: bytes, site: bytes) -> Rejected | None:
        called = _name(host.decode("latin-1"))
        if called is None or not self._is_ours(called):
            return Rejected(421, "this Host is not served here; `--allow-host` allows it")
        if origin:
            page = _ORIGIN.fullmatch(origin.decode("latin-1").lower())
            came_from = _name(page[1]) if page else None
            if came_from is None or (came_from not in self._names and came_from != called):
                return Rejected(403, "this Origin may not use the gateway")
        elif site.lower() not in _OWN_SITES:  # an image, a script, a link: they name no Origin
            return Rejected(403, "pages of other sites may not use the gateway")
        return None

    def _is_ours(self, name: str) -> bool:
        """Whether we may be called so: by a name that somebody else points at us, we may not.

        Where every address is ours, a numeric one cannot have been made up. A token is proof
        enough, whatever the name.
        """
        return name in self._names or (
            self._anywhere and (self._unnamed is AnonymousAccess.REFUSED or _is_address(name))
        )

    def _bearer(self, given: bytes) -> Admitted | Rejected:
        admitted = None
        for token in self.tokens:  # to the end: how long it takes tells nothing
            if hmac.compare_digest(given, token.secret):
                admitted = Admitted(token.principal, token.profile)
        if admitted is None and self.keys is not None:
            admitted = self.keys.find(given)
        return admitted or Rejected(401, "this token is unknown, expired or revoked", _CHALLENGE)

    def _without_token(
        self, headers: Mapping[bytes, bytes], peer: Peer | None
    ) -> Admitted | Rejected:
        if self._unnamed is AnonymousAccess.ADMITTED:
            return ANYBODY
        if self._unnamed is AnonymousAccess.REFUSED or peer is None or self._users is None:
            return Rejected(401, "a bearer token is required", _CHALLENGE)
        # the proxy may be ours, and its clients are anybody
        if any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in headers):
            return Rejected(401, "a request through a proxy needs a bearer token", _CHALLENGE)
        is_own = peer.is_own(self._users)
        if is_own is None:
            words = "a bearer token is required: it is unknown which user connects"
            return Rejected(401, words, _CHALLENGE)
        if not is_own:
            return Rejected(403, "other users of this machine need a bearer token")
        return ANYBODY


def repeated_header(pairs: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """A header that must not be there twice, and is."""
    seen: set[bytes] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        if name in _SINGLE:
            seen.add(name)
    return None


def _name(host: str) -> str | None:
    """A host without its port; None for what is none."""
    found = _HOST.fullmatch(host.strip().lower())
    return found[1] if found else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
