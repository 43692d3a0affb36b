"""Calls a tool from the screen: argument form, questions, result."""

import difflib
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from msgspec import Raw
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from multitap.catalog.schemas.typed_arguments import to_arguments, words
from multitap.control.messages import PersonReply, ProgressStep, ServerQuestion, ToolLine
from multitap.control.methods import ActionUser
from multitap.errors import MultitapError
from multitap.printable import printable
from multitap.results import ToolResult
from multitap.screens.live_view import LiveView
from multitap.screens.markdown import ShownMarkdown, is_markdown
from multitap.screens.terminal.windows import (
    LONGEST,
    WINDOW_STYLE,
    Desktop,
    FormWindow,
    TextWindow,
    ask_person,
)
from multitap.screens.typed_commands import TypedCommand
from multitap.store.tables import CallRecord

NO_ARGUMENTS = (
    "The arguments of this call were not kept, so fill them in. "
    'With `record = "all"` in multitap.toml, later calls are kept.'
)


class ResultWindow(ModalScreen[None]):
    """A result to read, save, or open in another program; pictures are described in its text."""

    CSS = WINDOW_STYLE.format(name="ResultWindow")
    BINDINGS = [  # noqa: RUF012 - as Textual declares them
        Binding("escape,q,enter", "dismiss", "Close"),
        Binding("s", "save", "Save"),
        Binding("o", "open", "Open the picture"),
        Binding("m", "toggle_markdown", "Markdown"),
    ]

    def __init__(self, name: str, result: ToolResult, desktop: Desktop) -> None:
        super().__init__()
        self._tool = name
        self.result = result
        self._desktop = desktop
        self._is_markdown = is_markdown(result.text[:LONGEST])
        self._is_formatted = self._is_markdown

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = f"{self._tool}: {'failed' if self.result.is_error else 'ok'}"
            viewer = "o: open the picture, " if self.result.images else ""
            source = "m: formatted or source, " if self._is_markdown else ""
            window.border_subtitle = f"s: save, {viewer}{source}Esc: close"
            with VerticalScroll(can_focus=True):
                yield Static(self._shown, markup=False, id="words")

    @property
    def _shown(self) -> str | ShownMarkdown:
        return ShownMarkdown(self.words) if self._is_formatted else self.words

    def action_toggle_markdown(self) -> None:
        self._is_formatted = self._is_markdown and not self._is_formatted
        self.query_one("#words", Static).update(self._shown)

    @property
    def words(self) -> str:
        """The text that is shown."""
        text = printable(self.result.text)
        if len(text) > LONGEST:
            return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} characters more; s saves all"
        return text or "(the answer is empty)"

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    async def action_save(self) -> None:
        try:
            paths = await to_thread.run_sync(self._desktop.save, self.result, self._tool)
        except MultitapError as exc:
            self.notify(printable(str(exc)), severity="error", markup=False)
        else:
            self.notify(printable("\n".join(f"saved {path}" for path in paths)), markup=False)

    async def action_open(self) -> None:
        if not await to_thread.run_sync(self._desktop.open_picture, self.result):
            self.notify("there is no picture viewer here; s saves it", severity="warning")


class WaitingWindow(ModalScreen[None]):
    """The window of a running call; leaving it cancels the call."""

    CSS = WINDOW_STYLE.format(name="WaitingWindow")
    BINDINGS = [Binding("escape,ctrl+c", "dismiss", "Cancel")]  # noqa: RUF012 - as Textual has it

    def __init__(self, name: str) -> None:
        super().__init__()
        self._tool = name

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            window.border_title = printable(self._tool)
            window.border_subtitle = "Esc: cancel the call"
            yield Static("waiting for the server", markup=False)

    def show(self, step: ProgressStep) -> None:
        total = "" if step.total is None else f" of {step.total:g}"
        self.query_one(Static).update(printable(f"{step.done:g}{total} {step.message or ''}"))


class CallDialog:
    """Makes calls for the person at the screen."""

    def __init__(self, app: App[None], view: LiveView, desktop: Desktop) -> None:
        self._app = app
        self._view = view
        self._desktop = desktop

    async def fill_and_call(
        self, tool: ToolLine, start: Mapping[str, Any] | None = None, remark: str = ""
    ) -> None:
        """Ask for the arguments, starting with these values, and call the tool."""
        message = "\n\n".join(filter(None, (remark, tool.description)))
        form = FormWindow(f"call {tool.name}", message, tool.input_schema, start, is_call=True)
        filled = await self._app.push_screen_wait(form)
        if filled is not None:
            await self._call(tool.name, filled)

    async def call_typed(self, command: TypedCommand) -> None:
        """Call a tool with arguments as typed; without any, ask for those it needs.

        Raises:
            MultitapError: They do not match, or the call failed.
        """
        tool = self._view.tools.get(command.about)
        if tool is None:  # its server may be asleep, or still starting
            tool = await self._view.client.tool(command.about)
        if not command.arguments and tool.input_schema.get("required"):
            await self.fill_and_call(tool)
        else:
            await self._call(tool.name, to_arguments(words(command.arguments), tool.input_schema))

    async def replay(self, call: CallRecord) -> None:
        """Repeat a call after the person has seen its arguments.

        Raises:
            MultitapError: The tool no longer exists, or the call failed.
        """
        tool = self._view.tool_of(call)
        if tool is None:
            raise MultitapError(f"{call.server} no longer has {call.tool}")
        arguments = await self._view.arguments(call)
        remark = "" if arguments is not None else NO_ARGUMENTS
        await self.fill_and_call(tool, arguments, remark)

    async def compare(self, call: CallRecord) -> None:
        """Show how a call differs from the last good call of the same tool."""
        good = await self._view.last_good(call)
        if good is None or call.exchange is None:
            reason = 'There is no recorded call to compare with; set `record = "all"`.'
            self._app.push_screen(TextWindow("Compare", reason))
            return
        before, after = await self._view.exchange_text(good), await self._view.exchange_text(call)
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), "last good", "this one", lineterm=""
        )
        text = "\n".join(lines) or "no difference"
        self._app.push_screen(TextWindow(f"{call.server} {call.tool}", text))

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> None:
        waiting = WaitingWindow(name)
        person = _PersonAtScreen(self._app, self._desktop, waiting)
        encoded = Raw(msgspec.json.encode(arguments))
        with anyio.CancelScope() as scope:
            # however the window closes: a call without its window must not go on
            self._app.push_screen(waiting, lambda _: scope.cancel())
            try:
                delivery = await self._view.client.call(name, encoded, person=person)
            finally:
                # not when a question of the server is open on top of it
                if waiting.is_current:
                    waiting.dismiss()
            result = ToolResult(delivery.result, delivery.server, delivery.tool)
            self._app.push_screen(ResultWindow(name, result, self._desktop))
            return
        self._app.notify(f"the call of {printable(name)} was cancelled", markup=False)


class _PersonAtScreen(ActionUser):
    """Sees the progress of a call in its window, and is asked in others."""

    can_answer = True

    def __init__(self, app: App[None], desktop: Desktop, waiting: WaitingWindow) -> None:
        self._app = app
        self._desktop = desktop
        self._waiting = waiting

    def on_progress(self, step: ProgressStep) -> None:
        self._waiting.show(step)

    async def answer(self, question: ServerQuestion) -> PersonReply:
        result, refusal = await ask_person(
            self._app, self._desktop, question.server, question.method, question.params
        )
        return PersonReply(result, refusal)
