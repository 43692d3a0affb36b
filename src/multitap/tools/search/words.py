"""The words of requests and tools: how they are split, and their stems."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from multitap.tools.search.meanings import Phrase, meanings

_TOKEN = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LOWER_CAMEL = re.compile(r"\b[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Japanese, Chinese, Korean: read in pairs of characters, because they have no spaces."""

_STOP = """
    a about all also am an and any anything are as at back be been but by can could did do does
    for from go going gonna had has have he her here him his how i if in into is it its just
    kindly know let like ll lot m many may maybe me much my need of off on one or our out over
    please re s shall she should so some someone something still t than that the their them then
    there these they thing this those to too up us ve very want was we were what when where
    which while who why will with would you your
"""
STOP = frozenset(_STOP.split())
"""Stop words."""


def words_of_prose(text: str) -> list[str]:
    """The words of a text without stop words; `camelCase` is split, but `GitHub` stays."""
    return [word for word in words_of(text) if word not in STOP]


def words_of_name(text: str) -> list[str]:
    """The words of an identifier: `snake_case`, `camelCase`, `kebab-case`."""
    return [word for word in _words(_split_camel_case(text)) if word not in STOP]


def words_of(text: str) -> list[str]:
    """All words of a text, in order."""
    return _words(_LOWER_CAMEL.sub(lambda match: _split_camel_case(match[0]), text))


def _split_camel_case(text: str) -> str:
    return _HUMP.sub(" ", text)


def _words(text: str) -> list[str]:
    plain = (text if text.isascii() else _strip_accents(text)).replace("%", " percent ")
    return [*_fine(_TOKEN.findall(plain.casefold()))]


def _strip_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    # composed again, because the syllables of Korean fall apart with the accents
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if not _is_accent(c)))


def _is_accent(character: str) -> bool:
    return "\u0300" <= character <= "\u036f"


def _fine(tokens: Iterable[str]) -> Iterable[str]:
    for token in tokens:
        if token.isascii():
            yield token
            if not token.isalpha():
                yield from _LETTERS.findall(token)  # `context7` is found by `context`, too
        elif _UNSPACED.search(token):
            yield from _pairs(token)
        else:
            yield token


def _pairs(token: str) -> Iterable[str]:
    if len(token) == 1:
        return (token,)
    return (token[at : at + 2] for at in range(len(token) - 1))


MOST_STEMS = 50_000
"""The number of cached words."""


class Stems:
    """The stem of a word; takes a tenth of a millisecond the first time."""

    def __init__(self) -> None:
        self._cached: dict[str, str] = {}

    def __call__(self, word: str) -> str:
        stem = self._cached.get(word)
        if stem is None:
            # a stemmer has state: one for each thread
            stem = str(self._languages.stemmer("english").stemWord(word))
            if len(self._cached) < MOST_STEMS:
                self._cached[word] = stem
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
