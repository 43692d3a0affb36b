"""A Streamable HTTP server with plain JSON answers; prints its port."""

import asyncio
import sys

from aiohttp import web
from answers import answer


def application(era):
    async def post(request):
        reply = answer(await request.read(), era=era)
        if reply is None:
            return web.Response(status=202)
        return web.Response(body=reply, content_type="application/json")

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/mcp", post)
    return app


async def main(era="handshake"):
    runner = web.AppRunner(application(era), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
