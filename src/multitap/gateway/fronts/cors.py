"""Which web pages may read the gateway's answers: the CORS protocol of browsers.

A page of another origin can use the gateway only if the configuration names that origin. Documents
about the gateway, below `/.well-known/`, are for everybody: they say how to get in, and no more.
"""

import re
from collections.abc import Sequence

from multitap.errors import ConfigError
from multitap.http.server.request import HttpRequest, Rejected, RequestHead

PUBLIC = b"/.well-known/"
FOREIGN = Rejected(
    403, "pages of this Origin may not use the gateway; `serve.allow_origins` allows it"
)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
_METHODS = b"GET, POST, DELETE"
_EXPOSED = b"WWW-Authenticate, Mcp-Session-Id, Mcp-Protocol-Version, Retry-After, Last-Event-ID"
"""What scripts may read of a response besides its body: how to log in, and in which session."""
_REMEMBERED = b"7200"
"""Seconds; the longest time for which Chrome remembers the answer to a preflight."""


class Cors:
    """Answers browsers that ask what a page may do.

    Raises:
        ConfigError: One of them is not an origin.
    """

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self.origins = frozenset(_origin(text).encode() for text in origins)

    def mark(self, head: RequestHead) -> None:
        """Set the headers with which a browser lets a page read the response, if it may."""
        origin = head.headers.get(b"origin", b"")
        if head.url.startswith(PUBLIC):
            head.cors = b"access-control-allow-origin: *\r\n"
        elif origin.lower() in self.origins:
            head.cors = (
                b"access-control-allow-origin: %b\r\nvary: origin\r\n"
                b"access-control-expose-headers: %b\r\n" % (origin, _EXPOSED)
            )


def is_preflight(head: RequestHead) -> bool:
    """Whether a browser asks if a page may make a request, which it then makes with a token."""
    return head.method == b"OPTIONS" and b"access-control-request-method" in head.headers


def answer_preflight(http_request: HttpRequest) -> None:
    """Say what a page may send."""
    head = http_request.head
    extra = [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", _REMEMBERED),
    ]
    # any: `Mcp-Param-…` depend on the tools, and what a header says is checked when it is used
    names = head.headers.get(b"access-control-request-headers", b"")
    if _HEADER_NAMES.fullmatch(names):
        extra.append((b"access-control-allow-headers", names))
    # Chrome asks before a page of the internet may reach an address of this network
    if head.headers.get(b"access-control-request-private-network") == b"true":
        extra.append((b"access-control-allow-private-network", b"true"))
    http_request.say(204, extra=extra)


def _origin(text: str) -> str:
    origin = text.strip().lower()
    if _ORIGIN.fullmatch(origin) is None:
        raise ConfigError(
            f"{text!r} under `serve.allow_origins` is not an origin",
            hint="use a scheme, a host and its port, as in https://app.example.com:8443;"
            " `*` is not possible",
        )
    return origin
