"""Results of many megabytes over pipes."""

from bench.clients import bare_pipe, hub_client, pipe_command, pipe_config
from bench.measure import compare
from bench.report import Promise, Report, milli

SIZES = (1, 8, 16)
LIMIT = 2.0
LINEAR = 2.5
"""Twice the bytes may cost this much more: twice, and some noise."""


async def run(*, quick: bool) -> Report:
    rows, promises, costs = [], [], {}
    for size in SIZES:
        wanted = {"tool": "blob", "arguments": {"count": size * 2**20}}
        clients = {
            "hub": hub_client(pipe_config(), **wanted),
            "bare": bare_pipe(pipe_command(), **wanted),
        }
        cost = await compare(clients, calls=3, blocks=2 if quick else 5)
        costs[size] = cost["hub"]
        ratio = cost["hub"] / cost["bare"]
        rows.append((f"{size} MB", milli(cost["hub"]), milli(cost["bare"]), f"{ratio:.2f}"))
        promises.append(Promise(f"{size} MB result against a bare reader", LIMIT, ratio))
    growth = costs[16] / costs[8]
    promises.append(Promise("16 MB result against one of 8 MB", LINEAR, growth))
    return Report(
        "Big results", ("result", "`hub.call`", "bare reader", "hub / bare"), rows, promises
    )
