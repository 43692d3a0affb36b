"""Ranks tools by how well they match a request: BM25 over weighted fields, and by their meaning."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice, takewhile
from math import log
from typing import Any

import msgspec

from multitap.catalog.schemas.schema import is_list, is_object
from multitap.tools.search.embedding import Embedding
from multitap.tools.search.words import STOP, Stems, words_of, words_of_name, words_of_prose
from multitap.tools.tool import HubTool, ToolInfo, server_of

MAX_DESCRIPTION = 4_000
MAX_MEANING = 1_000
MAX_ARGUMENTS = 64
MAX_ARGUMENT_TEXT = 300
MAX_DEPTH = 4
"""Characters, arguments and levels of a schema that are indexed."""

_SENTENCE = re.compile(r"(?<=[.!?。])\s|\n")
_WORD = re.compile(r"\w+")


class Field(msgspec.Struct, frozen=True):
    """One part of a tool's definition."""

    weight: float
    """The weight of a word in a field of average length."""
    usual: float
    """The average length in words; fixed, so that weights do not depend on other tools."""
    bend: float
    """How much a longer field reduces a word's weight: 0 not at all, 1 proportionally."""

    def share(self, length: int) -> float:
        return self.weight / (1 - self.bend + self.bend * max(length, 1) / self.usual)


NAME = Field(5.5, 3, 0.6)
SERVER = Field(3.0, 1, 0.4)
TITLE = Field(1.8, 3, 0.5)
SUMMARY = Field(2.5, 10, 0.5)
DETAIL = Field(1.0, 40, 0.7)
ARGUMENT = Field(1.0, 5, 0.8)
ARGUMENT_TEXT = Field(0.45, 40, 0.9)

_CHANGING = """
    add append apply approve archive assign attach cancel clear click close complete connect copy
    create delete deny disconnect drag drop edit fill finalize fork format hover import insert
    install invite make manage merge modify move mute new patch post press protect publish push put
    remove rename replace reply reschedule respond restore revoke schedule select send set start
    stop subscribe transition type unarchive uncomplete uninstall unmute unprotect unsubscribe
    update updater upgrade upload write
"""
CHANGING = frozenset(_CHANGING.split())
"""Words in the names of tools that change something."""
_VERB_WITHIN = 3  # words of a name: `jira_create_issue`
_SUMMARY_WORDS = 4  # fewer are only a headline


class ToolDocument(msgspec.Struct, frozen=True):
    """A tool in the search index."""

    weights: Mapping[str, float]
    """The weight of each word."""
    names: frozenset[str]
    """Its names here and at its server, in lower case."""
    server: frozenset[str]
    """The words of its server's name."""
    changes: bool
    """Whether its name suggests that it changes something."""


def read_document(tool: ToolInfo) -> ToolDocument:
    """The document of a tool's definition."""
    own, server = own_name(tool), server_of(tool) or ""
    return ToolDocument(
        _weights(tool),
        frozenset({tool.name.casefold(), own.casefold()}),
        frozenset(words_of_name(server)),
        changes=not CHANGING.isdisjoint(words_of_name(own)[:_VERB_WITHIN]),
    )


def meaning(tool: ToolInfo) -> str:
    """What a model of sentences reads of a tool."""
    name = " ".join(words_of_name(own_name(tool)))
    return f"{server_of(tool) or ''} {name}: {_description(tool)[:MAX_MEANING]}"


def own_name(tool: ToolInfo) -> str:
    """The server's own name for it."""
    return tool.tool.raw_name if isinstance(tool, HubTool) else tool.name


def summary(tool: ToolInfo) -> str:
    """The first sentence of its description, and more after a short headline."""
    text = _description(tool)
    for end in _SENTENCE.finditer(text):
        if len(_WORD.findall(text[: end.start()])) >= _SUMMARY_WORDS:
            return text[: end.start()]
    return text


def _weights(tool: ToolInfo) -> Mapping[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for part, terms in _fields(tool):
        share = part.share(len(terms))
        for word in terms:
            total[word] += share
    return dict(total)


def _fields(tool: ToolInfo) -> Iterator[tuple[Field, list[str]]]:
    yield NAME, words_of_name(own_name(tool))
    if isinstance(tool, HubTool):
        yield SERVER, words_of_name(tool.server)
        yield TITLE, words_of_prose(tool.title or "")
    first = summary(tool)
    yield SUMMARY, words_of_prose(first)
    # the rest counts less: long descriptions mention what a tool does not do
    yield DETAIL, words_of_prose(_description(tool)[len(first) :])
    arguments = list(islice(_arguments(tool.parameters), MAX_ARGUMENTS))
    yield ARGUMENT, [word for name, _ in arguments for word in words_of_name(name)]
    yield (
        ARGUMENT_TEXT,
        [word for _, schema in arguments for word in words_of_prose(_schema_text(schema))],
    )


def _description(tool: ToolInfo) -> str:
    return tool.description[:MAX_DESCRIPTION].strip()


def _arguments(
    schema: Mapping[str, Any], depth: int = 1
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every named part, the outer ones first."""
    properties = schema.get("properties")
    named = [*properties.items()] if is_object(properties) else []
    inner = [(name, part) for name, part in named if is_object(part)]
    yield from inner
    if depth < MAX_DEPTH:
        for part in _parts(schema, (part for _, part in inner)):
            yield from _arguments(part, depth + 1)


def _parts(
    schema: Mapping[str, Any], properties: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    yield from properties
    if is_object(items := schema.get("items")):
        yield items
    for keyword in ("anyOf", "oneOf", "allOf"):
        if is_list(branches := schema.get(keyword)):
            yield from (branch for branch in branches if is_object(branch))


def _schema_text(schema: Mapping[str, Any]) -> str:
    description, choices = schema.get("description"), schema.get("enum")
    text = description if isinstance(description, str) else ""
    if is_list(choices):
        text += " " + " ".join(choice for choice in choices if isinstance(choice, str))
    # an enum of a thousand countries must not outweigh the tool's own words
    return text[:MAX_ARGUMENT_TEXT]


MOST_WORDS = 64
"""Words of a request that are used."""
LONGEST_PHRASE = 4  # words, as many as the longest in `MEANINGS` has
MOST_CHARACTERS = 2_000

_QUESTION = """
    am any are can did do does find has have how is list show was were what when where which who
    whose why
"""
QUESTION = frozenset(_QUESTION.split())
"""First words of requests that are questions."""
_AROUND = "`'\".,:;!?()[]"


class SearchTerm(msgspec.Struct, frozen=True):
    """One term of a request: a word, or a phrase with a meaning of its own."""

    word: str
    """Empty for a phrase, and for a word that only stands for others."""
    stem: str
    meant: frozenset[str]
    """Stems of other words for it."""


class SearchRequest(msgspec.Struct, frozen=True):
    """The terms of the request."""

    terms: Sequence[SearchTerm]
    all_words: frozenset[str]
    names: frozenset[str]
    """Words that may be the name of a tool."""
    is_question: bool


def parse_request(text: str, stems: Stems) -> SearchRequest:
    """Parse a request."""
    # models paste whole conversations
    text = text[:MOST_CHARACTERS]
    terms = words_of(text)[:MOST_WORDS]
    return SearchRequest(
        tuple(dict.fromkeys(_terms(terms, stems))),
        frozenset(terms),
        frozenset(_names(text)),
        is_question=bool(terms) and terms[0] in QUESTION,
    )


def _terms(query_words: Sequence[str], stems: Stems) -> Iterator[SearchTerm]:
    """The terms, word by word; words of a phrase count only as the phrase."""
    stemmed = [stems(word) for word in query_words]
    at = 0
    while at < len(query_words):
        length = _phrase(stemmed[at : at + LONGEST_PHRASE], stems)
        meant = stems.meanings.get(tuple(stemmed[at : at + length]), frozenset())
        if length == 1 and query_words[at] not in STOP:
            yield SearchTerm(query_words[at], stemmed[at], meant)
        elif meant:
            yield SearchTerm("", "", meant)
        at += length


def _phrase(stemmed: Sequence[str], stems: Stems) -> int:
    """How many words from the beginning form a known phrase."""
    sizes = (size for size in range(len(stemmed), 1, -1) if tuple(stemmed[:size]) in stems.meanings)
    return next(sizes, 1)


def _names(text: str) -> Iterator[str]:
    """The whole text, and every part that is not a plain word: `search` may be just a verb."""
    yield text.strip().casefold()
    for part in text.split():
        name = part.strip(_AROUND)
        # names of tools have underscores or dashes; plain words rarely mean one
        if not name.isalnum():
            yield name.casefold()


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
ALIKE = 0.7
"""The weight of the meaning, relative to the words; both are compared with the best tool's."""
LEAST_ALIKE = 0.25
"""The similarity of a tool that is found although none of the words matches."""
# More than all words together can score, so that a named tool comes first.
NAMED = 1_000.0
"""The bonus for the exact name of a tool."""

_Key = tuple[str, str, int]
_Numbers = Mapping[str, Sequence[int]]
"""The tools with a word or a name, by their position in the index."""
_Scores = defaultdict[int, float]


class Hit(msgspec.Struct, frozen=True):
    """One search result."""

    tool: ToolInfo
    score: float


class _Entry(msgspec.Struct, frozen=True):
    document: ToolDocument
    schema: object
    """Kept alive, because its `id()` is part of the key."""


class Index:
    """A search index of tools.

    Args:
        tools: What is searched.
        embedding: Compares them by meaning as well, once it has read all of them.
    """

    def __init__(self, tools: Iterable[ToolInfo] = (), embedding: Embedding | None = None) -> None:
        self._embedding = embedding
        self._meanings: tuple[str, ...] = ()
        self._vectors: Any = None
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
            self._entries[key] = before.get(key) or _Entry(read_document(tool), schema)
        self.tools = tuple(by_key.values())
        # the order matters, too: postings contain positions, not names
        if list(before) != list(self._entries):
            self._arrange()

    def search(self, query: str, limit: int = 5) -> list[Hit]:
        """The best matches, best first; fewer than `limit` if no more match."""
        request = parse_request(query, self._stems)
        scores = self._fitting(request.terms)
        if self._embedding is not None and request.terms:
            self._compare(scores, query[:MOST_CHARACTERS], self._embedding)
        self._doubt(scores, request)
        for name in request.names:
            for number in self._named.get(name, ()):
                scores[number] += NAMED
        # ties by position, so that the same request finds the same tools in every run
        best = nsmallest(limit, scores, key=lambda number: (-scores[number], number))
        return [Hit(self.tools[number], scores[number]) for number in best]

    def learn(self) -> None:
        """Have the embedding told which tools it has not read yet."""
        if self._embedding is not None and self._vectors is None:
            self._vectors = self._embedding.vectors(self._meanings)

    def _arrange(self) -> None:
        if self._embedding is not None:
            self._meanings, self._vectors = tuple(map(meaning, self.tools)), None
        self._documents = tuple(entry.document for entry in self._entries.values())
        self._postings = _numbers(document.weights for document in self._documents)
        self._vocabulary = sorted(self._postings)
        self._named = _numbers(document.names for document in self._documents)
        self._servers = frozenset().union(*(document.server for document in self._documents))

    def _fitting(self, terms: Iterable[SearchTerm]) -> _Scores:
        scores, met = _Scores(float), _Scores(float)
        possible = 0.0
        for term in terms:
            term_scores = self._find(term)
            best = max(term_scores.values(), default=0.0)
            possible += best
            for number, score in term_scores.items():
                scores[number] += score
                met[number] += best
        for number in scores:
            scores[number] *= (met[number] / possible) ** COVERAGE
        return scores

    def _compare(self, scores: _Scores, query: str, embedding: Embedding) -> None:
        """Add how much the tools mean what the request means, if that is known of all."""
        self.learn()
        if self._vectors is None:
            return
        similar = embedding.similarities(query, self._vectors)
        most, best = max(similar, default=0.0), max(scores.values(), default=1.0)
        if most < LEAST_ALIKE:
            return
        for number in scores:
            scores[number] /= best
        for number, similarity in enumerate(similar):
            if number in scores or similarity >= LEAST_ALIKE:
                scores[number] += ALIKE * similarity / most

    def _doubt(self, scores: _Scores, request: SearchRequest) -> None:
        """Lower the score of tools that are probably not meant, however well they match."""
        servers = request.all_words & self._servers
        for number in scores:
            document = self._documents[number]
            if servers and servers.isdisjoint(document.server):
                scores[number] *= ELSEWHERE
            if request.is_question and document.changes:
                scores[number] *= INTRUSIVE

    def _find(self, term: SearchTerm) -> _Scores:
        """The score of one term for each tool: the best of all its words."""
        best = _Scores(float)
        for factor, alternatives in self._alternatives(term):
            weights = _Scores(float)
            for word in alternatives:
                for number in self._postings[word]:
                    weights[number] += self._documents[number].weights[word]
            # all forms of a word together: each alone would look rarer than the word is
            worth = factor * self._rarity(len(weights))
            for number, weight in weights.items():
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
