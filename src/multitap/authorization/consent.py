"""The pages that a person sees between a client and the provider; plain, and without scripts."""

import base64
import hashlib

from multitap.authorization.clients import SignInClient, describe_target, is_local
from multitap.authorization.grants import AccessRequest
from multitap.http.server.pages import HtmlPages, document, forward
from multitap.markup import Content, Markup, element

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem}dt{font-weight:600}dd{margin:0 0 .6rem;overflow-wrap:anywhere}"
    ".note{border-left:.25rem solid #c60;padding-left:.75rem}"
    "button,.go{font:inherit;padding:.5rem 1.2rem;margin-right:.6rem}"
)
PAGES = HtmlPages(
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


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
    """Leads on to another site."""
    link = element("a", f"Continue to {where}", href=address, class_="go", rel="noreferrer")
    return _page("Continue", element("p", link), head=forward(address))


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
    style = Markup(f"<style>{_STYLE}</style>")
    return document(title, element("main", *content), head=[head, style])
