"""Windows of the screen: a text to read, a form to fill in."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from multitap.catalog.schemas.argument_words import ArgumentWord
from multitap.catalog.schemas.form_fields import FormField, InvalidInput, fields_of
from multitap.catalog.schemas.typed_arguments import to_arguments
from multitap.errors import BadArguments, MultitapError
from multitap.printable import printable

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
        title: The title of the window.
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
                yield Static(self._visible_text(), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        if self._source is not None:
            self.set_interval(1.0, self._look_again)
            self._look_again()

    def _look_again(self) -> None:
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
        return printable(self.text[-LONGEST:]) or "(nothing yet)"


class ReviewWindow(TextWindow):
    """A text with a decision: yes, no, or later.

    Args:
        title: The title of the window.
        text: Untrusted text.
        words: The labels of yes and no.
        decide: Called with the decision; the window shows an error.
    """

    CSS = WINDOW_STYLE.format(name="ReviewWindow")
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("a", "decide(True)", "Accept"),
        Binding("x", "decide(False)", "Reject"),
        Binding("escape,q", "dismiss", "Later"),
    ]

    def __init__(self, title: str, text: str, words: tuple[str, str], decide: Verdict) -> None:
        super().__init__(title, text)
        self._words = words
        self._decide = decide

    def on_mount(self) -> None:
        super().on_mount()
        yes, no = self._words
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
        title: Who asks for what.
        words: The message.
        schema: The schema of the requested object.
        known: Initial values.
        is_call: Whether it asks for the arguments of a tool, which may have any type; a form of
            a server has only simple fields, with checks defined by the protocol.
    """

    CSS = WINDOW_STYLE.format(name="FormWindow") + "FormWindow #words { max-height: 6; }"
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
        words: str,
        schema: Mapping[str, Any],
        known: Mapping[str, Any] | None = None,
        *,
        is_call: bool = False,
    ) -> None:
        super().__init__()
        self._title = title
        self._words = words
        self._schema = schema
        self._fields = fields_of(schema)
        self._known = known or {}
        self._is_call = is_call

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = printable(self._title)
            following = "Enter: next field, Ctrl-S: send" if self._fields else "Enter: send"
            window.border_subtitle = f"{following}, Esc: cancel"
            with VerticalScroll(can_focus=True, id="words"):
                yield Static(printable(self._words), markup=False)
            with VerticalScroll(can_focus=False):
                for number, field in enumerate(self._fields):
                    yield Static(_label(field), markup=False)
                    yield Input(self._start(field), id=f"field-{number}", compact=True)
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
                if box.value.strip():
                    content[field.name] = self._value(field, box.value.strip())
                elif field.required:
                    raise InvalidInput(f"expected {_takes(field)}")  # noqa: TRY301 - one way to complain
            except (InvalidInput, BadArguments) as exc:
                words = str(exc).removeprefix(f"{field.name}: ")
                self.query_one("#complaint", Static).update(printable(f"{field.name}: {words}"))
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
        value = self._known.get(field.name, field.default)
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
    words = f"{_takes(field)}: {choices}" if choices else _takes(field)
    return printable(f"{field.name}{need} ({words}) {about}")


def _takes(field: FormField) -> str:
    kind = field.schema.get("type")
    if kind == "object":
        return "an object as JSON"
    if kind == "array" and not field.choices:
        return "a list as JSON, or one item"
    return field.words if kind or field.choices else "text or JSON"
