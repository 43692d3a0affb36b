"""Results of many megabytes, with their text."""

from bench.clients import (
    bare_pipe,
    bare_web,
    hub_client,
    pipe_command,
    pipe_config,
    web_server,
)
from bench.measure import compare
from bench.report import Promise, Report, milli
from multitap import HttpServer

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
        _note(f"{size} MB result", cost, rows, promises)
    async with web_server() as url:
        wanted = {"tool": "blob", "arguments": {"count": 2**20}}
        clients = {
            "hub": hub_client(HttpServer(url=url), **wanted),
            "bare": bare_web(url, **wanted),
        }
        cost = await compare(clients, calls=24, blocks=2 if quick else 5)
        _note("1 MB result over HTTP", cost, rows, promises)
    growth = costs[16] / costs[8]
    promises.append(Promise("16 MB result against one of 8 MB", LINEAR, growth))
    return Report(
        "Big results", ("result", "`hub.call`", "bare reader", "hub / bare"), rows, promises
    )


def _note(what, cost, rows, promises):
    ratio = cost["hub"] / cost["bare"]
    rows.append((what, milli(cost["hub"]), milli(cost["bare"]), f"{ratio:.2f}"))
    promises.append(Promise(f"{what} against a bare reader", LIMIT, ratio))
