"""The wire that a server's configuration asks for."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, assert_never

from multitap.config import HttpServer, LocalServer, OAuth, ServerConfig, StdioServer
from multitap.upstream.handlers import Login
from multitap.upstream.oauth import Account
from multitap.wire.http import open_http
from multitap.wire.local import open_local
from multitap.wire.site import Authorize
from multitap.wire.spawner import Spawner
from multitap.wire.sse import open_sse
from multitap.wire.stderr import log_path
from multitap.wire.stdio import open_stdio
from multitap.wire.wire import Wire


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
        self._accounts: dict[tuple[str, str, OAuth | Literal[False] | None], Account] = {}

    def __call__(self, name: str, config: ServerConfig) -> AbstractAsyncContextManager[Wire]:
        match config:
            case StdioServer():
                log = log_path(self._log_dir, name) if self._log_dir else None
                return open_stdio(name, config, self._spawner, log=log)
            case HttpServer(transport="sse"):
                return open_sse(config, authorize=self._authorize(name, config))
            case HttpServer():
                return open_http(config, authorize=self._authorize(name, config))
            case LocalServer():
                return open_local(config.server)
            case _:
                assert_never(config)

    def _authorize(self, name: str, config: HttpServer) -> Authorize | None:
        """The account outlives a wire: whoever is logged in stays so when the server comes back."""
        given = any(header.lower() == "authorization" for header in config.headers)
        if self._login is None or config.oauth is False or given:
            return None
        key = (name, config.url, config.oauth)
        if (account := self._accounts.get(key)) is None:
            account = self._accounts[key] = Account(name, config, self._login)
        return account.authorize
