"""Dialogs of the screen: a text to read, a form to fill in."""

from collections.abc import Mapping
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from multitap.catalog.schemas.form_fields import FormField, Unfit, fields_of
from multitap.printable import printable

_STYLE = """
{name} {{ align: center middle; }}
{name} > Vertical {{
    width: 90%; max-width: 100; height: auto; max-height: 90%;
    border: round $primary; padding: 0 1; background: $surface;
}}
{name} VerticalScroll {{ height: auto; max-height: 100%; }}
{name} .wrong {{ color: $error; }}
"""


class Reading(ModalScreen[None]):
    """A text, scrolled by the usual keys.

    Args:
        title: What it is.
        text: As it came; made harmless here.
    """

    CSS = _STYLE.format(name="Reading")
    BINDINGS = [Binding("escape,q,enter", "dismiss", "Close")]  # noqa: RUF012 - as Textual has it

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = self._title
            window.border_subtitle = "Esc closes"
            with VerticalScroll(can_focus=True):
                yield Static(printable(self._text), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


class Filling(ModalScreen[dict[str, Any] | None]):
    """A form made from a schema; None where the person leaves it.

    Args:
        title: Who wants to know what.
        words: What they say about it.
        schema: Of the object that is wanted.
        known: Values to begin with.
    """

    CSS = _STYLE.format(name="Filling")
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("escape", "leave", "Cancel"),
        Binding("ctrl+s", "submit", "Send"),
    ]

    def __init__(
        self,
        title: str,
        words: str,
        schema: Mapping[str, Any],
        known: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._title = title
        self._words = words
        self._fields = fields_of(schema)
        self._known = known or {}

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = self._title
            window.border_subtitle = "Enter: next field, Ctrl-S: send, Esc: cancel"
            with VerticalScroll():
                yield Static(printable(self._words), markup=False)
                for number, field in enumerate(self._fields):
                    yield Label(_label(field), markup=False)
                    yield Input(self._start(field), id=f"field-{number}")
                yield Static("", id="complaint", classes="wrong", markup=False)

    def on_mount(self) -> None:
        inputs = self.query(Input)
        if inputs:
            inputs.first().focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go on to the next field; after the last one, send."""
        number = int(str(event.input.id).removeprefix("field-")) + 1
        if number < len(self._fields):
            self.query_one(f"#field-{number}", Input).focus()
        else:
            self.action_submit()

    def action_submit(self) -> None:
        content: dict[str, Any] = {}
        for number, field in enumerate(self._fields):
            box = self.query_one(f"#field-{number}", Input)
            try:
                if box.value.strip():
                    content[field.name] = field.value(box.value.strip())
                elif field.required:
                    raise Unfit(f"expected {field.words}")  # noqa: TRY301 - one way to complain
            except Unfit as exc:
                self.query_one("#complaint", Static).update(f"{field.name}: {exc}")
                box.focus()
                return
        self.dismiss(content)

    def action_leave(self) -> None:
        self.dismiss(None)

    def _start(self, field: FormField) -> str:
        value = self._known.get(field.name, field.default)
        return "" if value is None else str(value)


def _label(field: FormField) -> str:
    need = " *" if field.required else ""
    choices = ", ".join(value for value, _ in field.choices)
    about = field.schema.get("description") or ""
    words = f"{field.words}: {choices}" if choices else field.words
    return printable(f"{field.name}{need} ({words}) {about}")
