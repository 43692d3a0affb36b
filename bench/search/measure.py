"""How often the right tool is found, and what it saves to search."""

import time
from dataclasses import dataclass
from statistics import fmean

from bench.search import corpus
from bench.search.plain import PlainIndex
from multitap.tools import ToolRegistry
from multitap.tools.providers.offers import estimate_tokens
from multitap.tools.search import Index, search_mode

DEPTHS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class Recall:
    """In which share of the requests a right tool is among the first."""

    part: str
    requests: int
    ours: tuple[float, ...]
    """At each of `DEPTHS`."""
    plain: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    everything: int
    """All definitions."""
    three: int
    """The three tools that stand for them."""
    answer: float
    """What one search returns, on average."""


def recalls():
    """One for each part, then one for all requests."""
    tools, requests = corpus.tools(), corpus.requests()
    ours, plain = Index(tools), PlainIndex(tools)
    ranks = [
        (
            request.part,
            _rank(request, [hit.tool for hit in ours.search(request.words, DEPTHS[-1])]),
            _rank(request, plain.search(request.words, DEPTHS[-1])),
        )
        for request in requests
    ]
    return [_recall(part, ranks) for part in (*corpus.PARTS, "all")]


async def tokens():
    registry = ToolRegistry(corpus.tools())
    doors = search_mode(registry)
    everyday = [one.words for one in corpus.requests() if one.part == corpus.PARTS[0]]
    answers = [await doors[0].execute({"query": words}) for words in everyday]
    return Tokens(
        registry.tokens().total,
        sum(estimate_tokens([door.name, door.description, door.parameters]) for door in doors),
        fmean(estimate_tokens(answer.text) for answer in answers),
    )


def speed(size=1_000):
    """Seconds of CPU to index `size` tools, to ask, and to notice that nothing has changed."""
    tools, requests = corpus.tools()[:size], corpus.requests()
    indexing, index = _timed(lambda: Index(tools))
    _timed(lambda: [index.search(request.words) for request in requests])  # words met for once
    asking, _ = _timed(lambda: [index.search(request.words) for request in requests])
    noticing, _ = _timed(lambda: index.update(tools))
    return indexing, asking / len(requests), noticing


def _rank(request, found):
    places = (at for at, tool in enumerate(found, 1) if corpus.label(tool) in request.right)
    return next(places, None)


def _recall(part, ranks):
    mine = [(ours, plain) for one, ours, plain in ranks if part in {one, "all"}]
    ours, plain = zip(*mine, strict=True)
    return Recall(part, len(mine), _shares(ours), _shares(plain))


def _shares(ranks):
    return tuple(fmean(rank is not None and rank <= depth for rank in ranks) for depth in DEPTHS)


def _timed(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result
