"""Everything an agent can use, wherever it runs."""

from multitap.tools.registry import ToolRegistry
from multitap.tools.tool import HubTool, HubTools, ToolContext, ToolDef, ToolInfo

__all__ = ["HubTool", "HubTools", "ToolContext", "ToolDef", "ToolInfo", "ToolRegistry"]
