"""How often the right tool is found, and what it saves to search."""

import time
import zlib
from dataclasses import dataclass
from statistics import fmean

from bench.search import corpus
from bench.search.plain import PlainIndex
from multitap.tools import ToolRegistry
from multitap.tools.providers.offers import estimate_tokens
from multitap.tools.search import Index, search_mode
from multitap.tools.search.embedding import Embedding

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
    ranks = [(request.part, _ours(ours, request), _plain(plain, request)) for request in requests]
    return [_recall(part, ranks) for part in (*corpus.PARTS, "all")]


@dataclass(frozen=True, slots=True)
class Gain:
    """What a model of sentences finds, beside words alone, on one half of the requests."""

    half: str
    rows: tuple[Recall, ...]
    """With the model as `ours`, and words alone as `plain`."""


def gains(folder):
    """For both halves: the weight of the meaning was chosen on the first."""
    tools, requests = corpus.tools(), corpus.requests()
    words, embedding = Index(tools), Embedding(folder)
    embedding.load()
    both = Index(tools, embedding)
    both.learn()
    while embedding.has_unread:
        embedding.read_next()
    ranks = {0: [], 1: []}
    for request in requests:
        rank = request.part, _ours(both, request), _ours(words, request)
        ranks[zlib.crc32(request.words.encode()) % 2].append(rank)
    return [
        Gain(
            half, tuple(_recall(part, some) for part in (*corpus.PARTS, "all") if _has(part, some))
        )
        for half, some in zip(("tuned on", "other"), ranks.values(), strict=True)
    ]


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


def _ours(index, request):
    return _rank(request, [hit.tool for hit in index.search(request.words, DEPTHS[-1])])


def _plain(index, request):
    return _rank(request, index.search(request.words, DEPTHS[-1]))


def _has(part, ranks):
    return part == "all" or any(one == part for one, _, _ in ranks)


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
