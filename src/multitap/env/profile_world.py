"""What a client of the gateway learns of an environment: what its profile shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from multitap.catalog.catalog import allowed
from multitap.config import Profile
from multitap.env.environment_hooks import EnvironmentHooks
from multitap.env.environment_world import EnvironmentWorld
from multitap.env.visibility import SERVER, matches, server_of
from multitap.errors import UnknownName
from multitap.tools import ToolInfo, ToolRegistry

if TYPE_CHECKING:
    from multitap.env.env_protocol import EnvAgent, EnvProfile, LogPage, LogQuery, PromptText

_NOTHING = Profile(servers=(), agents=())
"""What is seen through a profile that no longer exists."""


class ProfileWorld(EnvironmentWorld):
    """A world in which nothing exists that the profile hides.

    Args:
        environment: The environment.
        profile: The name of the profile of the client whose request is being answered.
    """

    def __init__(self, environment: EnvironmentHooks, profile: Callable[[], str | None]) -> None:
        super().__init__(environment)
        self._profile_in_use = profile

    def profiles(self) -> Sequence[EnvProfile]:
        name = self._profile_in_use()
        return [one for one in super().profiles() if name in {None, one.id}]

    def agents(self) -> Sequence[EnvAgent]:
        limits = self._limits
        return [one for one in super().agents() if limits is None or matches(one.id, limits.agents)]

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        chosen, limits = super().tools_for(agent, profile=profile), self._limits
        if limits is None:
            return chosen
        named = {
            tool.raw_name: tool.name
            for tool in self._servers.hub.catalog.tools.values()
            if tool.server == SERVER
        }

        def belongs(tool: ToolInfo) -> bool:
            if (server := server_of(tool)) is not None:
                return _shows(limits, server, tool.name)
            return _shows(limits, SERVER, named.get(tool.name))

        return chosen.narrowed(belongs)

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> PromptText:
        limits, theirs = self._limits, self._servers.hub.catalog.prompts.get(name)
        if theirs is not None and name not in self._servers.settings.prompts:
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
            for tool in self._servers.hub.catalog.tools.values()
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
        """The profile of the client that asks; None: it sees everything."""
        name = self._profile_in_use()
        return None if name is None else self._servers.settings.profiles.get(name, _NOTHING)


def _shows(limits: Profile, server: str, name: str | None) -> bool:
    return name is not None and matches(server, limits.servers) and allowed(name, limits)
