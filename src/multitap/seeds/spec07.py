"""SPEC-07's registry: servers by name, each with its configuration and its status."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from multitap.config import HttpServer, ServerConfig, Settings, StdioServer
from multitap.errors import ConfigError, MultitapError, UnknownName
from multitap.events import LinkState
from multitap.hub.hub import Hub, open_hub
from multitap.seeds.mcp_json import read_entry

Status = LinkState


class LocalConfig(msgspec.Struct, frozen=True):
    """A program and its arguments."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    enabled: bool = True
    timeout: int = 30000
    """Milliseconds."""
    type: Literal["local"] = "local"

    def __repr__(self) -> str:
        return f"<LocalConfig {self.command!r}>"  # its variables may be secret


class RemoteConfig(msgspec.Struct, frozen=True):
    """An address."""

    url: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    enabled: bool = True
    timeout: int = 30000
    """Milliseconds."""
    type: Literal["remote"] = "remote"

    def __repr__(self) -> str:
        return f"<RemoteConfig {self.url!r}>"  # its headers may be secret


Config = LocalConfig | RemoteConfig


class Info(msgspec.Struct, frozen=True):
    """One registered server as it is now."""

    name: str
    config: Config
    status: Status = Status.DISCONNECTED
    error: str | None = None
    tool_count: int = 0


class McpServerRegistry:
    """Servers by name.

    By itself it only keeps records. Inside `connected`, the servers run, and a hub sets their
    status.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._servers: dict[str, ServerConfig] = {}
        self._infos: dict[str, Info] = {}
        self._hub: Hub | None = None

    def register(self, name: str, config: Config | Mapping[str, Any]) -> None:
        """Add a server, or replace its configuration.

        Raises:
            ConfigError: The configuration is wrong; the message names the key.
        """
        # callers need not be type-checked
        if not isinstance(config, Mapping | LocalConfig | RemoteConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name!r}: expected a table of settings, not {config!r}")
        server = read_entry("spec07", name, _as_written(config))
        self._servers[name] = server
        self._infos[name] = Info(name, _as_read(server))
        self._follow()

    def get(self, name: str) -> Info | None:
        """The record of a server; None if there is no such server."""
        info = self._infos.get(name)
        if info is None or self._hub is None:
            return info
        now = self._hub.snapshot().server(name)
        error = str(now.failure) if now.failure else None
        return replace(info, status=now.state, error=error, tool_count=now.tools)

    def list(self) -> tuple[Info, ...]:
        """All servers, in the order in which they were registered."""
        return tuple(info for name in self._infos if (info := self.get(name)))

    def remove(self, name: str) -> None:
        """Forget a server; ignores unknown names."""
        self._servers.pop(name, None)
        self._infos.pop(name, None)
        self._follow()

    def update_status(self, name: str, status: Status | str, error: str | None = None) -> None:
        """Set the status of a server that is connected elsewhere.

        Raises:
            UnknownName: There is no such server.
            MultitapError: It is connected here, so its status follows the connection.
        """
        if name not in self._infos:
            raise UnknownName(f"no server named {name!r}", hint="register it first")
        if self._hub is not None:
            raise MultitapError(f"the status of {name!r} follows its connection")
        self._infos[name] = replace(self._infos[name], status=Status(status), error=error)

    def reset(self) -> None:
        """Forget all servers."""
        self._servers.clear()
        self._infos.clear()
        self._follow()

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Hub]:
        """Run the registered servers within the block; follows `register` and `remove`.

        Raises:
            MultitapError: They run already.
        """
        if self._hub is not None:
            raise MultitapError("these servers are already connected")
        async with open_hub(self._wanted_settings()) as hub:
            self._hub = hub
            try:
                yield hub
            finally:
                self._hub = None

    def _follow(self) -> None:
        if self._hub is not None:
            self._hub.apply(self._wanted_settings())

    def _wanted_settings(self) -> Settings:
        return self._settings.with_servers(dict(self._servers))


def _as_written(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    members = config if isinstance(config, Mapping) else asdict(config)
    return {key: [*value] if isinstance(value, tuple) else value for key, value in members.items()}


def _as_read(server: ServerConfig) -> Config:
    # SPEC-07 counts milliseconds, we count seconds
    timeout = round(server.timeout * 1000)
    match server:
        case StdioServer():
            command = (server.command, *server.args)
            return LocalConfig(command, server.env, server.enabled, timeout)
        case HttpServer():
            return RemoteConfig(server.url, server.headers, server.enabled, timeout)
        case _:
            raise AssertionError("the dialect has two kinds of servers")
