"""One call over pipes."""

from bench.clients import bare_pipe, hub_client, pipe_command, pipe_config, sdk_client
from bench.measure import compare
from bench.report import Promise, Report, micro

LIMIT = 0.3
BARE, BARE_AT = 1.7, 16
"""Times the bare client, with that many calls at a time."""


async def run(*, quick: bool) -> Report:
    rows, promises = [], []
    for era in ("handshake", "stateless"):
        for parallel in (1, 16):
            clients = {
                "hub": hub_client(pipe_config(era)),
                "sdk": sdk_client(pipe_command(era)),
                "bare": bare_pipe(pipe_command(era)),
            }
            cost = await compare(
                clients, calls=800 if quick else 2000, blocks=2 if quick else 6, parallel=parallel
            )
            how = f"{era}, {parallel} at a time"
            ratio, bare = cost["hub"] / cost["sdk"], cost["hub"] / cost["bare"]
            ratios = f"{ratio:.2f}", f"{bare:.2f}"
            rows.append((how, *(micro(cost[name]) for name in clients), *ratios))
            promises.append(Promise(f"stdio call against the SDK's, {how}", LIMIT, ratio))
            if parallel == BARE_AT:
                promises.append(Promise(f"stdio call against a bare client, {how}", BARE, bare))
    columns = (
        "calls",
        "`hub.call`",
        "SDK `Client.call_tool`",
        "bare pipe",
        "hub / SDK",
        "hub / bare",
    )
    return Report("A call over stdio", columns, rows, promises)
