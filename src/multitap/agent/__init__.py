"""What an agent works with."""

from multitap.agent.registry import ToolRegistry
from multitap.agent.tool import HubTool, HubTools, ToolContext, ToolDef, ToolInfo

__all__ = ["HubTool", "HubTools", "ToolContext", "ToolDef", "ToolInfo", "ToolRegistry"]
