"""An environment that a gateway shows to its clients as one more server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Tool
from multitap.config import Loaded, LocalServer, Problem, Serve, Severity
from multitap.env.configured_environment import ConfiguredEnvironment, find_skills
from multitap.env.environment_models import Sampled
from multitap.env.profile_world import ProfileWorld
from multitap.env.visibility import SERVER, TIMEOUT, shows_protocol, shows_protocol_to_all
from multitap.hub.hub import Hub
from multitap.hub.reload import Loader
from multitap.later import Later
from multitap.tools import HubTools, ToolDef
from multitap.upstream.connector import Placements, local_placements
from multitap.upstream.handlers import Handlers, RequestOrigin
from multitap.upstream.signals import Bell

if TYPE_CHECKING:
    import mcp_types as types

    from multitap.env import env_hub_server, env_tools
else:
    types = Later("mcp_types")
    env_hub_server = Later("multitap.env.env_hub_server")
    env_tools = Later("multitap.env.env_tools")


class _OtherServersTools(HubTools):
    """The tools of all servers except the environment's own server, which repeats them."""

    def _is_shown(self, tool: Tool) -> bool:
        return tool.server != SERVER


class HostedEnvironment(ConfiguredEnvironment):
    """The environment in the files, as a server of its own hub if it has anything to show.

    Clients do not see anything here that is hidden from them elsewhere.

    Args:
        loader: Reads the files.
        audience: The audience of the client whose request is being answered.
    """

    _recall = True
    _warns = False  # the command that serves it says so itself
    _tools_of = _OtherServersTools

    def __init__(self, loader: Loader, *, audience: Callable[[], Audience]) -> None:
        super().__init__(loader)
        self.world = ProfileWorld(self, audience)
        self._handlers = Handlers()
        self._equipped = Bell()

    @cached_property
    def _shown(self) -> env_hub_server.EnvHubServer:
        """Made when there is something to show: most gateways have no environment."""
        return env_hub_server.EnvHubServer(self)

    @asynccontextmanager
    async def open(
        self, handlers: Handlers, *, place: Placements = local_placements
    ) -> AsyncGenerator[Hub]:
        """Open a hub with it; leaving the block closes both.

        Args:
            handlers: Callbacks for requests of servers.
            place: Where servers run, if not all in this process.
        """
        self._handlers = handlers
        self._place = place
        async with self:
            yield self.hub

    @property
    def answers(self) -> Handlers:
        """Answers sampling requests that the client cannot answer, if others may use the model."""
        return Handlers(sample=self._sample_if_shared, sample_tools=True)

    @property
    def own_tools(self) -> Mapping[str, ToolDef]:
        """Its loaded functions, by name."""
        return {tool.name: tool for tool in self._equipment.tools}

    async def ready(self) -> None:
        """Wait until the functions match the files."""
        # in a loop: the files may change again while their functions are loaded
        while self._equipment.loaded is not self.servers.files.loaded:
            await self._equipped.wait()

    def load_configuration(self) -> Loaded:
        return with_server(super().load_configuration(), lambda: self._shown)

    def handlers(self) -> Handlers:
        return self._handlers

    def mcp_server_config(self) -> Serve | None:
        return None  # the gateway shows it

    def get_env_id(self) -> str:
        return self.settings.environment.id

    async def _on_open(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._follow, self.hub)  # nobody waits for slow functions

    async def _equip(self) -> None:
        await super()._equip()
        self._equipped.ring()
        if SERVER in self.settings.servers:
            await self._shown.announce_change()

    async def _sample_if_shared(
        self, asked: RequestOrigin, params: types.CreateMessageRequestParams
    ) -> Sampled:
        if self.settings.environment.invoke_llm:
            return await self.models.sample(asked, params)
        words = "the client cannot sample, and `environment.invoke_llm` is off"
        return types.ErrorData(code=types.METHOD_NOT_FOUND, message=words)


def with_server(loaded: Loaded, shown: Callable[[], env_hub_server.EnvHubServer]) -> Loaded:
    """The configuration with the environment as one more server, if it has anything to show.

    A configured server of that name takes precedence.
    """
    if not shows_something(loaded):
        return loaded
    if (taken := loaded.merged.servers.get(SERVER)) is not None:
        problem = Problem(
            Severity.WARNING,
            "the environment is hidden, because this server has its name",
            taken.merge_entries().node.key_place,
            server=SERVER,
            hint="give the server another name",
        )
        return replace(loaded, problems=(*loaded.problems, problem))
    settings = loaded.settings
    protocol = tuple(
        env_hub_server.own_name(tool, settings.naming) for tool in env_tools.ENV_TOOLS.values()
    )
    server = LocalServer(
        server=shown().server,
        # its tools may call other servers' tools, which have their own time limits
        timeout=TIMEOUT,
        enabled=settings.enabled,
        on_request=() if shows_protocol_to_all(settings) else protocol,
    )
    servers = {**settings.servers, SERVER: server}
    return replace(loaded, settings=settings.with_servers(servers))


def shows_something(loaded: Loaded) -> bool:
    """Whether clients see anything of the environment: its tools, its prompts or its skills."""
    settings = loaded.settings
    if shows_protocol(settings) or settings.prompts:
        return True
    return bool(find_skills(loaded, loaded.scope))
