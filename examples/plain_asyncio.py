"""A plain `asyncio.run`, and a server that asks in the middle of a call."""

import asyncio
import sys
from pathlib import Path

from mcp.types import ElicitRequestParams, ElicitResult

from multitap import Handlers, Settings, StdioServer, open_hub
from multitap.upstream.questions import RequestOrigin

program = Path(__file__).with_name("booking_server.py")
booking = StdioServer(command=sys.executable, args=(str(program),), era="handshake")


async def answer(_asked: RequestOrigin, question: ElicitRequestParams) -> ElicitResult:
    print(question.message)  # it says who asks
    return ElicitResult(action="accept", content={"window": True})


async def main() -> None:
    settings = Settings(servers={"booking": booking})
    async with open_hub(settings, handlers=Handlers(elicit=answer)) as hub:
        await hub.settled()
        result = await hub.call("booking_book", {"flight": "LH 400"})
        print(result.text)


asyncio.run(main())
