"""A plain round-robin TCP balancer, which knows nothing of sessions."""

import asyncio
import contextlib
import itertools


class Balancer:
    """Sends each connection to the next gateway that accepts it."""

    def __init__(self, ports):
        self._ports = ports
        self._turns = itertools.count()
        self._server = None
        self._carrying = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in tuple(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _carry(self, reader, writer):
        task = asyncio.current_task()
        self._carrying.add(task)
        try:
            first = next(self._turns)
            for turn in range(len(self._ports)):
                port = self._ports[(first + turn) % len(self._ports)]
                with contextlib.suppress(OSError):
                    there = await asyncio.open_connection("127.0.0.1", port)
                    break
            else:
                return
            back, out = there
            try:
                await asyncio.gather(_copy(reader, out), _copy(back, writer))
            finally:
                out.close()
        finally:
            writer.close()
            self._carrying.discard(task)


async def _copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
