"""Tools ranked by how well they fit a request in plain words: BM25 over weighted fields."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice, takewhile
from math import log

from multitap.tools.search.document import changes, names_of, weights
from multitap.tools.search.request import Wish, is_question, wishes
from multitap.tools.search.stems import Stems
from multitap.tools.search.words import of_name,spoken
from multitap.tools.tool import ToolInfo

SATURATION = 3.0
"""The weight at which a word has half of the effect it can have."""
PHRASE = 0.8
MEANT = 0.6
"""How much a word of like meaning counts, next to the word itself."""
ABBREVIATED = 0.7
"""The same for a longer word that begins with it: `repository` for `repo`."""
SHORTEST_ABBREVIATION = 4
SHORT = 2
"""Letters of a stem that too many words begin with."""
OTHER = 0.7
COVERAGE = 0.3
QUESTION = 0.7
NAMED = 1_000.0
"""What being asked for by name adds to a score."""

_Key = tuple[str, str, int]
_Postings = Mapping[str, Sequence[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class Hit:
    """One tool that was found."""

    tool: ToolInfo
    score: float


@dataclass(frozen=True, slots=True)
class _Read:
    """What was made of a tool's definition."""

    schema: object = field(repr=False)
    """Held, because its `id()` is part of the key."""
    weights: Mapping[str, float] = field(repr=False)


class Index:
    """Tools by their words."""

    def __init__(self, tools: Iterable[ToolInfo] = ()) -> None:
        self.tools: tuple[ToolInfo, ...] = ()
        self._read: dict[_Key, _Read] = {}
        self._postings: _Postings = {}
        self._vocabulary: list[str] = []
        self._names: Mapping[str, Sequence[int]] = {}
        self._stems = Stems()
        self.update(tools)

    def update(self, tools: Iterable[ToolInfo]) -> None:
        """Have these tools instead; only definitions that are new are read."""
        before, self._read = self._read, {}
        by_key: dict[_Key, ToolInfo] = {}
        for tool in tools:
            schema = tool.parameters
            key = (tool.name, tool.description, id(schema))
            by_key[key] = tool
            self._read[key] = before.get(key) or _Read(schema, weights(tool))
        self.tools = tuple(by_key.values())
        if list(before) != list(self._read):
            self._arrange()

    def search(self, query: str, limit: int = 5) -> list[Hit]:
        """The tools that fit best, the best first; fewer than `limit` if no more fit at all."""
        scores: defaultdict[int, float] = defaultdict(float)
        met: defaultdict[int, float] = defaultdict(float)
        total = 0.0
        for wish in dict.fromkeys(wishes(query, self._stems)):
            found = self._scores(wish)
            top = max(found.values(), default=0.0)
            total += top
            for number, score in found.items():
                scores[number] += score
                met[number] += top
        if total:
            for number in scores:
                scores[number] *= (met[number] / total) ** COVERAGE
        said = {self._stems(word) for word in spoken(query)}
        if any(said & words for words in self._services):
            for number in scores:
                if not said & self._services[number]:
                    scores[number] *= OTHER
        if is_question(query):
            for number in scores:
                if self._changes[number]:
                    scores[number] *= QUESTION
        for number in self._named(query):
            scores[number] += NAMED
        best = nsmallest(limit, scores, key=lambda number: (-scores[number], number))
        return [Hit(self.tools[number], scores[number]) for number in best]

    def _arrange(self) -> None:
        self._postings = _postings(read.weights for read in self._read.values())
        self._vocabulary = sorted(self._postings)
        self._names = _numbers(self.tools)
        self._services = [{self._stems(w) for w in of_name(tool.tool.server)} for tool in self.tools]
        self._changes = [changes(tool) for tool in self.tools]

    def _scores(self, wish: Wish) -> Mapping[int, float]:
        """What one word or phrase does for each tool: the best that it or its like can do."""
        best: defaultdict[int, float] = defaultdict(float)
        for factor, words in self._alternatives(wish):
            found: defaultdict[int, float] = defaultdict(float)
            for form in words:
                for number, weight in self._postings[form]:
                    found[number] += weight
            worth = factor * self._rarity(len(found))
            for number, weight in found.items():
                best[number] = max(best[number], worth * weight / (weight + SATURATION))
        return best

    def _alternatives(self, wish: Wish) -> Iterator[tuple[float, Iterable[str]]]:
        """Words of the tools that may be meant, and how much they count."""
        if wish.word:
            yield 1.0, self._forms(wish.stem)
        if len(wish.word) >= SHORTEST_ABBREVIATION:
            yield ABBREVIATED, self._beginning(wish.word)
        for stem in wish.meant:
            yield MEANT if wish.word else PHRASE, self._forms(stem)

    def _forms(self, stem: str) -> list[str]:
        if len(stem) <= SHORT:
            return [word for word in (stem, f"{stem}s") if word in self._postings]
        # the last letter may be another one: `query` and `queries` have the stem `queri`
        return [word for word in self._beginning(stem[:-1]) if self._stems(word) == stem]

    def _beginning(self, letters: str) -> Iterator[str]:
        start = bisect_left(self._vocabulary, letters)
        return takewhile(
            lambda word: word.startswith(letters), islice(self._vocabulary, start, None)
        )

    def _rarity(self, tools: int) -> float:
        return log(1 + (len(self.tools) - tools + 0.5) / (tools + 0.5))

    def _named(self, query: str) -> set[int]:
        """The tools whose names the request holds; a name of one word has to be all of it."""
        parts = [query.strip(), *(part.strip("`'\".,:;!?()") for part in query.split())]
        asked = {part.casefold() for part in (parts[0], *filter(_is_compound, parts))}
        return {number for name in asked for number in self._names.get(name, ())}


def _postings(documents: Iterable[Mapping[str, float]]) -> _Postings:
    postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, words in enumerate(documents):
        for word, weight in words.items():
            postings[word].append((number, weight))
    return dict(postings)


def _numbers(tools: Iterable[ToolInfo]) -> Mapping[str, Sequence[int]]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, tool in enumerate(tools):
        for name in dict.fromkeys(names_of(tool)):
            numbers[name.casefold()].append(number)
    return dict(numbers)


def _is_compound(name: str) -> bool:
    return not name.isalnum()
