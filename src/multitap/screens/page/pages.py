"""The pages of the console as HTML."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from multitap.control.messages import GatewayState
from multitap.control.service import ControlService
from multitap.errors import MultitapError
from multitap.gateway.fronts.account_pages import provider_links
from multitap.http.server.pages import document, forward
from multitap.markup import Content, Markup, element
from multitap.screens.view import server_rows

PLACES: Mapping[str, str] = {
    "servers": "Servers",
    "calls": "Calls",
    "tools": "Tools",
    "clients": "Clients",
    "access": "Access",
    "log": "Log",
    "tasks": "Tasks",
}
"""The last part of each address, and its title."""
STATIC = Path(__file__).parent / "static"


async def place_page(control: ControlService, place: str) -> Markup:
    """The page of one place, which its scripts fill; without scripts, the state of the servers."""
    try:
        state = await control.state()
    # the page is sent all the same, and says why it has nothing to show
    except MultitapError as exc:
        status: Content = element("p", str(exc), " ", exc.hint or "", class_="note error")
    else:
        status = _status(state)
    note = element(
        "noscript",
        element("h1", "The console needs JavaScript"),
        element("p", element("code", "multitap"), " shows the same in a terminal."),
        status,
    )
    return _page(PLACES[place], element("main", note, id="main", data_place=place))


def _status(state: GatewayState) -> Content:
    rows = server_rows(state, None, {})
    lines = (
        f"{row.name}: {'; '.join(filter(None, (row.state, row.reason, row.fix)))}" for row in rows
    )
    return [
        *(element("p", trouble, class_="note error") for trouble in state.degraded),
        element("ul", *(element("li", line) for line in lines)),
    ]


def locked_page(reason: str = "", providers: Iterable[tuple[str, str]] = ()) -> Markup:
    """The page for browsers without a valid key; people may sign in with one of the providers."""
    alert = element("p", reason, class_="note error", role="alert") if reason else None
    form = element(
        "form",
        element("label", "Key of a link", for_="key"),
        element("input", id="key", name="key", type="password", autocomplete="off", required=""),
        element("button", "Open", type="submit", class_="primary"),
        method="post",
        action="/console/enter",
    )
    card = element(
        "main",
        element("h1", "The console is locked"),
        alert,
        provider_links(providers),
        element(
            "p",
            "Open the link that ",
            element("code", "multitap serve --http"),
            " printed, or get a new one: ",
            element("code", "multitap console"),
        ),
        form,
        id="main",
        class_="locked",
    )
    return _page("Locked", card)


def entered_page() -> Markup:
    """A page that leads to the console and leaves the address with the key."""
    link = element("a", "Continue to the console", href="/console/servers")
    return _page(
        "Welcome", element("main", element("p", link), id="main"), head=forward("/console/servers")
    )


def _page(title: str, *content: Content, head: Content = None) -> Markup:
    parts = [
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="/console/static/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/console/static/console.css"),
        head,
        # all at once: otherwise each is found only after its importer has been loaded
        *(element("link", rel="modulepreload", href=name) for name in _modules()),
        element("script", type="module", src="/console/static/console.js"),
    ]
    return document(title, *content, head=parts)


@cache
def _modules() -> tuple[str, ...]:
    return tuple(f"/console/static/{file.name}" for file in sorted(STATIC.glob("*.js")))
