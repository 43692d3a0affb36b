"""Runs every benchmark, side by side in one run, and writes the page."""

import argparse
import inspect
import logging
import os
import signal
import sys
import time
from functools import partial

import anyio

from bench import (
    big_results,
    call_http,
    call_stdio,
    confined,
    decisions,
    imports,
    lazy,
    light,
    memory,
    piped,
    report,
    start,
    trace,
)
from bench.gateway import (
    changing,
    cpu,
    crossing,
    growth,
    hanging,
    listing,
    neighbours,
    opening,
    sizes,
    starting,
    web,
)
from bench.gateway import memory as gateway_memory
from bench.gateway.gateways import GATEWAYS, ON_OTHERS
from bench.goals import summary

BENCHMARKS = (
    *(imports, light, call_stdio, call_http, big_results, start, lazy, memory, trace),
    decisions,
    confined,
    piped,
)
GATEWAY = (
    cpu,
    web,
    sizes,
    crossing,
    listing,
    changing,
    opening,
    starting,
    hanging,
    neighbours,
    growth,
    gateway_memory,
)
"""One group; each can be told which gateways to compare."""


def main() -> int:
    groups = {_name(benchmark): [benchmark.run] for benchmark in BENCHMARKS}
    scenarios = {_name(scenario): scenario.run for scenario in GATEWAY}
    wanted = _parser([*groups, "gateway"], scenarios).parse_args()
    groups["gateway"] = [
        partial(scenarios[name], among=wanted.among) for name in wanted.only or scenarios
    ]
    names = wanted.benchmarks or (["gateway"] if wanted.only or wanted.among else groups)
    logging.getLogger("multitap").addHandler(
        logging.NullHandler()
    )  # some servers are meant to fail
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    reports = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        reports += [_measured(run, quick=wanted.quick, again=wanted.again) for run in groups[name]]
    goals, text = summary(reports), report.render(reports)
    print(f"{text}\n### The goals\n\n{goals}" if goals else text)
    if not wanted.quick and names is groups:
        report.write(goals=goals, bench=text)
    return 0 if all(promise.kept for one in reports for promise in one.promises) else 1


def _measured(run, *, quick, again):
    """What a benchmark says; where it misses something, it is run once more if that is wanted.

    A machine that does something else for a moment costs a figure, and would cost the promise. Of
    gateways, the second time is ours and the bare forwarder's only.
    """
    started, found = time.perf_counter(), anyio.run(partial(run, quick=quick))
    if again and not all(promise.kept for promise in found.promises):
        ours = partial(run, among=["floor", "multitap"]) if "among" in _takes(run) else run
        found = report.better(found, anyio.run(partial(ours, quick=quick)))
    print(f"  {found.title}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return found


def _takes(run):
    return inspect.signature(run).parameters


def _parser(names, scenarios):
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "benchmarks", nargs="*", choices=[[], *names], help="these; all if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="minutes, and nothing is written")
    parser.add_argument("--again", action="store_true", help="measure again what is missed")
    gateway = parser.add_argument_group("gateway")
    gateway.add_argument("--only", nargs="+", choices=scenarios, help="these scenarios")
    known = [*GATEWAYS, *(one.key for one in ON_OTHERS)]
    gateway.add_argument("--among", nargs="+", choices=known, help="these gateways")
    return parser


def _interrupt(*_):
    """End as at Ctrl-C, with all that was started; `timeout` says it twice."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


def _name(benchmark):
    return benchmark.__name__.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
