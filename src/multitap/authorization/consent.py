"""The pages that a person sees between a client and the provider; plain, and without scripts."""

import base64
import hashlib

from multitap.authorization.clients import SignInClient, describe_target, is_local
from multitap.authorization.grants import AccessRequest
from multitap.http.server.request import Headers
from multitap.markup import Content, Markup, element

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem}dt{font-weight:600}dd{margin:0 0 .6rem;overflow-wrap:anywhere}"
    ".note{border-left:.25rem solid #c60;padding-left:.75rem}"
    "button,.go{font:inherit;padding:.5rem 1.2rem;margin-right:.6rem}"
)
_POLICY = (
    "default-src 'none'",
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    # nothing is sent anywhere else from here, not even by a redirect after a form
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
)
_SAFE: Headers = [
    (b"content-security-policy", "; ".join(_POLICY).encode()),
    # the address of a page contains the request, or a code
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    # for browsers that do not know `frame-ancestors`
    (b"x-frame-options", b"DENY"),
    # whoever opened this page in a window gets no hold of it
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def safe(*more: tuple[bytes, bytes]) -> Headers:
    """The headers of a page."""
    return [*_SAFE, *more]


def consent_page(
    client: SignInClient, request: AccessRequest, provider: str, sealed: str, action: str
) -> Markup:
    """Asks a person whether a client may act for them; the answer goes to `action`."""
    name = client.client_name or "A program without a name"
    warnings: list[Content] = []
    if not client.is_verified:
        warnings.append("It registered itself: nobody has checked that this is its real name.")
    if is_local(request.redirect_uri):
        warnings.append(
            "The answer goes to a program on your computer. Go on only if you have just started "
            "to connect that program yourself."
        )
    else:
        warnings.append("Go on only if you have just started to connect it yourself.")
    facts: list[tuple[str, str]] = [
        ("Client", client.short_id),
        ("The answer goes to", describe_target(request.redirect_uri)),
        ("Full address", request.redirect_uri),
        ("It may use, in your name", request.resource),
        ("Scopes", " ".join(request.scopes) or "none"),
        ("You sign in at", provider),
    ]
    form = element(
        "form",
        element("input", type="hidden", name="request", value=sealed),
        element("button", "Allow", type="submit", name="decision", value="allow"),
        element("button", "Cancel", type="submit", name="decision", value="cancel"),
        method="post",
        action=action,
    )
    return _page(
        "Allow access?",
        element("h1", f"Allow “{name}” to use your tools?"),
        *(element("p", warning, class_="note") for warning in warnings),
        element("dl", *([element("dt", key), element("dd", value)] for key, value in facts)),
        form,
    )


def onward_page(address: str, where: str) -> Markup:
    """Leads on to another site.

    Not a redirect: browsers apply `form-action` to those that follow a form, through every site up
    to the client.
    """
    forward = element("meta", http_equiv="refresh", content=f"0;url={address}")
    link = element("a", f"Continue to {where}", href=address, class_="go", rel="noreferrer")
    return _page("Continue", element("p", link), head=forward)


def return_page(address: str, where: str) -> Markup:
    """Leads back to a program whose request was wrong, if the person follows the link."""
    link = element("a", f"Go back to {where}", href=address, class_="go", rel="noreferrer")
    return _page(
        "Sign-in failed",
        element("h1", "This did not work"),
        element("p", "The program asked in a wrong way. Go back only if you started there."),
        element("p", link),
    )


def failure_page(reason: str, advice: str) -> Markup:
    """Says why it does not go on."""
    return _page(
        "Sign-in failed",
        element("h1", "This did not work"),
        element("p", reason),
        element("p", advice),
    )


def _page(title: str, *content: Content, head: Content = None) -> Markup:
    start = element(
        "head",
        element("meta", charset="utf-8"),
        element("title", f"{title} - Multitap"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        head,
        Markup(f"<style>{_STYLE}</style>"),
    )
    body = element("body", element("main", *content))
    return Markup(f"<!doctype html>{element('html', start, body, lang='en')}")
