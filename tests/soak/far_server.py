"""A server over HTTP in a process of its own, on the same port after each kill."""

import signal
import socket
import subprocess
import sys

import anyio

from tests.floods.gateway import free_port

PATIENCE = 120.0
"""Seconds for a start: the SDK's imports take long on a busy machine."""
PATHS = {"streamable-http": "/mcp", "sse": "/sse"}


class FarServer:
    """Its process, which can be killed, stopped and started again.

    Args:
        transport: Which of `PATHS` it speaks.
        program: Makes the arguments of Python from its port; by default, this file.
        options: What its entry in a configuration has besides its URL.
    """

    def __init__(self, transport, *, program=None, **options):
        self._port = free_port()
        arguments = program or (lambda port: ("-m", __name__, transport, port))
        self._command = [sys.executable, *arguments(str(self._port))]
        self._process = None
        url = f"http://127.0.0.1:{self._port}{PATHS[transport]}"
        self.entry = {"url": url, "transport": transport, **options}

    async def start(self):
        with anyio.fail_after(PATIENCE):
            self._spawn()
            while not _listens(self._port):
                if self._process.poll() is not None:  # a connection may have got its port meanwhile
                    self._spawn()
                await anyio.sleep(0.1)

    def _spawn(self):
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        self._process.kill()
        self._process.wait()


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(transport, port):
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - only the program needs the SDK

    server = MCPServer("far", log_level="CRITICAL")

    @server.tool()
    def nonce(n: int) -> str:
        return str(n)

    server.run(transport, host="127.0.0.1", port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
