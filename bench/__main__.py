"""Runs every benchmark, side by side in one run, and writes the page."""

import argparse
import logging
import sys
from functools import partial

import anyio

from bench import big_results, call_http, call_stdio, imports, lazy, memory, report, start

BENCHMARKS = (imports, call_stdio, call_http, big_results, start, lazy, memory)


def main() -> int:
    names = {benchmark.__name__.rpartition(".")[2]: benchmark for benchmark in BENCHMARKS}
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[[], *names], help="these; all if none is named")
    parser.add_argument("--quick", action="store_true", help="a minute, and nothing is written")
    wanted = parser.parse_args()
    logging.getLogger("multitap").addHandler(
        logging.NullHandler()
    )  # some servers are meant to fail
    reports = []
    for name in wanted.only or names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        reports.append(anyio.run(partial(names[name].run, quick=wanted.quick)))
    text = report.render(reports)
    print(text)
    if not wanted.quick and not wanted.only:
        report.write(text)
    return 0 if all(promise.kept for one in reports for promise in one.promises) else 1


if __name__ == "__main__":
    sys.exit(main())
