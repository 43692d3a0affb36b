"""FastMCP's proxy, run by an interpreter that has FastMCP."""

import asyncio
import json
import sys
from pathlib import Path

from fastmcp import Client
from fastmcp.server import create_proxy


async def main(port, config, sessions):
    wanted = json.loads(Path(config).read_text())
    if sessions == "fresh":
        await _serve(create_proxy(wanted), port)
    else:
        async with Client(wanted) as client:
            await _serve(create_proxy(client), port)


async def _serve(proxy, port):
    await proxy.run_async(
        transport="http",
        port=int(port),
        show_banner=False,
        log_level="error",
        uvicorn_config={"loop": "uvloop", "http": "httptools", "timeout_keep_alive": 60},
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
