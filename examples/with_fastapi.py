"""A hub in the lifespan of a FastAPI application: run it, then open /book/LH400."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from mcp.types import ElicitRequestParams, ElicitResult

from multitap import Handlers, Settings, StdioServer, open_hub
from multitap.upstream.questions import RequestOrigin

program = Path(__file__).with_name("booking_server.py")
booking = StdioServer(command=sys.executable, args=(str(program),), era="handshake")


async def answer(_asked: RequestOrigin, question: ElicitRequestParams) -> ElicitResult:
    print(question.message)  # it says who asks
    return ElicitResult(action="accept", content={"window": True})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings = Settings(servers={"booking": booking})
    async with open_hub(settings, handlers=Handlers(elicit=answer)) as hub:
        app.state.hub = hub  # servers start meanwhile; a call waits for its own
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/book/{flight}")
async def book(flight: str, request: Request) -> str:
    hub = request.app.state.hub
    await hub.settled()
    result = await hub.call("booking_book", {"flight": flight})
    return result.text


if __name__ == "__main__":
    uvicorn.run(app, port=8000)
