"""The figures that matter most, each with its goal, from the promises of all benchmarks."""

import re
from collections.abc import Sequence

from bench.report import Promise, Report, table

GOALS = (
    ("a client on pipes: memory, first answer, CPU for a message", r"a client on pipes"),
    ("the gateway up and listing 30 servers from stored catalogs", r".*stored catalogs"),
    ("the same with 10 and 30 fresh servers, against a bare forwarder", r"\d+ fresh"),
    ("the delay of the first list by a hanging server among ten", r"nine servers usable"),
    ("one tool more among 10,000: CPU, and the longest wait", r"CPU of one|the longest wait of"),
    ("memory of an idle gateway with one server", r"memory: idle"),
    ("memory of a thousand tools", r"memory: a thousand"),
    ("a call through the gateway, against a bare forwarder", r"gateway against a bare forwarder"),
    ("results of 64 KB to 8 MB, any two eras, against a bare forwarder", r"result of \d+ [KM]B"),
    ("a call among 100 servers, 1,000 tools, 1,000 sessions", r"a call among"),
    ("`hub.call` against a bare client, 16 at a time", r"(stdio|HTTP) call against a bare client"),
    ("`hub.call` with a text of 1 MB to 16 MB, against a bare reader", r"\d+ MB result.*reader"),
    ("CPU of the call log and the audit log, per call", r"CPU of the call log"),
    ("CPU to open a session", r"CPU of the gateway to open"),
    ("CPU of `multitap status` and `multitap --help`", r"CPU of `multitap"),
)
"""What each is called, and the promises that it is made of, by how their words begin."""


def summary(reports: Sequence[Report]) -> str:
    """One line for each goal that was measured."""
    promises = [promise for report in reports for promise in report.promises]
    rows = []
    for words, pattern in GOALS:
        found = [promise for promise in promises if re.match(pattern, promise.words)]
        if found:
            kept = sum(promise.kept for promise in found)
            rows.append(
                (words, _spread(found, "limit"), _spread(found, "measured"), _of(kept, found))
            )
    return table(("what", "goal: at most", "measured", "kept"), rows) if rows else ""


def _spread(promises: Sequence[Promise], name: str) -> str:
    """The values, each once, as a range for each unit."""
    parts = []
    for unit in dict.fromkeys(promise.unit for promise in promises):
        values = {getattr(promise, name) for promise in promises if promise.unit == unit}
        ends = dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values)))
        parts.append(" to ".join(ends) + unit)
    return ", ".join(parts)


def _of(kept: int, found: Sequence[Promise]) -> str:
    return "yes" if kept == len(found) else f"**{kept} of {len(found)}**"
