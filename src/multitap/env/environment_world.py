"""Answers the ten requests of the Env protocol for an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import escape
from typing import TYPE_CHECKING, Any, TypeVar

from multitap.agent import prompts
from multitap.catalog.catalog import allowed
from multitap.config import Profile, ToolFilter
from multitap.config.problems import did_you_mean
from multitap.env.visibility import is_of
from multitap.errors import MultitapError, UnknownName
from multitap.later import Later
from multitap.tools import ToolContext, ToolRegistry
from multitap.tools.tool import names_of

if TYPE_CHECKING:
    from multitap.env import env_conversion, env_protocol
    from multitap.env.environment_hooks import EnvironmentHooks
else:
    env_conversion = Later("multitap.env.env_conversion")
    env_protocol = Later("multitap.env.env_protocol")


class EnvironmentWorld:
    """The agents, profiles, prompts, tools and logs of an environment; a `EnvService`.

    Args:
        environment: The environment. Its hooks can replace agents and profiles.
    """

    def __init__(self, environment: EnvironmentHooks) -> None:
        self._environment = environment
        self._servers = environment.servers

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        """The tools of an agent, of a profile, or of both; the registry stays up to date.

        Raises:
            UnknownName: There is no such agent or profile.
        """
        chosen = self._environment.registry
        if agent is not None:
            chosen = chosen.narrowed(self._filter_of(agent))
        if profile is not None:
            said = self._profile(profile)
            chosen = chosen.narrowed(
                lambda tool: (
                    is_of(tool, said.servers)
                    and allowed(names_of(tool), said, servers=said.servers)
                )
            )
        return chosen

    def system_prompt(self, agent: str | None = None, *, profile: str | None = None) -> str:
        """The system prompt: the prompts of profile and agent, and the briefing.

        Raises:
            UnknownName: There is no such agent, profile or prompt.
            ConfigError: A prompt's file cannot be read.
            BadArguments: A prompt wants arguments.
        """
        settings = self._servers.settings
        users = [settings.profiles.get(profile or ""), settings.agents.get(agent or "")]
        named = [user.prompt for user in users if user and user.prompt]
        texts = [*(self._prompt_text(name, {}) for name in named), self._environment.briefing()]
        return "\n\n".join(text for text in texts if text)

    def agents(self) -> Sequence[env_protocol.EnvAgent]:
        """The agents that the settings name."""
        settings = self._servers.settings
        return [
            env_conversion.agent(
                name,
                said,
                instructions=self._instructions(name),
                model=said.model or settings.model,
                tools=self.tools_for(name).list(),
            )
            for name, said in settings.agents.items()
        ]

    def profiles(self) -> Sequence[env_protocol.EnvProfile]:
        """The profiles that the settings name; one for everything if they name none."""
        said = self._servers.settings.profiles or {
            "default": Profile(display_name=self._environment.get_env_display_name())
        }
        agents = [agent.id for agent in self._environment.get_agents()]
        return [env_conversion.profile(name, one, agents) for name, one in said.items()]

    async def describe(self) -> env_protocol.EnvDescription:
        environment, settings = self._environment, self._servers.settings
        return env_protocol.EnvDescription(
            id=environment.get_env_id(),
            display_name=environment.get_env_display_name(),
            version=settings.environment.version,
            description=settings.environment.description or "",
            capabilities=env_protocol.EnvCapabilities(
                prompts=bool(settings.prompts or self._servers.hub.catalog.prompts),
                mcp_tools=bool(settings.servers),
                **environment.create_mcp_server_options(),
            ),
            profiles=tuple(environment.get_profiles()),
        )

    async def list_profiles(self) -> Sequence[env_protocol.EnvProfile]:
        return self._environment.get_profiles()

    async def get_profile(self, profile: str, /) -> env_protocol.EnvProfile:
        return _one(self._environment.get_profiles(), profile, "profile")

    async def list_agents(self) -> Sequence[env_protocol.EnvAgent]:
        return self._environment.get_agents()

    async def get_agent(self, agent: str, /) -> env_protocol.EnvAgent:
        return _one(self._environment.get_agents(), agent, "agent")

    async def query_logs(self, query: env_protocol.LogQuery, /) -> env_protocol.LogPage:
        """The log of calls and servers; it survives restarts."""
        return await query.ask(self._servers.hub.store)

    async def list_tools(self, agent: str | None = None) -> Sequence[env_protocol.ToolDescription]:
        return [env_conversion.tool(tool) for tool in self.tools_for(agent).list()]

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Any], agent: str | None = None
    ) -> env_protocol.ToolOutcome:
        """Use a tool, by the rules of an agent.

        Raises:
            UnknownName: There is no such tool for this agent.
        """
        tools = self.tools_for(agent)
        if name not in tools:
            raise UnknownName(f"no tool named {name!r}", hint=tools.advice(name))
        return env_protocol.ToolOutcome.of(
            await tools.execute(name, arguments, ToolContext(agent_id=agent))
        )

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> env_protocol.PromptText:
        """A prompt of the settings, otherwise of a server, by its catalog name.

        Raises:
            UnknownName: There is none.
            BadArguments: The arguments do not match.
        """
        if (prompt := self._servers.settings.prompts.get(name)) is None:
            answer = await self._servers.hub.prompt(name, arguments)
            return env_conversion.prompt(name, answer)
        message = env_protocol.PromptMessage(text=self._prompt_text(name, arguments))
        return env_protocol.PromptText(
            name=name, description=prompt.description or "", messages=(message,)
        )

    async def invoke_llm(self, request: env_protocol.LlmRequest, /) -> env_protocol.LlmReply:
        """See `EnvironmentModels.complete`."""
        return await self._environment.models.complete(request)

    def _filter_of(self, agent: str) -> ToolFilter:
        if (filter_ := self._servers.settings.agents.get(agent)) is not None:
            return filter_
        tools = _one(self._environment.get_agents(), agent, "agent").tools  # named by a hook
        # names, not globs: a tool called `a*` must not open every tool that begins with a
        return ToolFilter(allow=tuple(map(escape, tools)))

    def _profile(self, name: str) -> Profile:
        if (profile := self._servers.settings.profiles.get(name)) is not None:
            return profile
        _one(self._environment.get_profiles(), name, "profile")
        return Profile()  # named by a hook, and no hook says anything about its tools

    def _instructions(self, agent: str) -> str | None:
        try:
            return self.system_prompt(agent) or None
        except MultitapError:  # it is one of the `problems`; the agent can still be used
            return None

    def _prompt_text(self, name: str, arguments: Mapping[str, str]) -> str:
        known = self._servers.settings.prompts
        if (prompt := known.get(name)) is None:
            raise UnknownName(f"no prompt named {name!r}", hint=did_you_mean(name, known))
        text = prompts.text_of(prompt, self._servers.scope)
        return prompts.fill(text, prompt.arguments, arguments)


_Named = TypeVar("_Named", "env_protocol.EnvAgent", "env_protocol.EnvProfile")


def _one(things: Sequence[_Named], name: str, kind: str) -> _Named:
    found = {thing.id: thing for thing in things}
    if name not in found:
        raise UnknownName(f"no {kind} named {name!r}", hint=did_you_mean(name, found))
    return found[name]
