"""The textbook's BM25, to compare with: one field, words as they are."""

import re
from collections import Counter, defaultdict
from math import log

WORD = re.compile(r"[a-z0-9]+")
SATURATION = 1.5
LENGTH = 0.75


class PlainIndex:
    def __init__(self, tools):
        self.tools = tools
        words = [WORD.findall(f"{tool.name} {tool.description}".lower()) for tool in tools]
        mean = sum(map(len, words)) / len(words)
        self.postings = defaultdict(list)
        for number, said in enumerate(words):
            stretch = SATURATION * (1 - LENGTH + LENGTH * len(said) / mean)
            for word, count in Counter(said).items():
                weight = count * (SATURATION + 1) / (count + stretch)
                self.postings[word].append((number, weight))

    def search(self, query, limit):
        scores = defaultdict(float)
        for word in WORD.findall(query.lower()):
            found = self.postings.get(word, ())
            rarity = log(1 + (len(self.tools) - len(found) + 0.5) / (len(found) + 0.5))
            for number, weight in found:
                scores[number] += rarity * weight
        best = sorted(scores, key=lambda number: (-scores[number], number))
        return [self.tools[number] for number in best[:limit]]
