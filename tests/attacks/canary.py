"""A place that nobody has any business to visit."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Canary:
    port: int = 0
    visits: list[bytes] = field(default_factory=list)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/seen"


@asynccontextmanager
async def canary():
    """Notes everybody who connects."""
    bird = Canary()

    async def sing(reader, writer):
        bird.visits.append(b"somebody")
        bird.visits.append(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(sing, "127.0.0.1", 0)
    bird.port = server.sockets[0].getsockname()[1]
    async with server:
        yield bird
