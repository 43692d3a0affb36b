"""Decides whether an agent may use a tool with the arguments it chose."""

from collections.abc import Awaitable, Callable

import msgspec

from multitap.catalog.schemas.schema import is_object
from multitap.tools.providers import ToolCall
from multitap.tools.registry import SEARCH_TOOLS
from multitap.tools.tool import HubTool, ToolInfo


class Verdict(msgspec.Struct, frozen=True):
    """Whether a call is allowed; if not, with a reason for the model."""

    allowed: bool
    words: str = ""


ALLOW = Verdict(allowed=True)


def deny(reason: str = "") -> Verdict:
    """A refusal; the reason tells the model why, or what to do instead."""
    return Verdict(allowed=False, words=reason)


Approve = Callable[[ToolCall, ToolInfo], Awaitable[Verdict]]
"""Asked before a tool is used."""


def unwrap_search(call: ToolCall) -> ToolCall:
    """The tool that a call really uses: the one behind `call_tool`."""
    # in a loop: whoever approves must see what runs, however often it is wrapped
    while call.name == "call_tool" and isinstance(name := call.arguments.get("name"), str):
        inner = call.arguments.get("arguments")
        call = msgspec.structs.replace(call, name=name, arguments=inner if is_object(inner) else {})
    return call


def harmless(call: ToolCall) -> bool:
    """Whether a call only searches the tools."""
    return call.name in SEARCH_TOOLS


def unless_read_only(approve: Approve) -> Approve:
    """Ask only about tools that are not annotated as read-only."""

    async def ask_unless_read_only(call: ToolCall, tool: ToolInfo) -> Verdict:
        return ALLOW if read_only(tool) else await approve(call, tool)

    return ask_unless_read_only


def read_only(tool: ToolInfo) -> bool:
    """Whether the tool is annotated as read-only."""
    return isinstance(tool, HubTool) and tool.tool.annotations.get("readOnlyHint") is True
