"""An environment whose hub shows it, as one more server, to the clients of a gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from multitap.agent.configured import ConfiguredEnvironment, skill_folders
from multitap.agent.environment import Sampled, scope_of
from multitap.agent.selection import matches, selected, server_of
from multitap.agent.shown import SERVER, shows_protocol, shows_protocol_to_all
from multitap.agent.skills import scan
from multitap.catalog import allowed
from multitap.config import Loaded, LocalServer, Problem, Profile, Serve, Severity
from multitap.errors import UnknownName
from multitap.hub import Hub
from multitap.later import Later
from multitap.reload import Loader, open_configured
from multitap.tools import HubTools, ToolDef, ToolInfo, ToolRegistry
from multitap.upstream.handlers import Asked, Handlers
from multitap.upstream.signals import Bell

if TYPE_CHECKING:
    import mcp_types as types

    from multitap.agent import env_local, env_tools
    from multitap.agent.protocol import EnvAgent, EnvProfile, LogPage, LogQuery, PromptText
else:
    types = Later("mcp_types")
    env_local = Later("multitap.agent.env_local")
    env_tools = Later("multitap.agent.env_tools")

TIMEOUT = 600.0
"""Seconds for a call of it: what it calls in turn has limits of its own."""

_NOTHING = Profile(servers=(), agents=())
"""What is seen through a profile that is no more."""


class HostedEnvironment(ConfiguredEnvironment):
    """What files say, among the servers of its own hub if there is anything of it to show.

    Whoever asks sees through a profile, which hides what it hides from them elsewhere too.

    Args:
        loader: Reads the files.
        profile: The name of the profile that the request of this moment is made through.
    """

    def __init__(self, loader: Loader, *, profile: Callable[[], str | None]) -> None:
        super().__init__(loader)
        self._profile_in_use = profile
        self._handlers = Handlers()
        self._equipped = Bell()

    @cached_property
    def _shown(self) -> env_local.EnvLocalServer:
        """Made when there is something to show: most gateways have no environment."""
        return env_local.EnvLocalServer(self)

    @asynccontextmanager
    async def open(self, handlers: Handlers) -> AsyncGenerator[Hub]:
        """A running hub that has it; leaving the block closes both.

        Args:
            handlers: Who answers what servers ask of the host.
        """
        self._handlers = handlers
        async with self:
            yield self.hub

    @property
    def answers(self) -> Handlers:
        """For servers whose client can not sample: the model, where others may ask it."""
        return Handlers(sample=self._sample_if_shared, sample_tools=True)

    @property
    def own_tools(self) -> Mapping[str, ToolDef]:
        """Its functions that are loaded, by name."""
        return {tool.name: tool for tool in self._equipment.tools}

    async def ready(self) -> None:
        """Wait until the functions are those that the files name now."""
        while self._equipment.loaded is not self.loaded:
            await self._equipped.wait()

    def load_configuration(self) -> Loaded:
        return with_server(super().load_configuration(), lambda: self._shown)

    def handlers(self) -> Handlers:
        return self._handlers

    def mcp_server_config(self) -> Serve | None:
        return None  # whoever opens it shows it

    def get_env_id(self) -> str:
        return self.settings.environment.id

    def get_profiles(self) -> Sequence[EnvProfile]:
        name = self._profile_in_use()
        return [one for one in super().get_profiles() if name in {None, one.id}]

    def get_agents(self) -> Sequence[EnvAgent]:
        limits = self._limits
        agents = super().get_agents()
        return [one for one in agents if limits is None or matches(one.id, limits.agents)]

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        chosen, limits = super().tools_for(agent, profile=profile), self._limits
        if limits is None:
            return chosen
        named = {
            tool.raw_name: tool.name
            for tool in self.hub.catalog.tools.values()
            if tool.server == SERVER
        }

        def belongs(tool: ToolInfo) -> bool:
            if (server := server_of(tool)) is not None:
                return _shows(limits, server, tool.name)
            return _shows(limits, SERVER, named.get(tool.name))

        return selected(chosen, belongs)

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> PromptText:
        limits, theirs = self._limits, self.hub.catalog.prompts.get(name)
        if theirs is not None and name not in self.settings.prompts:
            shown = limits is None or matches(theirs.server, limits.servers)
            if not shown or theirs.server == SERVER:
                raise UnknownName(f"no prompt named {name!r}")
        return await super().get_prompt(name, arguments)

    async def query_logs(self, query: LogQuery, /) -> LogPage:
        page, limits = await super().query_logs(query), self._limits
        if limits is None:
            return page
        tools = {
            (tool.server, tool.raw_name)
            for tool in self.hub.catalog.tools.values()
            if _shows(limits, tool.server, tool.name)
        }
        entries = tuple(
            entry
            for entry in page.entries
            if entry.server is not None
            and matches(entry.server, limits.servers)
            and (entry.tool is None or (entry.server, entry.tool) in tools)
        )
        return page.model_copy(update={"entries": entries})

    @property
    def _limits(self) -> Profile | None:
        """The profile that whoever asks sees through; None: they see everything."""
        name = self._profile_in_use()
        return None if name is None else self.settings.profiles.get(name, _NOTHING)

    def _open_hub(self) -> AbstractAsyncContextManager[Hub]:
        return open_configured(self.files, handlers=self._handlers, recall=True)

    def _tools_of(self, hub: Hub) -> HubTools:
        return _OfOthers(hub)

    async def _started(self) -> None:
        self._opened.tasks.start_soon(self._follow, self.hub)  # nobody waits for slow functions

    async def _equip(self) -> None:
        await super()._equip()
        self._equipped.ring()
        if SERVER in self.settings.servers:
            await self._shown.changed()

    async def _sample_if_shared(
        self, asked: Asked, params: types.CreateMessageRequestParams
    ) -> Sampled:
        if self.settings.environment.invoke_llm:
            return await self._sample(asked, params)
        words = "the client can not sample, and `environment.invoke_llm` is off"
        return types.ErrorData(code=types.METHOD_NOT_FOUND, message=words)


class _OfOthers(HubTools):
    """The tools of all servers but the environment's own, which has them by other names."""

    def _shown(self, name: str) -> bool:
        catalog = self._hub.catalog
        tool = catalog.tools.get(name) or catalog.absent[name]
        return tool.server != SERVER


def with_server(loaded: Loaded, shown: Callable[[], env_local.EnvLocalServer]) -> Loaded:
    """The configuration with its environment as one more server, if that has anything to show.

    A server that is called so already stays what it is.
    """
    if not shows_something(loaded):
        return loaded
    if (taken := loaded.merged.servers.get(SERVER)) is not None:
        problem = Problem(
            Severity.WARNING,
            "the environment is not shown, because this server has its name",
            taken.merged().node.key_place,
            server=SERVER,
            hint="give the server another name",
        )
        return replace(loaded, problems=(*loaded.problems, problem))
    settings = loaded.settings
    protocol = tuple(
        env_local.own_name(tool, settings.naming) for tool in env_tools.ENV_TOOLS.values()
    )
    server = LocalServer(
        server=shown().server,
        timeout=TIMEOUT,
        enabled=settings.enabled,
        on_request=() if shows_protocol_to_all(settings) else protocol,
    )
    servers = {**settings.servers, SERVER: server}
    return replace(loaded, settings=settings.model_copy(update={"servers": servers}))


def shows_something(loaded: Loaded) -> bool:
    """Whether clients see anything of the environment: its tools, its prompts or its skills."""
    settings = loaded.settings
    if shows_protocol(settings) or settings.prompts:
        return True
    return bool(scan(skill_folders(loaded, scope_of(loaded))[0])[0])


def _shows(limits: Profile, server: str, name: str | None) -> bool:
    return name is not None and matches(server, limits.servers) and allowed(name, limits)
