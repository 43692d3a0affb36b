"""The six places as read-only HTML without scripts."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from multitap.errors import BadArguments, MultitapError
from multitap.events import Withheld, untrusted_words
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.access_messages import AccessOverview, AuditPage
from multitap.gateway.fronts.control_service import ControlService
from multitap.screens.page.markup import Content, Markup, element
from multitap.screens.time_bars import Phases, duration
from multitap.screens.view_model import call_tone, server_rows, token_cost, token_costs
from multitap.store.call_records import CallRecord
from multitap.store.log_query import Page
from multitap.store.log_records import Activity
from multitap.store.record_filter import RecordFilter

PLACES: Mapping[str, str] = {
    "servers": "Servers",
    "calls": "Calls",
    "tools": "Tools",
    "clients": "Clients",
    "access": "Access",
    "log": "Log",
}
"""The last part of each address, and its title."""
STATIC = Path(__file__).parent / "static"
_ROWS = 200  # rows of a list; the filter finds the others
_SERVERS = (
    50  # servers in the first response, which a long table would delay; scripts show the others
)
_BAR = 120  # units of the drawing, not pixels: it is scaled
_PHASES = ("queue", "connect", "server", "encode")
Row = tuple[str, Sequence[Content]]
"""The tone of a row, and its cells."""


async def place_page(control: ControlService, place: str, filter_text: str) -> Markup:
    """One place, filtered.

    Args:
        control: The gateway's control service.
        place: The place.
        filter_text: A filter in the language of `RecordFilter`.
    """
    try:
        wanted = RecordFilter.parse(filter_text)
        shown: Content = await _READERS[place](control, wanted)
    except (BadArguments, MultitapError) as exc:
        shown = element("p", str(exc), " ", exc.hint or "", class_="note error", role="alert")
    return _page(PLACES[place], _header(place, filter_text), element("main", shown, id="main"))


def locked_page(words: str = "") -> Markup:
    """The page for browsers without a valid key."""
    told = element("p", words, class_="note error", role="alert") if words else None
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
        told,
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
    # no redirect: after a link on another site, the browser would not send the new cookie
    forward = element("meta", http_equiv="refresh", content="0;url=/console/servers")
    link = element("a", "Continue to the console", href="/console/servers")
    return _page("Welcome", element("main", element("p", link), id="main"), head=forward)


def _page(title: str, *content: Content, head: Content = None) -> Markup:
    start = element(
        "head",
        element("meta", charset="utf-8"),
        element("title", f"{title} - Multitap"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="/console/static/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/console/static/console.css"),
        head,
        # all at once: otherwise each is found only after its importer has been loaded
        *(element("link", rel="modulepreload", href=name) for name in _modules()),
        element("script", type="module", src="/console/static/console.js"),
    )
    body = element("body", *content)
    return Markup(f"<!doctype html>{element('html', start, body, lang='en')}")


@cache
def _modules() -> tuple[str, ...]:
    return tuple(f"/console/static/{file.name}" for file in sorted(STATIC.glob("*.js")))


def _header(place: str, filter_text: str) -> Markup:
    links = [
        element(
            "a",
            title,
            href=f"/console/{name}",
            aria_current="page" if name == place else None,
        )
        for name, title in PLACES.items()
    ]
    search = element(
        "form",
        element(
            "input",
            name="filter",
            type="search",
            value=filter_text,
            aria_label="Filter",
            placeholder="server:github status:error >500ms text",
        ),
        method="get",
        action=f"/console/{place}",
        role="search",
    )
    return element(
        "header",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("strong", "multitap", class_="brand"),
        element("nav", *links, aria_label="Places"),
        search,
        element("noscript", element("p", "Read-only: scripts are off", class_="note")),
        class_="top",
    )


def _table(header: Sequence[str], rows: Iterable[Row], empty: str) -> Markup:
    found = [
        element("tr", *(element("td", cell) for cell in cells), class_=tone) for tone, cells in rows
    ]
    if not found:
        return element("p", empty, class_="empty")
    head = element("tr", *(element("th", name, scope="col") for name in header))
    return element(
        "div",
        element("table", element("thead", head), element("tbody", *found)),
        class_="scroll",
        # otherwise a wide table cannot be scrolled with the keyboard
        tabindex=0,
        role="region",
        aria_label="Table",
    )


async def _servers(control: ControlService, wanted: RecordFilter) -> Content:
    state: protocol.GatewayState = await control.find(protocol.AskState())
    figures: protocol.Figures = await control.find(protocol.AskFigures())
    tools: list[protocol.ToolLine] = await control.find(protocol.AskTools())
    rows = [
        one for one in server_rows(state, figures, token_costs(tools)) if wanted.matches(one.fields)
    ]
    troubles = (*state.degraded, *([figures.gap] if figures.gap else ()))
    notes = [element("p", words, class_="note error") for words in troubles]
    header = ("Server", "State", "Reason", "Tools", "Tokens", "Calls", "Errors", "p95", "Ping")
    cells: list[Row] = [
        (
            row.tone,
            (
                row.name,
                row.state,
                f"{row.reason} {row.fix}".strip(),
                row.tools,
                row.tokens,
                row.calls,
                row.errors,
                duration(row.p95),
                duration(row.latency),
                row.restarts,
                row.era,
                row.level,
            ),
        )
        for row in rows[:_SERVERS]
    ]
    table = _table((*header, "Restarts", "Era", "Level"), cells, "There is no such server.")
    if state.snapshot.withheld:
        notes.append(await _untrusted_note(control, state.snapshot.withheld))
    if len(rows) <= _SERVERS:
        return [*notes, table]
    more = f"{len(rows) - _SERVERS} more servers: the filter finds them."
    return [*notes, table, element("p", more, class_="quiet")]


async def _untrusted_note(control: ControlService, withheld: Sequence[Withheld]) -> Markup:
    review: str = await control.find(protocol.AskTrustReview())
    words = f"{untrusted_words(withheld)}. This page cannot trust them."
    return element("details", element("summary", words), element("pre", review), class_="note")


async def _calls(control: ControlService, wanted: RecordFilter) -> Content:
    page: Page[CallRecord] = await control.find(protocol.AskCalls(wanted.text, _ROWS))
    # one scale for all bars, so that they can be compared
    longest = max((one.seconds for one in page.records), default=0.0)
    header = ("Time", "Who", "Server", "Tool", "Outcome", "Took", "Queue, connect, server, encode")
    rows: list[Row] = [
        (
            call_tone(one),
            (
                _clock(one.at),
                one.client or one.agent or "",
                one.server,
                one.tool,
                one.outcome.value,
                duration(one.seconds),
                _bar(one, longest),
                one.error or "",
            ),
        )
        for one in page.records
    ]
    return _table((*header, "Note"), rows, "No such calls yet.")


def _bar(record: CallRecord, longest: float) -> Markup:
    phases = Phases.of(record.seconds, record.queued, record.connecting, record.encoding)
    parts: list[Markup] = []
    start = 0.0
    for name in _PHASES:
        width = getattr(phases, name) / longest * _BAR if longest else 0.0
        if width:
            parts.append(
                element(
                    "rect", x=round(start, 2), y=2, width=round(width, 2), height=8, class_=name
                )
            )
        start += width
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {_BAR} 12",
        class_="bar",
        role="img",
        aria_label=phases.words or "no time",
    )


async def _tools(control: ControlService, wanted: RecordFilter) -> Content:
    tools: list[protocol.ToolLine] = await control.find(protocol.AskTools())
    found = [
        one
        for one in tools
        if wanted.matches(
            {"server": one.server, "tool": one.name, "kind": "tool", "text": one.description}
        )
    ]
    if not found:
        return element("p", "There is no such tool.", class_="empty")
    return [
        element(
            "details",
            element(
                "summary",
                element("strong", tool.name),
                f" {tool.server}, {token_cost(tool):,} tokens",
            ),
            element("p", tool.description, class_="said"),
            element("pre", json.dumps(tool.input_schema, indent=2, ensure_ascii=False)),
            class_="tool",
        )
        for tool in found[:_ROWS]
    ]


async def _clients(control: ControlService, wanted: RecordFilter) -> Content:
    figures: protocol.Figures = await control.find(protocol.AskFigures())
    header = ("Client", "Version", "Protocol", "Profile", "Token", "Can be asked", "Under way")
    rows: list[Row] = [
        (
            "quiet",
            (
                one.name or "(unnamed)",
                one.version,
                one.protocol_version,
                one.profile or "",
                one.principal,
                ", ".join(one.capabilities),
                one.requests,
            ),
        )
        for one in figures.clients
        if wanted.matches({"client": one.name, "kind": "client", "text": one.principal})
    ]
    return _table(header, rows, "No client is connected.")


async def _access(control: ControlService, wanted: RecordFilter) -> Content:
    access: AccessOverview = await control.find(protocol.AskAccess())
    audit: AuditPage = await control.find(protocol.AskAudit(wanted.text, 50))
    tokens: list[Row] = [
        (
            "quiet",
            (
                one.name,
                one.id,
                one.state,
                "console" if one.is_console else ", ".join(one.allow) or "all tools",
                one.profile or "",
                _day(one.expires) if one.expires else "never",
                _day(one.last_use) if one.last_use else "never",
            ),
        )
        for one in access.tokens
    ]
    entries: list[Row] = [
        (
            "warning" if row.record.decision == "deny" else "quiet",
            (
                row.entry,
                _day(row.record.at),
                row.who,
                row.what,
                row.record.decision,
                row.record.outcome,
                row.record.detail,
            ),
        )
        for row in audit.records
    ]
    reviews = [
        element(
            "details",
            element("summary", element("strong", one.server), f": {len(one.tools)} tools changed"),
            *(
                element("pre", "\n".join((f"{tool.tool} ({tool.change})", *tool.difference)))
                for tool in one.tools
            ),
        )
        for one in access.pins
    ]
    header = ("Name", "Id", "State", "Allows", "Profile", "Expires", "Last use")
    return [
        *(element("p", words, class_="note error") for words in access.trouble),
        element("h2", "Tokens"),
        _table(header, tokens, "There are no tokens."),
        element("h2", "Changed tools"),
        reviews or element("p", "All tools are as pinned.", class_="empty"),
        element("h2", "Audit"),
        _table(
            ("Entry", "Time", "Who", "What", "Decision", "Outcome", "Note"), entries, "No entries."
        ),
    ]


async def _log(control: ControlService, wanted: RecordFilter) -> Content:
    page: Page[Activity] = await control.find(protocol.AskLog(wanted.text, _ROWS))
    quiet = {"debug", "info", "notice"}
    rows: list[Row] = [
        (
            "quiet" if one.level in quiet else "warning" if one.level == "warning" else "error",
            (_clock(one.at), one.level, one.server or "", one.text),
        )
        for one in page.records
    ]
    return _table(("Time", "Level", "Server", "What"), rows, "Nothing has happened yet.")


Reader = Callable[[ControlService, RecordFilter], Any]
_READERS: Mapping[str, Reader] = {
    "servers": _servers,
    "calls": _calls,
    "tools": _tools,
    "clients": _clients,
    "access": _access,
    "log": _log,
}


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
