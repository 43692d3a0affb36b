"""Runs every benchmark, side by side in one run, and writes the page."""

import argparse
import logging
import sys
from functools import partial

import anyio

from bench import big_results, call_http, call_stdio, imports, lazy, memory, report, start
from bench import gateway as _gateway
from bench.gateway import cpu, hanging, listing, neighbours, sizes
from bench.gateway import memory as gateway_memory
from bench.gateway.gateways import GATEWAYS

BENCHMARKS = (imports, call_stdio, call_http, big_results, start, lazy, memory)
GATEWAY = (cpu, sizes, listing, hanging, neighbours, gateway_memory)
"""These form one group, and each can be told which gateways to compare."""


def main() -> int:
    groups = {_name(benchmark): [benchmark.run] for benchmark in BENCHMARKS}
    parser = _parser([*groups, _name(_gateway)])
    wanted = parser.parse_args()
    within = {_name(scenario): scenario for scenario in GATEWAY}
    groups[_name(_gateway)] = [
        partial(within[name].run, among=wanted.among) for name in wanted.only or within
    ]
    names = wanted.benchmarks or ([_name(_gateway)] if wanted.only or wanted.among else groups)
    logging.getLogger("multitap").addHandler(
        logging.NullHandler()
    )  # some servers are meant to fail
    reports = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        reports += [anyio.run(partial(run, quick=wanted.quick)) for run in groups[name]]
    text = report.render(reports)
    print(text)
    if not wanted.quick and names is groups:
        report.write(text)
    return 0 if all(promise.kept for one in reports for promise in one.promises) else 1


def _parser(names):
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "benchmarks", nargs="*", choices=[[], *names], help="these; all if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="minutes, and nothing is written")
    gateway = parser.add_argument_group("gateway")
    scenarios = [_name(scenario) for scenario in GATEWAY]
    gateway.add_argument("--only", nargs="+", choices=scenarios, help="these scenarios")
    gateway.add_argument("--among", nargs="+", choices=GATEWAYS, help="these gateways")
    return parser


def _name(benchmark):
    return benchmark.__name__.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
