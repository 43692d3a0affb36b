"""Calls a tool from the screen: argument form, questions, result."""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw
from textual.app import App

from multitap.catalog.schemas.argument_words import words
from multitap.catalog.schemas.typed_arguments import typed
from multitap.errors import MultitapError
from multitap.gateway.fronts.control_messages import (
    AskCall,
    CommandReply,
    ServerQuestion,
    ToolLine,
)
from multitap.results import ToolResult
from multitap.screens.live_view import LiveView
from multitap.screens.terminal.dialogs import Filling, Reading
from multitap.screens.typed_commands import TypedCommand
from multitap.store.call_records import CallRecord


class Calling:
    """Makes calls for the person before the screen.

    Args:
        app: Where windows open.
        view: What is known of the gateway.
    """

    def __init__(self, app: App[None], view: LiveView) -> None:
        self._app = app
        self._view = view

    async def fill_and_call(self, tool: ToolLine, known: Mapping[str, Any] | None = None) -> None:
        """Ask for the arguments, beginning with what is known, and call the tool."""
        form = Filling(f"call {tool.name}", tool.description, tool.input_schema, known)
        filled = await self._app.push_screen_wait(form)
        if filled is not None:
            await self._call(tool.name, filled)

    async def call_typed(self, command: TypedCommand) -> None:
        """Call a tool with arguments as typed.

        Raises:
            MultitapError: They do not fit, or the call failed.
        """
        tool = self._view.tools.get(command.about)
        given = typed(words(command.arguments), tool.input_schema if tool else {})
        await self._call(command.about, given)

    async def replay(self, call: CallRecord) -> None:
        """Call again what was called, once the person has seen the arguments.

        Raises:
            MultitapError: The tool is gone, or the call failed.
        """
        tool = self._view.tool_of(call)
        if tool is None:
            raise MultitapError(f"{call.server} no longer has {call.tool}")
        await self.fill_and_call(tool, await self._view.arguments(call))

    async def compare(self, call: CallRecord) -> None:
        """Show how what a call said differs from the last good call of the same tool."""
        good = self._view.last_good(call)
        if good is None or call.exchange is None:
            words = 'There is no recorded call to compare with; set `record = "all"`.'
            self._app.push_screen(Reading("Compare", words))
            return
        before, after = await self._view.said(good), await self._view.said(call)
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), "last good", "this one", lineterm=""
        )
        text = "\n".join(lines) or "no difference"
        self._app.push_screen(Reading(f"{call.server} {call.tool}", text))

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> None:
        question = AskCall(name, Raw(msgspec.json.encode(arguments)), person=True)
        delivery, data = await self._view.client.act(
            question,
            lambda step: self._app.notify(f"{step.message or name}: {step.done:g}", timeout=2),
            self._on_question,
        )
        result = ToolResult(Raw(data), delivery.server, delivery.tool)
        title = f"{name}: {'failed' if result.is_error else 'ok'}"
        self._app.push_screen(Reading(title, result.text))

    async def _on_question(self, asked: ServerQuestion) -> CommandReply:
        """Put what a server asks in the middle of a call to the person."""
        if asked.method != "elicitation/create":
            return CommandReply(asked.number, error="the screen answers forms and links only")
        params: dict[str, Any] = msgspec.json.decode(asked.params)
        message = str(params.get("message") or asked.method)  # it says who asks
        schema: dict[str, Any] = params.get("requestedSchema") or {}
        if params.get("mode") == "url":
            message += f"\nOpen this address, then send: {params.get('url')}"
        filled = await self._app.push_screen_wait(Filling(f"{asked.server} asks", message, schema))
        answer: dict[str, Any] = {"action": "decline"}
        if filled is not None:
            answer = {"action": "accept", **({"content": filled} if schema else {})}
        return CommandReply(asked.number, Raw(msgspec.json.encode(answer)))
