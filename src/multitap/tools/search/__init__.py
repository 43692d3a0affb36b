"""Finds the right tool among hundreds.

In: tools, and a request in plain words. Out: tools ranked by fit, or three tools that replace all
of them (`search_mode`). It must not know models or servers: it works on words alone.
"""

from multitap.tools.search.finder import search_mode
from multitap.tools.search.index import Hit, Index

__all__ = ["Hit", "Index", "search_mode"]
