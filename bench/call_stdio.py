"""One call over pipes."""

from bench.clients import bare_pipe, hub_client, pipe_command, pipe_config, sdk_client
from bench.measure import compare
from bench.report import Promise, Report, micro

LIMIT = 0.3


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
                clients, calls=800 if quick else 2000, blocks=2 if quick else 10, parallel=parallel
            )
            how = f"{era}, {parallel} at a time"
            ratio = cost["hub"] / cost["sdk"]
            rows.append((how, *(micro(cost[name]) for name in clients), f"{ratio:.2f}"))
            promises.append(Promise(f"stdio call against the SDK's, {how}", LIMIT, ratio))
    columns = ("calls", "`hub.call`", "SDK `Client.call_tool`", "bare pipe", "hub / SDK")
    return Report("A call over stdio", columns, rows, promises)
