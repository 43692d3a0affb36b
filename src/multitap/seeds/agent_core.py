"""agent-core's manager: clients connected one by one, their tools in one list, and a server."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multitap.config import (
    Document,
    Layer,
    Loaded,
    Serve,
    ServerConfig,
    Settings,
    merge,
    read_document,
)
from multitap.env.environment import McpClientLoadResult
from multitap.env.protocol import EnvService, HasWorld
from multitap.env.server import EnvMCPServer, Front
from multitap.errors import ConfigError
from multitap.events import LinkState
from multitap.hub.reload import warn_of_untrusted, withheld_parts
from multitap.seeds.mcp_json import read_entry
from multitap.seeds.threaded_hub import ThreadedHub
from multitap.tasks import InOwnTask
from multitap.tools.tool import HubTools, ToolInfo

logger = logging.getLogger(__name__)


__all__ = ["McpClientLoadResult", "McpManager"]


class McpManager:
    """Clients by name, in a hub with its own thread, and optionally a server.

    Methods for clients may be called from any task, loop or thread. Disconnecting the last one
    ends them all, and so does `close`. Any task of the loop that started the server may stop it.

    Args:
        settings: The hub's settings; the clients add its servers.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._hub = ThreadedHub(settings)
        self._tools = HubTools(self._hub)
        self._server: InOwnTask[Front] | None = None
        # the manager may be made before there is a loop, which anyio's lock would ask for
        self._turn = asyncio.Lock()

    async def start_server(
        self,
        config: Mapping[str, Any] | Serve,
        world: EnvService | HasWorld,
        *,
        execute_tool: bool = False,
        invoke_llm: bool = False,
        insecure: bool = False,
    ) -> Front:
        """Serve an environment to MCP clients, in place of the previous one.

        Args:
            config: In agent-core's format (`{"transport": "http", "http": {…}}`) or in ours.
            world: The environment, or any object with the methods of `EnvService`.
            execute_tool: Whether others may use its tools.
            invoke_llm: Whether others may use its model.
            insecure: Accept every client that can reach the address, without a token.
                `"insecure": true` in the configuration does the same.

        Raises:
            ConfigError: The configuration is wrong, or the address cannot or may not be used.
        """
        # Read first: a wrong configuration leaves the previous server running.
        serve = config if isinstance(config, Serve) else _serve(config)
        server = EnvMCPServer(world, execute_tool=execute_tool, invoke_llm=invoke_llm)
        async with self._turn:
            # first: the new one may want the same port
            await self._stop_server()
            block = InOwnTask(server.serve(serve, insecure=insecure))
            front = await block.__aenter__()
            self._server = block
            return front

    async def stop_server(self) -> None:
        """Stop serving it; does nothing if there is no server."""
        async with self._turn:
            await self._stop_server()

    async def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.__aexit__(None, None, None)

    async def connect_client(self, name: str, config: Mapping[str, Any] | ServerConfig) -> None:
        """Connect a server, in place of one with the same name, and add its tools.

        Raises:
            ConfigError: The configuration is wrong; the message names the key.
            Unavailable: The server does not come up; the message says why.
        """
        if isinstance(config, Mapping):
            config = read_entry("spec07", name, config)
        await self._hub.connect(name, config)

    async def load_clients(self, loaded: Loaded) -> McpClientLoadResult:
        """Connect all enabled servers of a configuration side by side.

        A server that fails is retried, and its tools are added once it is up. Servers of a project
        that nobody has trusted are not connected: this warns of them (`UntrustedWarning`).
        """
        self._hub.withheld = withheld_parts(loaded)
        warn_of_untrusted(self._hub.withheld)
        # disabled servers are not connected, and do not count as failed
        enabled_servers = {
            name: server for name, server in loaded.settings.servers.items() if server.enabled
        }
        servers = await self._hub.plug(enabled_servers)
        down = [server for server in servers.values() if server.state is not LinkState.CONNECTED]
        for server in down:
            logger.error("%s is not connected: %s", server.name, server.failure)
        failed = {*loaded.broken, *(server.name for server in down)}
        return McpClientLoadResult(len(servers) - len(down), tuple(sorted(failed)))

    async def disconnect_client(self, name: str) -> None:
        """Disconnect a server and remove its tools; ignores unknown names."""
        await self._hub.pull(name)

    def has_client(self, name: str) -> bool:
        """Whether there is such a client, with its server up or down."""
        return name in self._hub.settings.servers

    def get_tools(self) -> list[ToolInfo]:
        """The current tools of all clients, named `{client}_{tool}`."""
        return [*self._tools.values()]

    def get_tools_description(self) -> str:
        """One line for each tool, for a system prompt."""
        return "\n".join(f"  - {tool.name}: {tool.description}" for tool in self.get_tools())

    async def close(self) -> None:
        """Stop the server, disconnect all clients, and wait until their servers have ended."""
        try:
            await self.stop_server()
        finally:
            await self._hub.close()


def _serve(config: Mapping[str, Any]) -> Serve:
    document = Document(path=Path("(program)"), data={"mcpServer": config})
    merged = merge([Layer(read_document(document, Path.cwd(), dialect_name="agent-core"))])
    for problem in merged.problems:
        raise ConfigError(f"`{problem.key}`: {problem.message}", hint=problem.hint)
    return merged.settings.serve
