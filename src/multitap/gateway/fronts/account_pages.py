"""The pages on which people sign in and connect their accounts, as HTML without scripts."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from multitap.http.server import pages as http_pages
from multitap.markup import Content, Markup, element

# a file of its own, no attributes: the policy of these pages allows no other styles
STYLE = b"""
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 40rem; margin: 3rem auto; padding: 0 1rem; }
table { width: 100%; border-collapse: collapse; }
td, th { text-align: left; padding: .4rem .6rem .4rem 0; border-bottom: 1px solid #8885; }
input, button { font: inherit; padding: .4rem .7rem; }
input { width: 100%; box-sizing: border-box; margin: .2rem 0 1rem; }
form.row { display: inline; }
.error { color: #c33; }
"""


class AccountRow(NamedTuple):
    """One server on the page of a person's accounts."""

    server: str
    description: str
    is_connected: bool
    state: str


def sign_in(csrf: str, then: str, providers: Iterable[tuple[str, str]], reason: str = "") -> Markup:
    """The page for those who have not signed in."""
    form = _form(
        "/accounts/sign-in",
        csrf,
        element("label", "Your token for this gateway", for_="token"),
        element(
            "input", id="token", name="token", type="password", autocomplete="off", required=""
        ),
        element("input", type="hidden", name="then", value=then),
        element("button", "Sign in", type="submit"),
    )
    return page("Sign in", _alert(reason), provider_links(providers), form)


def provider_links(providers: Iterable[tuple[str, str]]) -> Content:
    """Where to sign in, by the names of the providers."""
    return [
        element("p", element("a", f"Sign in with {label}", href=address))
        for label, address in providers
    ]


def overview(
    csrf: str, person: str, rows: Sequence[AccountRow], *, is_admin: bool = False
) -> Markup:
    """My accounts."""
    table = element(
        "table",
        element("tr", *(element("th", title) for title in ("Server", "Account", ""))),
        *(_row(csrf, row) for row in rows),
    )
    leave = _form("/accounts/sign-out", csrf, element("button", "Sign out", type="submit"))
    return page(
        "My accounts",
        element("p", element("a", "Console", href="/console")) if is_admin else None,
        element("p", f"Signed in as {person}. Only you use the accounts that you connect here."),
        table if rows else element("p", "No server here needs an account of yours."),
        leave,
    )


def _row(csrf: str, row: AccountRow) -> Markup:
    what = "disconnect" if row.is_connected else "connect"
    act = _form(
        f"/accounts/{what}",
        csrf,
        element("input", type="hidden", name="server", value=row.server),
        element("button", what.capitalize(), type="submit"),
        is_row=True,
    )
    name = [element("strong", row.server), " ", row.description]
    return element("tr", element("td", name), element("td", row.state), element("td", act))


def consent(csrf: str, server: str, person: str, place: str, ticket: str) -> Markup:
    """The page behind a link, before anything happens."""
    return page(
        f"Connect {server}",
        element("p", f"You are signed in as {person}."),
        element(
            "p",
            f"Connect your own account at {place} with the server {server!r} of this gateway? "
            "Go on only if you have just asked for it.",
        ),
        _form(
            "/accounts/connect",
            csrf,
            element("input", type="hidden", name="server", value=server),
            element("input", type="hidden", name="for", value=ticket),
            element("button", "Connect", type="submit"),
        ),
    )


def keys(csrf: str, server: str, person: str, names: Sequence[str], reason: str = "") -> Markup:
    """The form for a person's own keys."""
    fields: list[Content] = []
    for name in names:
        fields += [
            element("label", name, for_=f"key-{name}"),
            element(
                "input",
                id=f"key-{name}",
                name=f"key-{name}",
                type="password",
                autocomplete="off",
                required="",
            ),
        ]
    return page(
        f"Connect {server}",
        _alert(reason),
        element("p", f"You are signed in as {person}. The server {server!r} needs a key of yours."),
        element("p", "It is stored encrypted, and no client or model sees it."),
        _form(
            "/accounts/keys",
            csrf,
            element("input", type="hidden", name="server", value=server),
            fields,
            element("button", "Connect", type="submit"),
        ),
    )


def no_server() -> Markup:
    return message("Not connected", "There is no such server.")


def forward(address: str, place: str) -> Markup:
    """A page that leads to an authorization server."""
    link = element("p", element("a", f"Continue at {place}", href=address))
    return page("Continue", link, head=http_pages.forward(address))


def message(title: str, *lines: str) -> Markup:
    """A page with words, and the way to the other accounts."""
    return page(
        title,
        *(element("p", line) for line in lines),
        element("p", element("a", "My accounts", href="/accounts")),
    )


def page(title: str, *content: Content, head: Content = None) -> Markup:
    """A whole page."""
    style = element("link", rel="stylesheet", href="/accounts/style.css")
    body = element("main", element("h1", title), *content)
    return http_pages.document(title, body, head=[style, head])


def _form(action: str, csrf: str, *content: Content, is_row: bool = False) -> Markup:
    guard = element("input", type="hidden", name="csrf", value=csrf)
    kind = "row" if is_row else None
    return element("form", guard, *content, method="post", action=action, class_=kind)


def _alert(reason: str) -> Content:
    return element("p", reason, class_="error", role="alert") if reason else None
