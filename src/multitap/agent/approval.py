"""Decides whether an agent may use a tool with the arguments it chose."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from multitap.catalog.schemas.json_values import is_object
from multitap.records import dataclass
from multitap.tools.providers import ToolCall
from multitap.tools.registry import SEARCH_TOOLS
from multitap.tools.tool import HubTool, ToolInfo


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a call is allowed; if not, with a reason for the model."""

    allowed: bool
    words: str = ""


ALLOW = Verdict(allowed=True)


def deny(words: str = "") -> Verdict:
    """A refusal; the reason tells the model why, or what to do instead."""
    return Verdict(allowed=False, words=words)


Approve = Callable[[ToolCall, ToolInfo], Awaitable[Verdict]]
"""Asked before a tool is used."""


def unwrap_search(call: ToolCall) -> ToolCall:
    """The tool that a call really uses: the one behind `call_tool`."""
    while call.name == "call_tool" and isinstance(name := call.arguments.get("name"), str):
        given = call.arguments.get("arguments")
        call = replace(call, name=name, arguments=given if is_object(given) else {})
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
