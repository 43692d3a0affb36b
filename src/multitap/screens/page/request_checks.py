"""Decides which requests of browsers are accepted: only those of our own pages."""

from collections.abc import Iterable, Mapping

from multitap.http.server.access import Rejected
from multitap.http.server.http_request import Headers

COOKIE = b"multitap_console"
MARK = b"x-multitap-console"
"""A header that a page of another origin cannot send without asking us first."""
FORM = b"application/x-www-form-urlencoded"

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "media-src data: blob:",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    # no string can become markup, even through a bug in our scripts
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
SAFE: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", "; ".join(_POLICY).encode()),
    (b"referrer-policy", b"no-referrer"),
    # the content must not remain on disk after the browser is closed
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
"""Headers of every response."""

_OWN_SITES = frozenset({b"", b"none", b"same-origin"})
"""Values of `Sec-Fetch-Site` for requests of our own pages or of a person."""


def safe(*more: tuple[bytes, bytes]) -> Headers:
    """The headers of a response."""
    return [*SAFE, *more]


def foreign(method: bytes, headers: Mapping[bytes, bytes], *, is_form: bool) -> Rejected | None:
    """Why a request is refused, if a page of another origin may have made it.

    Cookies are shared by all ports of a host, and `SameSite` ignores ports, too. So the origin must
    match exactly, and a header is required that only our own scripts send.

    Args:
        method: The request's method.
        headers: Its headers.
        is_form: Whether it comes from a plain form, which cannot send custom headers.
    """
    host, site = headers.get(b"host", b"").lower(), headers.get(b"sec-fetch-site", b"").lower()
    origin = headers.get(b"origin", b"").lower()
    own = (b"http://" + host, b"https://" + host)
    if method == b"GET":
        # a link in a mail may lead here: it brings no cookie, and learns nothing
        is_visit = headers.get(b"sec-fetch-mode") == b"navigate" and not origin
        if (origin and origin not in own) or (site not in _OWN_SITES and not is_visit):
            return _DENIED
        if is_visit and headers.get(b"sec-fetch-dest", b"document") != b"document":
            return _DENIED
        return None
    if is_form:
        # without a referrer, browsers do not name the origin of a form either
        is_own = origin in own or (origin in {b"", b"null"} and site == b"same-origin")
    else:
        is_own = origin in own and headers.get(MARK) == b"1"
    return None if is_own and site in _OWN_SITES else _DENIED


_DENIED = Rejected(403, "pages of other origins may not use the console", SAFE)


def cookies(headers: Mapping[bytes, bytes]) -> Iterable[bytes]:
    """All values of the cookie: another port of this host may have set one, too."""
    for pair in headers.get(b"cookie", b"").split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == COOKIE:
            yield value.strip()


def set_cookie(value: str, seconds: float, *, is_secure: bool) -> tuple[bytes, bytes]:
    """The header that sets a browser's cookie; zero seconds delete it."""
    parts = [
        f"{COOKIE.decode()}={value}",
        "Path=/console",
        f"Max-Age={int(seconds)}",
        "HttpOnly",
        "SameSite=Strict",
    ]
    return b"set-cookie", "; ".join([*parts, "Secure"] if is_secure else parts).encode()
