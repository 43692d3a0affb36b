"""Parses a search request in plain words."""

from collections.abc import Iterator, Sequence

from multitap.records import dataclass
from multitap.tools.search.stems import Stems
from multitap.tools.search.tokens import STOP, words_of

MOST_WORDS = 64
"""Words of a request that are used."""
LONGEST_PHRASE = 4
MOST_CHARACTERS = 2_000

_QUESTION = """
    am any are can did do does find has have how is list show was were what when where which who
    whose why
"""
QUESTION = frozenset(_QUESTION.split())
"""First words of requests that are questions."""
_AROUND = "`'\".,:;!?()[]"


@dataclass(frozen=True, slots=True)
class SearchTerm:
    """One term of a request: a word, or a phrase with a meaning of its own."""

    word: str
    """Empty for a phrase, and for a word that only stands for others."""
    stem: str
    meant: frozenset[str]
    """Stems of other words for it."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The terms of the request."""

    terms: Sequence[SearchTerm]
    words: frozenset[str]
    names: frozenset[str]
    """Words that may be the name of a tool."""
    is_question: bool


def parse_request(text: str, stems: Stems) -> SearchRequest:
    """Parse a request."""
    # models paste whole conversations
    text = text[:MOST_CHARACTERS]
    words = words_of(text)[:MOST_WORDS]
    return SearchRequest(
        tuple(dict.fromkeys(_terms(words, stems))),
        frozenset(words),
        frozenset(_names(text)),
        is_question=bool(words) and words[0] in QUESTION,
    )


def _terms(words: Sequence[str], stems: Stems) -> Iterator[SearchTerm]:
    """The terms, word by word; words of a phrase count only as the phrase."""
    said = [stems(word) for word in words]
    at = 0
    while at < len(words):
        length = _phrase(said[at : at + LONGEST_PHRASE], stems)
        meant = stems.meanings.get(tuple(said[at : at + length]), frozenset())
        if length == 1 and words[at] not in STOP:
            yield SearchTerm(words[at], said[at], meant)
        elif meant:
            yield SearchTerm("", "", meant)
        at += length


def _phrase(said: Sequence[str], stems: Stems) -> int:
    """How many words from the beginning form a known phrase."""
    known = (size for size in range(len(said), 1, -1) if tuple(said[:size]) in stems.meanings)
    return next(known, 1)


def _names(text: str) -> Iterator[str]:
    """The whole text, and every part that is not a plain word: `search` may be just a verb."""
    yield text.strip().casefold()
    for part in text.split():
        name = part.strip(_AROUND)
        # names of tools have underscores or dashes; plain words rarely mean one
        if not name.isalnum():
            yield name.casefold()
