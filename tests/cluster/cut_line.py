"""A TCP connection that can be cut: abruptly, or silently."""

import asyncio
import contextlib


class CutLine:
    """Carries connections to a port, as long as it is not cut."""

    def __init__(self, port):
        self._target = port
        self._server = None
        self._carrying = set()
        self._whole = asyncio.Event()
        self._whole.set()
        self._refuses = False

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self._drop()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def reset(self):
        """Close all connections, and accept no more."""
        self._refuses = True
        self._drop()

    def swallow(self):
        """Keep connections open, and bring nothing more to anybody."""
        self._whole.clear()

    def mend(self):
        """Go on; what was swallowed is lost with its connection, as behind a firewall."""
        if not self._whole.is_set():
            self._drop()
            self._whole.set()
        self._refuses = False

    def _drop(self):
        for task in tuple(self._carrying):
            task.cancel()

    async def _carry(self, reader, writer):
        task = asyncio.current_task()
        self._carrying.add(task)
        there = None
        try:
            if self._refuses:
                return
            await self._whole.wait()
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(self._copy(reader, there), self._copy(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, there):
                if one is not None:
                    one.transport.abort()
            self._carrying.discard(task)

    async def _copy(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()
