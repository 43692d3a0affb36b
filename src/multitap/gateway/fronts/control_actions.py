"""Calls and reads that a running gateway makes for a command."""

from typing import Any, assert_never

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.catalog import Prompt, Resource, Tool
from multitap.errors import (
    BadArguments,
    CallTimeout,
    ConfigError,
    Denied,
    MultitapError,
    Overloaded,
    Unavailable,
    UnknownName,
    UpstreamError,
)
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.command_questions import COMMAND_LINE, CommandQuestions, CommandUser
from multitap.gateway.gateway import Gateway
from multitap.hub.calls import cap_of
from multitap.hub.hub import Hub
from multitap.hub.router import LIBRARY, route_to
from multitap.upstream.on_behalf_of import CallContext
from multitap.upstream.signals import Latch

BEAT = 5.0
"""Seconds between two keep-alive lines to a waiting command."""
CALM = 0.05
"""Seconds between two reports of progress: a server may send thousands."""

_LONGEST_MESSAGE = 500
_arguments = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class CommandProgress:
    """Progress and questions of one action; only the latest unread progress is kept.

    Args:
        caller: A label for the user's terminal.
    """

    def __init__(self, caller: str = COMMAND_LINE) -> None:
        self.caller = caller
        self.over = False
        self._latest: protocol.ProgressStep | None = None
        self._news = Latch()
        self.questions = CommandQuestions(self._news.set)
        """Questions of servers during the action."""

    def on_progress(self, done: float, total: float | None, message: str | None) -> None:
        self._latest = protocol.ProgressStep(done, total, message and message[:_LONGEST_MESSAGE])
        self._news.set()

    def end(self) -> None:
        self.over = True
        self.questions.close()
        self._news.set()

    async def next(self) -> protocol.ControlAnswer | None:
        """The next line for the command; None if it is over."""
        with anyio.move_on_after(BEAT):
            await self._news.wait()
        if self.over:
            return None
        if (question := self.questions.next()) is not None:
            self._news.set()  # there may be more
            return protocol.ControlAnswer(question=question, more=True)
        step, self._latest = self._latest, None
        return protocol.ControlAnswer(ok=Raw(_encode(step)), more=True)


async def run(
    gateway: Gateway, action: protocol.GatewayAction, progress: CommandProgress
) -> tuple[protocol.ControlAnswer, bytes | Raw]:
    """Run an action; returns the last line of the answer, and the result that follows it."""
    try:
        found, result = await _carry_out(gateway, action, progress)
        return protocol.ControlAnswer(ok=Raw(_encode(found))), result
    except MultitapError as exc:
        return refusal(exc), b""
    finally:
        # always, also after a cancellation: a task waits in `next`
        progress.end()


async def _carry_out(
    gateway: Gateway, action: protocol.GatewayAction, progress: CommandProgress
) -> tuple[Any, bytes | Raw]:
    hub = gateway.hub

    def context_of(user: CommandUser) -> CallContext:
        return CallContext(timeout=action.timeout, on_progress=progress.on_progress, client=user)

    context = context_of(CommandUser(caller=progress.caller))
    match action:
        case protocol.AskTool(name):
            return tool_line(await hub.lookup.find_tool(name, context=context)), b""
        case protocol.AskPrompt(name):
            return prompt_line(await hub.lookup.find_prompt(name, context=context)), b""
        case protocol.AskCall(name, arguments):
            tool = await hub.lookup.find_tool(name, context=context)
            user = CommandUser(tool.server, progress.questions, caller=progress.caller)
            context = context_of(user)
            link = await gateway.private.askable(tool.link) if action.person else tool.link
            route = route_to(tool, LIBRARY).over(link)
            called = await hub.calls.make(route, _arguments(arguments), context)
            cap = cap_of(tool, hub.settings.result_cap)
            size = len(called.raw)
            return protocol.Delivery(size, called.server, called.tool, cap), called.raw
        case protocol.AskLogin(server):
            asker = CommandUser(server, progress.questions)
            await gateway.logins.log_in(server, None, asker)
            text = b""
        case protocol.AskRead(uri, server):
            read = await hub.read(uri, server=server, context=context)
            text = read.model_dump_json(by_alias=True, exclude_none=True).encode()
        case protocol.AskFill(name, arguments):
            filled = await hub.prompt(name, arguments, context=context)
            text = filled.model_dump_json(by_alias=True, exclude_none=True).encode()
        case _:
            assert_never(action)
    return protocol.Delivery(len(text)), text


def refusal(exc: MultitapError) -> protocol.ControlAnswer:
    """An error in a form that a command can raise again."""
    server = exc.server if isinstance(exc, UpstreamError) else None
    return protocol.ControlAnswer(error=str(exc), hint=exc.hint, kind=_kind(exc), server=server)


def _kind(exc: MultitapError) -> protocol.Kind:
    match exc:
        case ConfigError():
            return "configuration"
        case UnknownName():
            return "unknown"
        case BadArguments():
            return "arguments"
        case Unavailable() | CallTimeout() | Overloaded():
            return "unavailable"
        case Denied():
            return "denied"
        case _:
            return "failed"


def tool_line(tool: Tool) -> protocol.ToolLine:
    """A tool as commands show it."""
    return protocol.ToolLine(
        name=tool.name,
        server=tool.server,
        tool=tool.raw_name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=tool.annotations,
    )


def resource_lines(hub: Hub) -> list[protocol.ResourceLine]:
    """Resources and templates as commands show them."""
    return [_resource_line(one) for one in (*hub.catalog.resources, *hub.catalog.templates)]


def prompt_lines(hub: Hub) -> list[protocol.PromptLine]:
    """Prompts as commands show them."""
    return [prompt_line(one) for one in hub.catalog.prompts.values()]


def prompt_line(prompt: Prompt) -> protocol.PromptLine:
    return protocol.PromptLine(prompt.name, prompt.server, prompt.definition)


def _resource_line(resource: Resource) -> protocol.ResourceLine:
    key = "uri" if "uri" in resource.definition else "uriTemplate"
    shown = {**resource.definition, key: resource.address}
    return protocol.ResourceLine(resource.address, resource.server, shown)
