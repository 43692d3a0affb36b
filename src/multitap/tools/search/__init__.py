"""Finds the right tool among hundreds.

In: tools, and a request in plain words. Out: tools ranked by fit, or three tools that replace all
of them (`search_mode`). It must not know servers, or models that talk: it works on words, and on
what a model of sentences makes of them.
"""

from multitap.tools.search.finder import search_mode
from multitap.tools.search.index import Hit, Index

__all__ = ["Hit", "Index", "search_mode"]
