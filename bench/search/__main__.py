"""Measures the search among tools, and writes the tables of docs/search.md."""

import argparse
import sys
from pathlib import Path

import anyio

from bench.report import milli
from bench.search import corpus, measure, page, public

GOAL = 0.7
"""Of the held-out requests, with five tools shown."""


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only look; nothing is written")
    parser.add_argument("--model", type=Path, help="a folder with a model of sentences")
    options = parser.parse_args()
    quick = options.quick
    recalls = measure.recalls()
    text = page.render(recalls, anyio.run(measure.tokens))
    print(text)
    print("\n" + "\n".join(public.measured(options.model)))
    indexing, asking, noticing = measure.speed()
    print(
        f"\n1,000 tools: indexed in {milli(indexing)}, a search {asking * 1e3:.1f} ms, "
        f"nothing new noticed in {noticing * 1e3:.1f} ms"
    )
    if not quick:
        page.write(text)
    if options.model is not None:
        gains = page.render_gains(measure.gains(options.model))
        print(gains)
        if not quick:
            page.write(gains, page.MODEL)
    held_out = recalls[corpus.PARTS.index("held out")]
    return 0 if held_out.ours[1] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
