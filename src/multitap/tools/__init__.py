"""Everything an agent can use, wherever it runs."""

from multitap.tools.providers import Change, Offer, Skipped, ToolCall
from multitap.tools.registry import TokenCost, ToolRegistry
from multitap.tools.tool import HubTool, HubTools, ToolContext, ToolDef, ToolInfo

__all__ = [
    "Change",
    "HubTool",
    "HubTools",
    "Offer",
    "Skipped",
    "TokenCost",
    "ToolCall",
    "ToolContext",
    "ToolDef",
    "ToolInfo",
    "ToolRegistry",
]
