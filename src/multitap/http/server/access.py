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
"""Accepted combinations of Host, Origin and site that are remembered."""
_SINGLE = frozenset(
    {b"host", b"origin", b"authorization", b"content-type", b"mcp-session-id", b"sec-fetch-site"}
)
"""Headers that must not be repeated, because receivers would disagree about their value."""
_OWN_SITES = frozenset({b"", b"none", b"same-origin"})
"""`Sec-Fetch-Site` of requests that are not from other sites; other programs do not send it."""
_CHALLENGE = ((b"www-authenticate", b"Bearer"),)
_FORWARDED = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"}
)
"""Headers that proxies add, besides `X-Forwarded-…`."""
TEXT = b"text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a token file."""

    secret: bytes = field(repr=False)
    principal: str
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The response to a request that is not admitted."""

    status: int
    words: str
    extra: tuple[tuple[bytes, bytes], ...] = ()
    """Further response headers."""
    kind: bytes = TEXT
    """The content type."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The principal of an admitted request, and its rights."""

    principal: str = ""
    profile: str | None = None
    allow: tuple[str, ...] = ()
    """Globs for the tools that it may use; empty: all."""
    rate: RateLimit | None = None
    """Its rate limit, if any."""


ANYBODY = Admitted()
"""What clients without a token get, if they are admitted."""


class AnonymousAccess(Enum):
    """How requests without a token are treated."""

    ADMITTED = "admitted"
    OWN_USER = "own user"
    """Admitted if it comes from our own user on this machine."""
    REFUSED = "refused"


class TokenHashes(Protocol):
    """Tokens that are stored as hashes."""

    def find(self, bearer: bytes) -> Admitted | None:
        """What a token admits; None if it is unknown or no longer valid."""
        ...


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in a file: one a line, as `TOKEN`, `NAME=TOKEN` or `NAME@PROFILE=TOKEN`.

    Raises:
        ConfigError: The file cannot be used; the message never contains its contents.
    """
    try:
        with path.open(encoding="utf-8") as file:
            # of the open file, not of the path, so that the checked file is the one that is read
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
    return Token(secret.encode(), name or f"token-{number}", profile or None)


class Access:
    """Admits or rejects each request by its headers alone.

    A token must be valid even if none is required, so that a revoked one is refused.

    Args:
        host: Where the gateway listens.
        tokens: Tokens of a file.
        hosts: Further host names that it answers to.
        keys: Tokens stored as hashes.
        unnamed: How requests without a token are treated; by default, refused if there are tokens.
        users: Identifies local users; None if this system cannot.
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
        """Admit or reject a request by its headers and its peer."""
        key = (
            headers.get(b"host", b""),
            headers.get(b"origin", b""),
            headers.get(b"sec-fetch-site", b""),
        )
        if key not in self._known:
            if (denied := self._address(*key)) is not None:
                return denied
            # bounded: strangers can invent any number of them
            if len(self._known) < _KNOWN:
                self._known.add(key)
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            return self._bearer(given.strip())
        return self._without_token(headers, peer)

    def without_origin(self, headers: Mapping[bytes, bytes], peer: Peer) -> Rejected | None:
        """Check Host and local user only; returns the rejection, if any.

        For the console, which has its own credentials and rules about origins. Whether clients need
        a token or not, other users of this machine get nothing: they may have found a key.
        """
        called = _name(headers.get(b"host", b"").decode("latin-1"))
        if called is None or not self._is_ours(called):
            return Rejected(421, "this Host is not served here; `--allow-host` allows it")
        if self._users is not None and peer.may_be_stranger(self._users):
            words = "other users of this machine, and confined servers, may not use the console"
            return Rejected(403, words)
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
        elif site.lower() not in _OWN_SITES:  # images, scripts and links send no Origin
            return Rejected(403, "pages of other sites may not use the gateway")
        return None

    def _is_ours(self, name: str) -> bool:
        """Whether a Host is ours, as a protection against DNS rebinding.

        If we listen on all addresses, any numeric one is accepted. If tokens are required, every
        name is.
        """
        return name in self._names or (
            self._anywhere and (self._unnamed is AnonymousAccess.REFUSED or _is_address(name))
        )

    def _bearer(self, given: bytes) -> Admitted | Rejected:
        admitted = None
        for token in self.tokens:  # no early exit: constant time
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
        # the proxy may run as our user, but its clients can be anyone
        if any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in headers):
            return Rejected(401, "a request through a proxy needs a bearer token", _CHALLENGE)
        is_own = peer.is_own(self._users)
        if is_own is None:
            words = "a bearer token is required: it is unknown which user connects"
            return Rejected(401, words, _CHALLENGE)
        if not is_own:
            return Rejected(
                403, "other users of this machine, and confined servers, need a bearer token"
            )
        return ANYBODY


def repeated_header(pairs: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The first header that must not be repeated and is, if any."""
    seen: set[bytes] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        if name in _SINGLE:
            seen.add(name)
    return None


def _name(host: str) -> str | None:
    """A host without its port; None if it is not valid."""
    found = _HOST.fullmatch(host.strip().lower())
    return found[1] if found else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
