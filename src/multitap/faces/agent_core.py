"""agent-core's manager: clients connected one by one, their tools in one list."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multitap.config import Loaded, ServerConfig, Settings
from multitap.events import LinkState
from multitap.faces import entry
from multitap.faces.switchboard import Switchboard
from multitap.tools.tool import HubTools, ToolInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class McpClientLoadResult:
    """What came of loading many clients."""

    loaded: int
    failed: tuple[str, ...] = ()


class McpManager:
    """Clients by name, in a hub with a thread of its own.

    Its methods may be called from any task, loop or thread. Disconnecting the last client ends
    everything, and so does `close`.

    Args:
        settings: By which rules; its servers come with the clients.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._board = Switchboard(settings)
        self._tools = HubTools(self._board)

    async def connect_client(self, name: str, config: Mapping[str, Any] | ServerConfig) -> None:
        """Connect a server, in place of one of the same name, and have its tools.

        Raises:
            ConfigError: The configuration is wrong; says which key.
            Unavailable: The server does not come up; says why.
        """
        if isinstance(config, Mapping):
            config = entry.server("spec07", name, config)
        await self._board.connect(name, config)

    async def load_clients(self, loaded: Loaded) -> McpClientLoadResult:
        """Connect all servers of a configuration side by side, but those that are switched off.

        One that fails is tried again by itself, and its tools are there once it is up.
        """
        wanted = {name: one for name, one in loaded.settings.servers.items() if one.enabled}
        servers = await self._board.plug(wanted)
        down = [one for one in servers.values() if one.state is not LinkState.CONNECTED]
        for server in down:
            logger.error("%s is not connected: %s", server.name, server.failure)
        failed = {*loaded.broken, *(server.name for server in down)}
        return McpClientLoadResult(len(servers) - len(down), tuple(sorted(failed)))

    async def disconnect_client(self, name: str) -> None:
        """Disconnect a server and lose its tools; one that is not there is fine."""
        await self._board.pull(name)

    def has_client(self, name: str) -> bool:
        """Whether there is such a client, be its server up or down right now."""
        return name in self._board.settings.servers

    def get_tools(self) -> list[ToolInfo]:
        """The tools of all clients as they are now, named `{client}_{tool}`."""
        return [*self._tools.values()]

    def get_tools_description(self) -> str:
        """One line for each tool, for a system prompt."""
        return "\n".join(f"  - {tool.name}: {tool.description}" for tool in self.get_tools())

    async def close(self) -> None:
        """Disconnect all clients and wait until their servers have ended."""
        await self._board.close()
