"""The part of an environment that a client's profile shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from multitap.catalog.audience import Audience, AudienceLimits
from multitap.env.environment_hooks import EnvironmentHooks
from multitap.env.environment_world import EnvironmentWorld
from multitap.env.visibility import SERVER
from multitap.errors import UnknownName
from multitap.tools import ToolInfo, ToolRegistry
from multitap.tools.tool import names_of, server_of

if TYPE_CHECKING:
    from multitap.env.env_protocol import EnvAgent, EnvProfile, LogPage, LogQuery, PromptText


class ProfileWorld(EnvironmentWorld):
    """A world that contains only what the client's audience may see.

    Args:
        environment: The environment.
        audience: The audience of the client whose request is being answered.
    """

    def __init__(self, environment: EnvironmentHooks, audience: Callable[[], Audience]) -> None:
        super().__init__(environment)
        self._audience = audience

    def profiles(self) -> Sequence[EnvProfile]:
        named = self._audience().profiles
        return [one for one in super().profiles() if not named or one.id in named]

    def agents(self) -> Sequence[EnvAgent]:
        limits = self._limits
        return [one for one in super().agents() if limits.has_agent(one.id)]

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        chosen, limits = super().tools_for(agent, profile=profile), self._limits
        if limits == AudienceLimits():
            return chosen
        # profiles name tools as the hub does, and a function is one of its tools as well
        named = {
            tool.raw_name: tool.names
            for tool in self._servers.hub.catalog.tools.values()
            if tool.server == SERVER
        }

        def belongs(tool: ToolInfo) -> bool:
            if server_of(tool) is not None:
                return limits.shows(names_of(tool))
            ours = named.get(tool.name)
            return ours is not None and limits.shows(ours)

        return chosen.narrowed(belongs)

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> PromptText:
        limits, theirs = self._limits, self._servers.hub.catalog.prompts.get(name)
        if theirs is not None and name not in self._servers.settings.prompts:
            shown = limits.has(theirs.server)
            # the same message as for a prompt that does not exist: hidden means not there
            if not shown or theirs.server == SERVER:
                raise UnknownName(f"no prompt named {name!r}")
        return await super().get_prompt(name, arguments)

    async def query_logs(self, query: LogQuery, /) -> LogPage:
        page, limits = await super().query_logs(query), self._limits
        if limits == AudienceLimits():
            return page
        # filtered after the query: a page may be short, but never shows what is hidden
        tools = {
            (tool.server, tool.raw_name)
            for tool in self._servers.hub.catalog.tools.values()
            if limits.shows(tool.names)
        }
        entries = tuple(
            entry
            for entry in page.entries
            if entry.server is not None
            and limits.has(entry.server)
            and (entry.tool is None or (entry.server, entry.tool) in tools)
        )
        return page.model_copy(update={"entries": entries})

    @property
    def _limits(self) -> AudienceLimits:
        """What the requesting client may see."""
        return self._audience().limits(self._servers.settings.profiles)
