"""A request in plain words, as what it asks for."""

from collections.abc import Iterator
from dataclasses import dataclass

from multitap.tools.search.stems import Stems
from multitap.tools.search.words import STOP, spoken

MOST_WORDS = 64
"""Of a request that are looked at."""
LONGEST_PHRASE = 4


QUESTION = frozenset(
    "what which who whose when where why how is are was were do does did has have any can am show list find".split()
)


def is_question(request: str) -> bool:
    words = spoken(request)
    return bool(words) and words[0] in QUESTION


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that is said: a word, or some words that mean something together."""

    word: str
    """Empty for a phrase."""
    stem: str
    meant: frozenset[str]
    """Stems of other words for it."""


def wishes(request: str, stems: Stems) -> Iterator[Wish]:
    """What a request says, word by word; words that form a phrase count as that only."""
    words = spoken(request)[:MOST_WORDS]
    said = [stems(word) for word in words]
    at = 0
    while at < len(words):
        length = _phrase(said[at : at + LONGEST_PHRASE], stems)
        if length > 1:
            yield Wish("", "", stems.meanings[tuple(said[at : at + length])])
        else:
            meant = stems.meanings.get((said[at],), frozenset())
            if words[at] not in STOP:
                yield Wish(words[at], said[at], meant)
            elif meant:
                yield Wish("", "", meant)
        at += length


def _phrase(said: list[str], stems: Stems) -> int:
    """How many of the words, from the first one on, have a meaning together."""
    known = (size for size in range(len(said), 1, -1) if tuple(said[:size]) in stems.meanings)
    return next(known, 1)
