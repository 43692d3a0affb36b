"""Ranks tools by how well they match a request: BM25 over weighted fields."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from heapq import nsmallest
from itertools import islice, takewhile
from math import log

from multitap.records import dataclass
from multitap.tools.search.search_request import SearchRequest, SearchTerm, parse_request
from multitap.tools.search.stems import Stems
from multitap.tools.search.tool_document import ToolDocument, read
from multitap.tools.tool import ToolInfo

# As in BM25: a description that repeats a word ten times must not win by that.
SATURATION = 3.0
"""The weight at which a word has half of its maximum effect."""
MEANT = 0.65
"""The weight of a synonym, relative to the word itself."""
ABBREVIATED = 0.75
"""The same for a longer word that begins with it: `repository` for `repo`."""
SHORTEST_ABBREVIATION = 4
SHORT = 2
"""Stems of up to this many letters are prefixes of too many words."""
COVERAGE = 0.25
"""The penalty for unmatched words of a request: 0 for none, 1 for a proportional one."""
ELSEWHERE = 0.6
"""The factor for a tool's score if the request names another server."""
INTRUSIVE = 0.5
"""The factor if the request is a question and the tool changes something."""
# More than all words together can score, so that a named tool comes first.
NAMED = 1_000.0
"""The bonus for the exact name of a tool."""

_Key = tuple[str, str, int]
_Numbers = Mapping[str, Sequence[int]]
"""The tools with a word or a name, by their position in the index."""
_Scores = defaultdict[int, float]


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result."""

    tool: ToolInfo
    score: float


@dataclass(frozen=True, slots=True)
class _Entry:
    document: ToolDocument
    schema: object = field(repr=False)
    """Kept alive, because its `id()` is part of the key."""


class Index:
    """A search index of tools."""

    def __init__(self, tools: Iterable[ToolInfo] = ()) -> None:
        self.tools: tuple[ToolInfo, ...] = ()
        self._entries: dict[_Key, _Entry] = {}
        self._documents: tuple[ToolDocument, ...] = ()
        self._postings: _Numbers = {}
        self._vocabulary: list[str] = []
        self._named: _Numbers = {}
        self._servers: frozenset[str] = frozenset()
        self._stems = Stems()
        self.update(tools)

    def update(self, tools: Iterable[ToolInfo]) -> None:
        """Replace the tools; only new definitions are read."""
        before, self._entries = self._entries, {}
        by_key: dict[_Key, ToolInfo] = {}
        for tool in tools:
            schema = tool.parameters
            key = (tool.name, tool.description, id(schema))
            by_key[key] = tool
            # reading a definition is the expensive part, and most stay the same from list to list
            self._entries[key] = before.get(key) or _Entry(read(tool), schema)
        self.tools = tuple(by_key.values())
        # the order matters, too: postings contain positions, not names
        if list(before) != list(self._entries):
            self._arrange()

    def search(self, query: str, limit: int = 5) -> list[Hit]:
        """The best matches, best first; fewer than `limit` if no more match."""
        request = parse_request(query, self._stems)
        scores = self._fitting(request.terms)
        self._doubt(scores, request)
        for name in request.names:
            for number in self._named.get(name, ()):
                scores[number] += NAMED
        # ties by position, so that the same request finds the same tools in every run
        best = nsmallest(limit, scores, key=lambda number: (-scores[number], number))
        return [Hit(self.tools[number], scores[number]) for number in best]

    def _arrange(self) -> None:
        self._documents = tuple(entry.document for entry in self._entries.values())
        self._postings = _numbers(document.weights for document in self._documents)
        self._vocabulary = sorted(self._postings)
        self._named = _numbers(document.names for document in self._documents)
        self._servers = frozenset().union(*(document.server for document in self._documents))

    def _fitting(self, terms: Iterable[SearchTerm]) -> _Scores:
        scores, met = _Scores(float), _Scores(float)
        possible = 0.0
        for term in terms:
            found = self._find(term)
            best = max(found.values(), default=0.0)
            possible += best
            for number, score in found.items():
                scores[number] += score
                met[number] += best
        for number in scores:
            scores[number] *= (met[number] / possible) ** COVERAGE
        return scores

    def _doubt(self, scores: _Scores, request: SearchRequest) -> None:
        """Lower the score of tools that are probably not meant, however well they match."""
        servers = request.words & self._servers
        for number in scores:
            document = self._documents[number]
            if servers and servers.isdisjoint(document.server):
                scores[number] *= ELSEWHERE
            if request.is_question and document.changes:
                scores[number] *= INTRUSIVE

    def _find(self, term: SearchTerm) -> _Scores:
        """The score of one term for each tool: the best of all its words."""
        best = _Scores(float)
        for factor, words in self._alternatives(term):
            found = _Scores(float)
            for word in words:
                for number in self._postings[word]:
                    found[number] += self._documents[number].weights[word]
            # all forms of a word together: each alone would look rarer than the word is
            worth = factor * self._rarity(len(found))
            for number, weight in found.items():
                best[number] = max(best[number], worth * weight / (weight + SATURATION))
        return best

    def _alternatives(self, term: SearchTerm) -> Iterator[tuple[float, Iterable[str]]]:
        """Matching words of the tools, with their weights."""
        if term.word:
            yield 1.0, self._forms(term.stem)
        if len(term.word) >= SHORTEST_ABBREVIATION:
            yield ABBREVIATED, self._beginning(term.word)
        for stem in term.meant:
            yield MEANT if term.word else 1.0, self._forms(stem)

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


def _numbers(tools: Iterable[Iterable[str]]) -> _Numbers:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, keys in enumerate(tools):
        for key in keys:
            numbers[key].append(number)
    return dict(numbers)
