"""Everything an agent can use, wherever it runs.

In: the tools of a hub, and the program's own functions. Out: one `ToolRegistry` in which all tools
are listed, searched, offered to a provider and executed in the same way. `providers` has the
formats of model providers, `search` finds tools by words. It must not know models, or how a server
is reached.
"""

from typing import TYPE_CHECKING

from multitap.tools.registry import TokenCost, ToolRegistry
from multitap.tools.tool import HubTool, HubTools, ToolContext, ToolDef, ToolInfo

if TYPE_CHECKING:
    from multitap.tools.providers import Change as Change
    from multitap.tools.providers import Offer as Offer
    from multitap.tools.providers import Skipped as Skipped
    from multitap.tools.providers import ToolCall as ToolCall

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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import on first use: most programs with tools never offer them to a model."""
    # first: the import itself asks for names, and would come back here
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from multitap.tools import providers  # noqa: PLC0415

    return getattr(providers, name)
