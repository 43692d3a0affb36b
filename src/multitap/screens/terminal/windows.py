"""Windows of the screen: a text to read, a form to fill in, a server's question."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from multitap.catalog.schemas.form_fields import MOST_FIELDS, FormField, InvalidInput, fields_of
from multitap.catalog.schemas.typed_arguments import ArgumentWord, to_arguments
from multitap.control.messages import cut_text, sampling_answer, sampling_lines
from multitap.errors import BadArguments, MultitapError
from multitap.http.addresses import host_of
from multitap.printable import printable
from multitap.results import ToolResult


class Desktop(msgspec.Struct, frozen=True):
    """The person's files and viewers, as the program that opens the screen reaches them."""

    save: Callable[[ToolResult, str], Sequence[Path]]
    """Write a result to files named after a tool; returns their paths. Blocks."""
    open_picture: Callable[[ToolResult], bool]
    """Show the first picture of a result in a viewer; returns whether there is a viewer. Blocks."""
    open_page: Callable[[str], bool]
    """Show a page in the browser; False without a browser, or if the address is unsafe."""


NOTHING = Desktop(
    save=lambda _result, _name: (),
    open_picture=lambda _result: False,
    open_page=lambda _address: False,
)
"""For a screen without files, viewers and browser."""


WINDOW_STYLE = """
{name} {{ align: center middle; }}
{name} > Vertical {{
    width: 90%; max-width: 100; height: auto; max-height: 90%;
    border: round $primary; padding: 0 1; background: $surface;
}}
{name} VerticalScroll {{ height: auto; max-height: 100%; }}
{name} .wrong {{ color: $error; }}
"""
LONGEST = 100_000
"""Characters of a text that are shown; more would slow down the screen."""

Verdict = Callable[[bool], Awaitable[None]]
"""Called with whether the person accepts."""


class TextWindow(ModalScreen[None]):
    """A text, scrolled by the usual keys.

    Args:
        text: Untrusted text, which is made harmless here.
        source: Returns the current text every second; the window scrolls to its end.
    """

    CSS = WINDOW_STYLE.format(name="TextWindow")
    BINDINGS = [Binding("escape,q,enter", "dismiss", "Close")]  # noqa: RUF012 - as Textual has it

    def __init__(
        self, title: str, text: str = "", source: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        super().__init__()
        self._title = title
        self.text = text
        self._source = source

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = printable(self._title)
            window.border_subtitle = "Esc: close"
            with VerticalScroll(can_focus=True):
                # without markup: text of a server must not become colours and links
                yield Static(self._visible_text(), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        if self._source is not None:
            self.set_interval(1.0, self._look_again)
            self._look_again()

    def _look_again(self) -> None:
        # exclusive: a slow answer must not replace a later one
        self.run_worker(self._refresh(), exclusive=True, exit_on_error=False)

    async def _refresh(self) -> None:
        try:
            text = await self._source() if self._source else self.text
        except MultitapError as exc:
            text = str(exc)
        if text == self.text:
            return
        self.text = text
        scroll = self.query_one(VerticalScroll)
        at_end = scroll.scroll_offset.y >= scroll.max_scroll_y
        self.query_one(Static).update(self._visible_text())
        if at_end:
            scroll.scroll_end(animate=False)

    def _visible_text(self) -> str:
        # the end, where the text of a log grows
        return printable(self.text[-LONGEST:]) or "(nothing yet)"


class ReviewWindow(TextWindow):
    """A text with a decision: yes, no, or later.

    Args:
        decide: Called with the decision; the window shows an error.
    """

    CSS = WINDOW_STYLE.format(name="ReviewWindow")
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("a", "decide(True)", "Accept"),
        Binding("x", "decide(False)", "Reject"),
        Binding("escape,q", "dismiss", "Later"),
    ]

    def __init__(self, title: str, text: str, labels: tuple[str, str], decide: Verdict) -> None:
        super().__init__(title, text)
        self._labels = labels
        self._decide = decide

    def on_mount(self) -> None:
        super().on_mount()
        yes, no = self._labels
        self.query_one(Vertical).border_subtitle = f"a: {yes}, x: {no}, Esc: later"

    async def action_decide(self, accepted: bool) -> None:  # noqa: FBT001 - as actions are called
        try:
            await self._decide(accepted)
        except MultitapError as exc:
            self.notify(printable(str(exc)), severity="error", markup=False)
        self.dismiss()


class FormWindow(ModalScreen[dict[str, Any] | None]):
    """A form made from a schema; None if the person cancels it.

    Args:
        is_call: Whether it asks for the arguments of a tool, which may have any type; a form of
            a server has only simple fields, with checks defined by the protocol.
    """

    CSS = (
        WINDOW_STYLE.format(name="FormWindow")
        + "FormWindow #words { max-height: 6; }"
        + "FormWindow Input { height: 3; border: round $border-blurred; }"
        + "FormWindow Input:focus { border: round $border; }"
    )
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("escape", "leave", "Cancel"),
        Binding("ctrl+s", "submit", "Send"),
        # before the field, which handles Enter itself
        Binding("enter", "next_field", show=False, priority=True),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(
        self,
        title: str,
        message: str,
        schema: Mapping[str, Any],
        start: Mapping[str, Any] | None = None,
        *,
        is_call: bool = False,
    ) -> None:
        super().__init__()
        self._title = title
        self._message = message
        self._schema = schema
        self._fields = fields_of(schema)
        self._values = start or {}
        self._is_call = is_call

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = printable(self._title)
            following = "Enter: next field, Ctrl-S: send" if self._fields else "Enter: send"
            window.border_subtitle = f"{following}, Esc: cancel"
            with VerticalScroll(can_focus=True, id="words"):
                yield Static(printable(self._message), markup=False)
            with VerticalScroll(can_focus=False):
                for number, field in enumerate(self._fields):
                    yield Static(_label(field), markup=False)
                    yield Input(self._start(field), id=f"field-{number}")
                yield Static("", id="complaint", classes="wrong", markup=False)

    def on_mount(self) -> None:
        self.query(Input if self._fields else VerticalScroll).first().focus()

    def action_next_field(self) -> None:
        """Go to the next field; after the last one, send."""
        boxes = [*self.query(Input)]
        number = boxes.index(self.focused) + 1 if isinstance(self.focused, Input) else 0
        if number < len(boxes):
            self.set_focus(boxes[number])
        else:
            self.action_submit()

    def action_submit(self) -> None:
        content: dict[str, Any] = {}
        for number, field in enumerate(self._fields):
            box = self.query_one(f"#field-{number}", Input)
            try:
                # an empty field is left out, because a schema may refuse an empty text
                if box.value.strip():
                    content[field.name] = self._value(field, box.value.strip())
                elif field.required:
                    raise InvalidInput(f"expected {_takes(field)}")  # noqa: TRY301 - one way to complain
            except (InvalidInput, BadArguments) as exc:
                message = str(exc).removeprefix(f"{field.name}: ")
                self.query_one("#complaint", Static).update(printable(f"{field.name}: {message}"))
                box.focus()
                return
        self.dismiss(content)

    def action_leave(self) -> None:
        self.dismiss(None)

    def _value(self, field: FormField, text: str) -> Any:
        if self._is_call:
            return to_arguments([ArgumentWord(field.name, text)], self._schema)[field.name]
        return field.value(text)

    def _start(self, field: FormField) -> str:
        value = self._values.get(field.name, field.default)
        if value is None or isinstance(value, str):
            return value or ""
        if not self._is_call and isinstance(value, list):
            return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
        return json.dumps(value, ensure_ascii=False)


def _label(field: FormField) -> str:
    need = " *" if field.required else ""
    choices = ", ".join(
        value if value == title else f"{value} ({title})" for value, title in field.choices
    )
    about = field.schema.get("description") or ""
    kind = f"{_takes(field)}: {choices}" if choices else _takes(field)
    return printable(f"{field.name}{need} ({kind}) {about}")


def _takes(field: FormField) -> str:
    kind = field.schema.get("type")
    if kind == "object":
        return "an object as JSON"
    if kind == "array" and not field.choices:
        return "a list as JSON, or one item"
    return field.words if kind or field.choices else "text or JSON"


"""The model name in a sampling answer that a person typed."""


class PageWindow(ModalScreen[bool]):
    """A page that a server wants the person to visit: shown in full, opened only on request."""

    CSS = WINDOW_STYLE.format(name="PageWindow")
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("o", "open", "Open"),
        Binding("a", "dismiss(True)", "Done"),
        Binding("escape,x", "dismiss(False)", "Decline"),
    ]

    def __init__(self, title: str, message: str, address: str, host: str, desktop: Desktop) -> None:
        super().__init__()
        self._title = title
        self._message = message
        self._address = address
        self._host = host
        self._desktop = desktop

    def compose(self) -> ComposeResult:
        warning = f"on the host {self._host}; do not open what you do not trust"
        text = f"{self._message}\n\n{self._address}\n\n{warning}"
        with Vertical() as window:
            window.border_title = printable(self._title)
            window.border_subtitle = "o: open in the browser, a: I have visited it, Esc: decline"
            with VerticalScroll(can_focus=True):
                yield Static(printable(text), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_open(self) -> None:
        if not self._desktop.open_page(self._address):
            message = "there is no browser here; copy the address if you trust it"
            self.notify(message, severity="warning")


class AnswerWindow(ModalScreen[str | None]):
    """A text that the person writes; None if they decline."""

    CSS = WINDOW_STYLE.format(name="AnswerWindow") + "AnswerWindow TextArea { height: 8; }"
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("escape", "dismiss(None)", "Decline", priority=True),
        Binding("ctrl+s", "send", "Send"),
    ]

    def __init__(self, title: str, message: str) -> None:
        super().__init__()
        self._title = title
        self._message = message

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = printable(self._title)
            window.border_subtitle = "Ctrl-S: send, Esc: decline"
            with VerticalScroll():
                yield Static(printable(self._message), markup=False)
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
    """
    question: dict[str, Any] = msgspec.json.decode(params)
    match method:
        case "elicitation/create" if question.get("mode") == "url":
            answer = await _visit(app, desktop, server, question)
        case "elicitation/create":
            answer = await _fill(app, server, question)
        case "sampling/createMessage":
            lines = ("You can answer in place of a model.", *sampling_lines(question))
            window = AnswerWindow(f"{server} asks for a model's answer", "\n".join(lines))
            text = await app.push_screen_wait(window)
            if text is None:
                return Raw(b"null"), "the person at the screen declined to answer"
            answer = sampling_answer(text)
        case _:
            return Raw(b"null"), f"{method} is not supported"
    return Raw(msgspec.json.encode(answer)), None


async def _visit(
    app: App[None], desktop: Desktop, server: str, question: Mapping[str, Any]
) -> dict[str, Any]:
    address = str(question.get("url"))
    if (host := host_of(address)) is None:
        message = f"{server} asked to open what is not a plain web address: declined"
        app.notify(printable(message), severity="warning", markup=False)
        return {"action": "decline"}
    window = PageWindow(f"{server} asks", cut_text(question.get("message")), address, host, desktop)
    accepted = await app.push_screen_wait(window)
    return {"action": "accept" if accepted else "decline"}


async def _fill(app: App[None], server: str, question: Mapping[str, Any]) -> dict[str, Any]:
    schema: Mapping[str, Any] = question.get("requestedSchema") or {}
    # a hostile form with thousands of fields would block the screen
    if len(fields_of(schema)) > MOST_FIELDS:
        app.notify(f"{printable(server)} asked too much at once: declined", severity="warning")
        return {"action": "decline"}
    message = cut_text(question.get("message"))
    window = FormWindow(f"{server} asks", message, schema)  # it says who asks
    filled = await app.push_screen_wait(window)
    return {"action": "decline"} if filled is None else {"action": "accept", "content": filled}
