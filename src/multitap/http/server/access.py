"""Who may speak to the gateway over HTTP: by Host, Origin and bearer token."""

import hmac
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from multitap.errors import ConfigError
from multitap.http.loopback import is_loopback
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


@dataclass(frozen=True, slots=True)
class Token:
    """One secret that lets a client in."""

    secret: bytes = field(repr=False)
    principal: str
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """Why a request is not even looked at."""

    status: int
    words: str
    extra: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that go with it."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whom a request is from."""

    principal: str = ""
    profile: str | None = None


ANYBODY = Admitted()
"""The principal of every client if there are no tokens."""


def check_exposure(host: str, tokens: tuple[Token, ...], *, insecure: bool) -> None:
    """Do not let the whole network use the servers by accident.

    Raises:
        ConfigError: Everybody could, and nobody said so.
    """
    if not is_loopback(host) and not tokens and not insecure:
        raise ConfigError(
            f"{host!r} is reachable from other machines, and no token is required",
            hint="use `--token-file FILE`, listen on 127.0.0.1, or allow it: `--insecure`, or"
            " `insecure = true` under [serve]",
        )


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

    Args:
        host: Where the gateway listens.
        tokens: Who is let in; nobody is asked where there are none.
        hosts: Names by which it may be called besides.
    """

    def __init__(
        self, host: str, tokens: tuple[Token, ...] = (), hosts: tuple[str, ...] = ()
    ) -> None:
        self._tokens = tokens
        named = {*_LOOPBACK, *hosts, f"[{host}]" if ":" in host else host}
        self._anywhere = host in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
        self._names = frozenset(name.lower() for name in named)
        self._known: set[tuple[bytes, bytes, bytes]] = set()

    def decide(self, headers: Mapping[bytes, bytes]) -> Admitted | Denied:
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
        return self._bearer(headers.get(b"authorization", b"")) if self._tokens else ANYBODY

    def _address(self, host: bytes, origin: bytes, site: bytes) -> Denied | None:
        called = _name(host.decode("latin-1"))
        if called is None or not self._is_ours(called):
            return Denied(421, "this Host is not served here; `--allow-host` allows it")
        if origin:
            page = _ORIGIN.fullmatch(origin.decode("latin-1").lower())
            came_from = _name(page[1]) if page else None
            if came_from is None or (came_from not in self._names and came_from != called):
                return Denied(403, "this Origin may not use the gateway")
        elif site.lower() not in _OWN_SITES:  # an image, a script, a link: they name no Origin
            return Denied(403, "pages of other sites may not use the gateway")
        return None

    def _is_ours(self, name: str) -> bool:
        """Whether we may be called so: by a name that somebody else points at us, we may not.

        Where every address is ours, a numeric one cannot have been made up. A token is proof
        enough, whatever the name.
        """
        return name in self._names or (self._anywhere and (bool(self._tokens) or _is_address(name)))

    def _bearer(self, header: bytes) -> Admitted | Denied:
        scheme, _, given = header.partition(b" ")
        given = given.strip()
        admitted: Admitted | Denied = Denied(401, "a bearer token is required", _CHALLENGE)
        if scheme.lower() != b"bearer":
            return admitted
        for token in self._tokens:  # to the end: how long it takes tells nothing
            if hmac.compare_digest(given, token.secret):
                admitted = Admitted(token.principal, token.profile)
        return admitted


def repeated(pairs: Iterable[tuple[bytes, bytes]]) -> bytes | None:
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
