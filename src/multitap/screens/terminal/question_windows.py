"""Windows for servers' questions: a form, a page to visit, a sampling request."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

from multitap.catalog.schemas.form_fields import MOST_FIELDS, fields_of
from multitap.errors import shorten_and_count
from multitap.http.browser_address import host_of
from multitap.printable import printable
from multitap.screens.desktop import Desktop
from multitap.screens.terminal.windows import WINDOW_STYLE, FormWindow

MODEL = "human"
"""The model name in a sampling answer that a person typed."""
_LONGEST = 4000


class PageWindow(ModalScreen[bool]):
    """A page that a server wants the person to visit: shown in full, opened only on request."""

    CSS = WINDOW_STYLE.format(name="PageWindow")
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("o", "open", "Open"),
        Binding("a", "dismiss(True)", "Done"),
        Binding("escape,x", "dismiss(False)", "Decline"),
    ]

    def __init__(self, title: str, words: str, address: str, host: str, desktop: Desktop) -> None:
        super().__init__()
        self._title = title
        self._words = words
        self._address = address
        self._host = host
        self._desktop = desktop

    def compose(self) -> ComposeResult:
        warning = f"on the host {self._host}; do not open what you do not trust"
        text = f"{self._words}\n\n{self._address}\n\n{warning}"
        with Vertical() as window:
            window.border_title = printable(self._title)
            window.border_subtitle = "o: open in the browser, a: I have visited it, Esc: decline"
            with VerticalScroll(can_focus=True):
                yield Static(printable(text), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_open(self) -> None:
        if not self._desktop.open_page(self._address):
            words = "there is no browser here; copy the address if you trust it"
            self.notify(words, severity="warning")


class AnswerWindow(ModalScreen[str | None]):
    """A text that the person writes; None if they decline."""

    CSS = WINDOW_STYLE.format(name="AnswerWindow") + "AnswerWindow TextArea { height: 8; }"
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("escape", "dismiss(None)", "Decline", priority=True),
        Binding("ctrl+s", "send", "Send"),
    ]

    def __init__(self, title: str, words: str) -> None:
        super().__init__()
        self._title = title
        self._words = words

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = printable(self._title)
            window.border_subtitle = "Ctrl-S: send, Esc: decline"
            with VerticalScroll():
                yield Static(printable(self._words), markup=False)
            yield TextArea()

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    def action_send(self) -> None:
        self.dismiss(self.query_one(TextArea).text)


async def ask_person(
    app: App[None], desktop: Desktop, server: str, method: str, params: Raw
) -> tuple[Raw, str | None]:
    """Ask the person a server's question; returns the result, or an error.

    Args:
        app: Where the window opens; must be called in one of its workers.
        desktop: Opens the browser.
        server: The server that asks.
        method: The method of the request.
        params: Its parameters.
    """
    asked: dict[str, Any] = msgspec.json.decode(params)
    match method:
        case "elicitation/create" if asked.get("mode") == "url":
            answer = await _visit(app, desktop, server, asked)
        case "elicitation/create":
            answer = await _fill(app, server, asked)
        case "sampling/createMessage":
            window = AnswerWindow(f"{server} asks for a model's answer", sampling_words(asked))
            text = await app.push_screen_wait(window)
            if text is None:
                return Raw(b"null"), "the person at the screen declined to answer"
            answer = {
                "role": "assistant",
                "content": {"type": "text", "text": text},
                "model": MODEL,
                "stopReason": "endTurn",
            }
        case _:
            return Raw(b"null"), f"{method} is not supported"
    return Raw(msgspec.json.encode(answer)), None


async def _visit(
    app: App[None], desktop: Desktop, server: str, asked: Mapping[str, Any]
) -> dict[str, Any]:
    address = str(asked.get("url"))
    if (host := host_of(address)) is None:
        words = f"{server} asked to open what is not a plain web address: declined"
        app.notify(printable(words), severity="warning", markup=False)
        return {"action": "decline"}
    window = PageWindow(f"{server} asks", _cut(asked.get("message")), address, host, desktop)
    accepted = await app.push_screen_wait(window)
    return {"action": "accept" if accepted else "decline"}


async def _fill(app: App[None], server: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    schema: Mapping[str, Any] = asked.get("requestedSchema") or {}
    if len(fields_of(schema)) > MOST_FIELDS:
        app.notify(f"{printable(server)} asked too much at once: declined", severity="warning")
        return {"action": "decline"}
    window = FormWindow(f"{server} asks", _cut(asked.get("message")), schema)  # it says who asks
    filled = await app.push_screen_wait(window)
    return {"action": "decline"} if filled is None else {"action": "accept", "content": filled}


def sampling_words(asked: Mapping[str, Any]) -> str:
    """The messages of a sampling request."""
    system = asked.get("systemPrompt")
    messages = asked.get("messages") or ()
    return "\n".join(
        (
            "You can answer in place of a model.",
            *((f"system: {_cut(system)}",) if system else ()),
            *(f"{one.get('role')}: {_content(one.get('content'))}" for one in messages),
        )
    )


def _content(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(map(_content, content))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(content, Mapping):
        return _cut(content.get("text") or f"({content.get('type')})")  # pyright: ignore[reportUnknownArgumentType,reportUnknownMemberType]
    return _cut(content)


def _cut(text: Any) -> str:
    return shorten_and_count(str(text), _LONGEST)
