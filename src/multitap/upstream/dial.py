"""The wire that a server's configuration asks for."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import assert_never

from multitap.config import HttpServer, LocalServer, ServerConfig, StdioServer
from multitap.wire.http import open_http
from multitap.wire.local import open_local
from multitap.wire.spawner import Spawner
from multitap.wire.sse import open_sse
from multitap.wire.stderr import log_path
from multitap.wire.stdio import open_stdio
from multitap.wire.wire import Wire


class Dialer:
    """Opens wires for one hub."""

    def __init__(self, spawner: Spawner, log_dir: Path | None) -> None:
        self._spawner = spawner
        self._log_dir = log_dir

    def __call__(self, name: str, config: ServerConfig) -> AbstractAsyncContextManager[Wire]:
        match config:
            case StdioServer():
                log = log_path(self._log_dir, name) if self._log_dir else None
                return open_stdio(name, config, self._spawner, log=log)
            case HttpServer(transport="sse"):
                return open_sse(config)
            case HttpServer():
                return open_http(config)
            case LocalServer():
                return open_local(config.server)
            case _:
                assert_never(config)
