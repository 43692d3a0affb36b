"""One call over Streamable HTTP."""

from bench.clients import bare_web, hub_client, sdk_client, web_server
from bench.measure import compare
from bench.report import Promise, Report, micro
from multitap import HttpServer

LIMIT = 0.2
BARE, BARE_AT = 2.0, 16
"""Times the bare client, with that many calls at a time."""


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
                    blocks=2 if quick else 6,
                    parallel=parallel,
                )
                how = f"{era}, {parallel} at a time"
                ratio, bare = cost["hub"] / cost["sdk"], cost["hub"] / cost["bare"]
                ratios = f"{ratio:.2f}", f"{bare:.2f}"
                rows.append((how, *(micro(cost[name]) for name in clients), *ratios))
                promises.append(Promise(f"HTTP call against the SDK's, {how}", LIMIT, ratio))
                if parallel == BARE_AT:
                    promises.append(Promise(f"HTTP call against a bare client, {how}", BARE, bare))
    columns = (
        "calls",
        "`hub.call`",
        "SDK `Client.call_tool`",
        "bare sockets",
        "hub / SDK",
        "hub / bare",
    )
    return Report("A call over Streamable HTTP", columns, rows, promises)
