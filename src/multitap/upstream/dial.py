"""The wire that a server's configuration asks for."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from multitap.config import HttpServer, LocalServer, OAuth, ServerConfig, StdioServer
from multitap.later import Later
from multitap.upstream.handlers import Login
from multitap.wire.process.spawner import Spawner
from multitap.wire.process.stderr_log import log_path
from multitap.wire.process.stdio_wire import open_stdio
from multitap.wire.wire import Wire

if TYPE_CHECKING:
    from multitap.upstream import oauth
    from multitap.wire import in_process, legacy_sse
    from multitap.wire.streamable import streamable_wire
    from multitap.wire.streamable.http_origin import Authorize
else:
    # imported when such a server is dialled: the SDK takes longer than many servers to start
    oauth = Later("multitap.upstream.oauth")
    streamable_wire = Later("multitap.wire.streamable.streamable_wire")
    in_process = Later("multitap.wire.in_process")
    legacy_sse = Later("multitap.wire.legacy_sse")


class Dialer:
    """Opens wires for one hub.

    Args:
        spawner: Starts programs.
        log_dir: Where their standard error is kept.
        login: Who logs in where a server wants that.
    """

    def __init__(self, spawner: Spawner, log_dir: Path | None, login: Login | None) -> None:
        self._spawner = spawner
        self._log_dir = log_dir
        self._login = login
        self._accounts: dict[tuple[str, str, OAuth | Literal[False] | None], oauth.Account] = {}

    def __call__(self, name: str, config: ServerConfig) -> AbstractAsyncContextManager[Wire]:
        match config:
            case StdioServer():
                log = log_path(self._log_dir, name) if self._log_dir else None
                return open_stdio(name, config, self._spawner, log=log)
            case HttpServer(transport="sse"):
                return legacy_sse.open_sse(config, authorize=self._authorize(name, config))
            case HttpServer():
                return streamable_wire.open_streamable(
                    config, authorize=self._authorize(name, config)
                )
            case LocalServer():
                return in_process.open_in_process(config.server)
            case _:
                assert_never(config)

    def _authorize(self, name: str, config: HttpServer) -> Authorize | None:
        """The account outlives a wire: a login stays valid when the server comes back."""
        given = any(header.lower() == "authorization" for header in config.headers)
        if self._login is None or config.oauth is False or given:
            return None
        key = (name, config.url, config.oauth)
        if (account := self._accounts.get(key)) is None:
            account = self._accounts[key] = oauth.Account(name, config, self._login)
        return account.authorize
