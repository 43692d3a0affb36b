"""Who may speak to the gateway over HTTP: by Host, Origin and bearer token."""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from multitap.errors import ConfigError

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SHORTEST = 16
_PUBLIC_MODE = 0o077


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


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whom a request is from."""

    principal: str = ""
    profile: str | None = None


_ANYBODY = Admitted()


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tokens: tuple[Token, ...], *, insecure: bool) -> None:
    """Do not let the whole network use the servers by accident.

    Raises:
        ConfigError: Everybody could, and nobody said so.
    """
    if not is_loopback(host) and not tokens and not insecure:
        raise ConfigError(
            f"{host!r} can be reached from other machines, and no token is asked for",
            hint="give `--token-file FILE`, listen on 127.0.0.1, or say `--insecure`",
        )


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in a file: one a line, as `TOKEN`, `NAME=TOKEN` or `NAME@PROFILE=TOKEN`.

    Raises:
        ConfigError: The file can not be used; says why, and never what is in it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: the tokens can not be read: {exc}") from None
    if mode & _PUBLIC_MODE:
        raise ConfigError(f"{path}: others can read it", hint=f"run `chmod 600 {path}`")
    tokens = [
        _token(line.strip(), f"{path}:{number}", number)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not tokens:
        raise ConfigError(f"{path}: there is no token in it", hint="write one a line")
    return tuple(tokens)


def _token(line: str, place: str, number: int) -> Token:
    named, _, secret = line.rpartition("=") if "=" in line.rstrip("=") else ("", "", line)
    name, _, profile = named.strip().partition("@")
    secret = secret.strip()
    if len(secret) < _SHORTEST or not secret.isascii() or " " in secret:
        raise ConfigError(
            f"{place}: a token has at least {_SHORTEST} ASCII characters and no spaces",
            hint="`openssl rand -hex 32` makes a good one",
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
        self._known: dict[tuple[bytes, bytes], Denied | None] = {}

    def decide(self, headers: Mapping[bytes, bytes]) -> Admitted | Denied:
        """Whom a request is from, or why it is turned away."""
        key = (headers.get(b"host", b""), headers.get(b"origin", b""))
        if key in self._known:
            denied = self._known[key]
        else:
            denied = self._address(*key)
            if len(self._known) < 256:  # noqa: PLR2004 - strangers may try many
                self._known[key] = denied
        if denied is not None:
            return denied
        return self._bearer(headers.get(b"authorization", b"")) if self._tokens else _ANYBODY

    def _address(self, host: bytes, origin: bytes) -> Denied | None:
        called = _name(host.decode("latin-1"))
        if not called or not (self._anywhere or called in self._names):
            return Denied(421, "this Host is not served here")
        if origin:
            came_from = _name(urlsplit(origin.decode("latin-1")).netloc)
            if came_from not in self._names and came_from != called:
                return Denied(403, "this Origin may not speak to the gateway")
        return None

    def _bearer(self, header: bytes) -> Admitted | Denied:
        scheme, _, given = header.partition(b" ")
        if scheme.lower() == b"bearer":
            for token in self._tokens:
                if hmac.compare_digest(given.strip(), token.secret):
                    return Admitted(token.principal, token.profile)
        return Denied(401, "a bearer token is needed")


def _name(host: str) -> str:
    """A host without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
