"""The stems of English words, cached."""

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from multitap.tools.search.meanings import Phrase, meanings

MOST = 50_000
"""The number of cached words."""


class Stems:
    """The stem of a word; takes a tenth of a millisecond the first time."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, word: str) -> str:
        stem = self._known.get(word)
        if stem is None:
            # a stemmer has state: one for each thread
            stem = str(self._languages.stemmer("english").stemWord(word))
            if len(self._known) < MOST:
                self._known[word] = stem
        return stem

    @cached_property
    def meanings(self) -> Mapping[Phrase, frozenset[str]]:
        """Maps words and phrases to the stems of their synonyms."""
        return meanings(self)

    @cached_property
    def _languages(self) -> Any:
        return import_module(
            "snowballstemmer"
        )  # untyped, and slow to import: it includes thirty languages
