"""Pages for browsers: HTML documents, the headers that protect them, cookies and forms."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus

from multitap.http.server.request import Headers, HttpRequest, RequestHead
from multitap.markup import Content, Markup, element

HTML = b"text/html; charset=utf-8"
_FORM = b"application/x-www-form-urlencoded"
_POLICY = ("default-src 'none'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'")
_SAFE = (
    # the address of a page may contain a request, a key or a code
    (b"referrer-policy", b"no-referrer"),
    # the content must not remain on disk after the browser is closed
    (b"cache-control", b"no-store"),
    # for browsers that do not know `frame-ancestors`
    (b"x-frame-options", b"DENY"),
    # a page that opens this one in a window gets no hold of it
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


class HtmlPages:
    """Sends pages that may load only what `policy` allows, and send forms only to us."""

    def __init__(self, *policy: str) -> None:
        policy = (*_POLICY, *policy)
        self.safe = ((b"content-security-policy", "; ".join(policy).encode()), *_SAFE)
        """The headers of every response."""

    def headers(self, *more: tuple[bytes, bytes]) -> Headers:
        """The headers of a response."""
        return [*self.safe, *more]

    def show(
        self,
        http_request: HttpRequest,
        page: Markup,
        status: int = 200,
        *extra: tuple[bytes, bytes],
    ) -> None:
        data = page.encode("utf-8", "replace")
        http_request.respond(status, (data,), kind=HTML, extra=self.headers(*extra))

    def redirect(
        self,
        http_request: HttpRequest,
        address: str,
        *extra: tuple[bytes, bytes],
        status: int = HTTPStatus.SEE_OTHER,
    ) -> None:
        location = (b"location", address.encode("ascii", "ignore"))
        http_request.respond(status, (b"",), kind=HTML, extra=self.headers(location, *extra))


def document(title: str, *body: Content, head: Content = None) -> Markup:
    """A whole page."""
    start = element(
        "head",
        element("meta", charset="utf-8"),
        element("title", f"{title} - Multitap"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        head,
    )
    return Markup(f"<!doctype html>{element('html', start, element('body', *body), lang='en')}")


def forward(address: str) -> Markup:
    """What leads a browser on to an address, in the head of a page.

    Not a redirect: browsers apply `form-action` to those that follow a form, through every site,
    and after a link on another site they would not send a new cookie.
    """
    return element("meta", http_equiv="refresh", content=f"0;url={address}")


def is_form(head: RequestHead) -> bool:
    """Whether a request has the content type of a form."""
    return head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _FORM


def cookies(headers: Mapping[bytes, bytes], name: str) -> Iterator[str]:
    """All values of a cookie: another port of this host may have set one, too."""
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        label, _, value = pair.strip().partition("=")
        if label == name:
            yield value.strip()


def set_cookie(
    name: str, value: str, seconds: float, *, path: str = "/", same_site: str, is_secure: bool
) -> tuple[bytes, bytes]:
    """The header that sets a cookie; zero seconds delete it."""
    parts = [f"{name}={value}", f"Path={path}", f"Max-Age={seconds:.0f}", "HttpOnly"]
    parts += [f"SameSite={same_site}", *(["Secure"] if is_secure else [])]
    return b"set-cookie", "; ".join(parts).encode()
