"""One call over Streamable HTTP."""

from bench.clients import bare_web, hub_client, sdk_client, web_server
from bench.measure import compare
from bench.report import Promise, Report, micro
from multitap import HttpServer

LIMIT = 0.2


async def run(*, quick: bool) -> Report:
    rows, promises = [], []
    for era in ("handshake", "stateless"):
        async with web_server(era) as url:
            for parallel in (1, 16):
                clients = {
                    "hub": hub_client(HttpServer(url=url)),
                    "sdk": sdk_client(url),
                    "bare": bare_web(url),
                }
                cost = await compare(
                    clients,
                    calls=320 if quick else 640,
                    blocks=2 if quick else 8,
                    parallel=parallel,
                )
                how = f"{era}, {parallel} at a time"
                ratio = cost["hub"] / cost["sdk"]
                rows.append((how, *(micro(cost[name]) for name in clients), f"{ratio:.2f}"))
                promises.append(Promise(f"HTTP call against the SDK's, {how}", LIMIT, ratio))
    columns = ("calls", "`hub.call`", "SDK `Client.call_tool`", "bare aiohttp", "hub / SDK")
    return Report("A call over Streamable HTTP", columns, rows, promises)
