"""Finding the right one among hundreds of tools."""

from multitap.tools.search.index import Hit, Index
from multitap.tools.search.mode import search_mode

__all__ = ["Hit", "Index", "search_mode"]
