"""Opens the wire that a server's configuration asks for."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from multitap.config import HttpServer, LocalServer, ServerConfig, StdioServer
from multitap.later import Later
from multitap.wire.process.sandboxes import Sandboxes
from multitap.wire.process.spawner import Spawner
from multitap.wire.process.stderr_log import log_path
from multitap.wire.process.stdio_wire import open_stdio
from multitap.wire.wire import Wire

if TYPE_CHECKING:
    from multitap.upstream.oauth.logins import Logins
    from multitap.wire import in_process, legacy_sse
    from multitap.wire.streamable import streamable_wire
else:
    # imported on first use: the SDK takes longer to import than many servers to start
    streamable_wire = Later("multitap.wire.streamable.streamable_wire")
    in_process = Later("multitap.wire.in_process")
    legacy_sse = Later("multitap.wire.legacy_sse")


class Dialer:
    """Opens wires for one hub.

    Args:
        spawner: Starts programs.
        log_dir: The folder for their standard error.
        logins: Our accounts at servers.
        sandboxes: Confines programs.
    """

    def __init__(
        self,
        spawner: Spawner,
        log_dir: Path | None,
        logins: Logins,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        self._spawner = spawner
        self._sandboxes = sandboxes
        self._log_dir = log_dir
        self._logins = logins

    def __call__(self, name: str, config: ServerConfig) -> AbstractAsyncContextManager[Wire]:
        match config:
            case StdioServer():
                log = log_path(self._log_dir, name) if self._log_dir else None
                return open_stdio(name, config, self._spawner, log=log, sandboxes=self._sandboxes)
            case HttpServer(transport="sse"):
                account = self._logins.account(name, config)
                return legacy_sse.open_sse(config, authorizer=account)
            case HttpServer():
                account = self._logins.account(name, config)
                return streamable_wire.open_streamable(config, authorizer=account)
            case LocalServer():
                return in_process.open_in_process(config.server)
            case _:
                assert_never(config)
