"""Calls a tool from the screen: argument form, questions, result."""

import difflib
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec
from msgspec import Raw
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from multitap.catalog.schemas.argument_words import words
from multitap.catalog.schemas.typed_arguments import to_arguments
from multitap.errors import MultitapError
from multitap.gateway.fronts.control_messages import (
    AskCall,
    CommandReply,
    ProgressStep,
    ServerQuestion,
    ToolLine,
)
from multitap.printable import printable
from multitap.results import ToolResult
from multitap.screens.desktop import Desktop
from multitap.screens.live_view import LiveView
from multitap.screens.terminal.question_windows import ask_person
from multitap.screens.terminal.result_window import ResultWindow
from multitap.screens.terminal.windows import WINDOW_STYLE, FormWindow, TextWindow
from multitap.screens.typed_commands import TypedCommand
from multitap.store.call_records import CallRecord


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


class Calling:
    """Makes calls for the person at the screen."""

    def __init__(self, app: App[None], view: LiveView, desktop: Desktop) -> None:
        self._app = app
        self._view = view
        self._desktop = desktop

    async def fill_and_call(self, tool: ToolLine, known: Mapping[str, Any] | None = None) -> None:
        """Ask for the arguments, starting with known values, and call the tool."""
        form = FormWindow(
            f"call {tool.name}", tool.description, tool.input_schema, known, is_call=True
        )
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
        await self.fill_and_call(tool, await self._view.arguments(call))

    async def compare(self, call: CallRecord) -> None:
        """Show how a call differs from the last good call of the same tool."""
        good = await self._view.last_good(call)
        if good is None or call.exchange is None:
            words = 'There is no recorded call to compare with; set `record = "all"`.'
            self._app.push_screen(TextWindow("Compare", words))
            return
        before, after = await self._view.said_text(good), await self._view.said_text(call)
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), "last good", "this one", lineterm=""
        )
        text = "\n".join(lines) or "no difference"
        self._app.push_screen(TextWindow(f"{call.server} {call.tool}", text))

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> None:
        question = AskCall(name, Raw(msgspec.json.encode(arguments)), person=True)
        waiting = WaitingWindow(name)
        with anyio.CancelScope() as scope:
            # however the window closes: a call without its window must not go on
            self._app.push_screen(waiting, lambda _: scope.cancel())
            try:
                delivery, data = await self._view.client.act(
                    question, waiting.show, self._on_question
                )
            finally:
                # not when a question of the server is open on top of it
                if waiting.is_current:
                    waiting.dismiss()
            result = ToolResult(Raw(data), delivery.server, delivery.tool)
            coloured = not self._app.no_color
            self._app.push_screen(ResultWindow(name, result, self._desktop, coloured=coloured))
            return
        self._app.notify(f"the call of {printable(name)} was cancelled", markup=False)

    async def _on_question(self, asked: ServerQuestion) -> CommandReply:
        """Show the person a server's question during a call."""
        result, refusal = await ask_person(
            self._app, self._desktop, asked.server, asked.method, asked.params
        )
        return CommandReply(asked.number, result, refusal)
