"""Answers the ten requests of the Env protocol for an environment, to everyone or to a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from glob import escape
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw

from multitap.agent.skills import fill_prompt, prompt_text
from multitap.catalog.audience import Audience, AudienceLimits
from multitap.catalog.catalog import allowed
from multitap.config import ModelConfig, Profile, ToolFilter
from multitap.config.problems import did_you_mean
from multitap.env import protocol
from multitap.env.environment import SERVER
from multitap.errors import MultitapError, UnknownName
from multitap.names import matches_any
from multitap.results.blocks import block
from multitap.tools import HubTool, ToolContext, ToolInfo, ToolRegistry
from multitap.tools.tool import names_of, server_of

if TYPE_CHECKING:
    import mcp_types as types

    from multitap.agent.models import ModelRequest, Reply
    from multitap.env.environment import BaseEnvironment


class EnvironmentWorld:
    """The agents, profiles, prompts, tools and logs of an environment; an `EnvService`.

    Hooks of the environment can replace agents and profiles.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self._environment = environment

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        """The tools of an agent, of a profile, or of both; the registry stays up to date.

        Raises:
            UnknownName: There is no such agent or profile.
        """
        tools = self._environment.registry
        if agent is not None:
            tools = tools.narrowed(self._filter_of(agent))
        if profile is not None:
            limits = self._profile(profile)
            tools = tools.narrowed(
                lambda tool: (
                    _is_of(tool, limits.servers)
                    and allowed(names_of(tool), limits, servers=limits.servers)
                )
            )
        return tools

    def system_prompt(self, agent: str | None = None, *, profile: str | None = None) -> str:
        """The system prompt: the prompts of profile and agent, and the briefing.

        Raises:
            UnknownName: There is no such agent, profile or prompt.
            ConfigError: A prompt's file cannot be read.
            BadArguments: A prompt wants arguments.
        """
        settings = self._environment.settings
        users = [settings.profiles.get(profile or ""), settings.agents.get(agent or "")]
        named = [user.prompt for user in users if user and user.prompt]
        texts = [*(self._prompt_text(name, {}) for name in named), self._environment.briefing()]
        return "\n\n".join(text for text in texts if text)

    def agents(self) -> Sequence[protocol.EnvAgent]:
        """The agents that the settings name."""
        settings = self._environment.settings
        return [
            protocol.EnvAgent(
                id=name,
                display_name=name,
                description=agent.description or "",
                instructions=self._instructions(name),
                model=model.name if (model := agent.model or settings.model) else None,
                tools=tuple(tool.name for tool in self.tools_for(name).list()),
                metadata={"maxSteps": agent.max_steps},
            )
            for name, agent in settings.agents.items()
        ]

    def profiles(self) -> Sequence[protocol.EnvProfile]:
        """The profiles that the settings name; one for everything if they name none."""
        profiles = self._environment.settings.profiles or {
            "default": Profile(display_name=self._environment.get_env_display_name())
        }
        agents = [agent.id for agent in self._environment.get_agents()]
        return [_profile(name, profile, agents) for name, profile in profiles.items()]

    async def describe(self) -> protocol.EnvDescription:
        environment, settings = self._environment, self._environment.settings
        return protocol.EnvDescription(
            id=environment.get_env_id(),
            display_name=environment.get_env_display_name(),
            version=settings.environment.version,
            description=settings.environment.description or "",
            capabilities=protocol.EnvCapabilities(
                prompts=bool(settings.prompts or environment.hub.catalog.prompts),
                mcp_tools=bool(settings.servers),
                **environment.create_mcp_server_options(),
            ),
            profiles=tuple(environment.get_profiles()),
        )

    async def list_profiles(self) -> Sequence[protocol.EnvProfile]:
        return self._environment.get_profiles()

    async def get_profile(self, profile: str, /) -> protocol.EnvProfile:
        return _by_id(self._environment.get_profiles(), profile, "profile")

    async def list_agents(self) -> Sequence[protocol.EnvAgent]:
        return self._environment.get_agents()

    async def get_agent(self, agent: str, /) -> protocol.EnvAgent:
        return _by_id(self._environment.get_agents(), agent, "agent")

    async def query_logs(self, query: protocol.LogQuery, /) -> protocol.LogPage:
        """The log of calls and servers; it survives restarts."""
        return await query.ask(self._environment.hub.store)

    async def list_tools(self, agent: str | None = None) -> Sequence[protocol.ToolDescription]:
        return [_tool(tool) for tool in self.tools_for(agent).list()]

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Any], agent: str | None = None
    ) -> protocol.ToolOutcome:
        """Use a tool, by the rules of an agent.

        Raises:
            UnknownName: There is no such tool for this agent.
        """
        tools = self.tools_for(agent)
        if name not in tools:
            raise UnknownName(f"no tool named {name!r}", hint=tools.advice(name))
        return protocol.ToolOutcome.of(
            await tools.execute(name, arguments, ToolContext(agent_id=agent))
        )

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> protocol.PromptText:
        """A prompt of the settings, otherwise of a server, by its catalog name.

        Raises:
            UnknownName: There is none.
            BadArguments: The arguments do not match.
        """
        if (prompt := self._environment.settings.prompts.get(name)) is None:
            return _prompt(name, await self._environment.hub.prompt(name, arguments))
        message = protocol.PromptMessage(text=self._prompt_text(name, arguments))
        return protocol.PromptText(
            name=name, description=prompt.description or "", messages=(message,)
        )

    async def invoke_llm(self, request: protocol.LlmRequest, /) -> protocol.LlmReply:
        """Ask a model: the environment's, or one that is configured for an agent.

        Raises:
            ConfigError: There is none.
            UnknownName: No configured model has the requested name.
            ModelError: It gave no answer; the message says why.
        """
        from multitap.agent.models import open_model  # noqa: PLC0415 - few environments have one

        environment = self._environment
        config = (
            environment.model_for() if request.model is None else self._find_model(request.model)
        )
        async with open_model(config, scope=environment.scope) as model:
            return _reply(await model.complete(_model_request(request)))

    def _filter_of(self, agent: str) -> ToolFilter:
        if (filter_ := self._environment.settings.agents.get(agent)) is not None:
            return filter_
        tools = _by_id(self._environment.get_agents(), agent, "agent").tools  # named by a hook
        # names, not globs: a tool called `a*` must not open every tool that begins with a
        return ToolFilter(allow=tuple(map(escape, tools)))

    def _profile(self, name: str) -> Profile:
        if (profile := self._environment.settings.profiles.get(name)) is not None:
            return profile
        _by_id(self._environment.get_profiles(), name, "profile")
        return Profile()  # named by a hook, and no hook says anything about its tools

    def _instructions(self, agent: str) -> str | None:
        try:
            return self.system_prompt(agent) or None
        except MultitapError:  # it is one of the `problems`; the agent can still be used
            return None

    def _prompt_text(self, name: str, arguments: Mapping[str, str]) -> str:
        prompts = self._environment.settings.prompts
        if (prompt := prompts.get(name)) is None:
            raise UnknownName(f"no prompt named {name!r}", hint=did_you_mean(name, prompts))
        text = prompt_text(prompt, self._environment.scope)
        return fill_prompt(text, prompt.arguments, arguments)

    def _find_model(self, name: str) -> ModelConfig:
        settings = self._environment.settings
        every = (settings.model, *(agent.model for agent in settings.agents.values()))
        # reversed, so that the environment's own model wins over an agent's of the same name
        models = {model.name: model for model in reversed(every) if model}
        if name not in models:
            raise UnknownName(
                f"no model named {name!r} is configured", hint=did_you_mean(name, models)
            )
        return models[name]


class ProfileWorld(EnvironmentWorld):
    """A world that contains only what the client's audience may see."""

    def __init__(self, environment: BaseEnvironment, audience: Callable[[], Audience]) -> None:
        super().__init__(environment)
        self._audience = audience

    def profiles(self) -> Sequence[protocol.EnvProfile]:
        visible = self._audience().profile_names
        return [profile for profile in super().profiles() if not visible or profile.id in visible]

    def agents(self) -> Sequence[protocol.EnvAgent]:
        limits = self._limits
        return [agent for agent in super().agents() if limits.has_agent(agent.id)]

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        tools, limits = super().tools_for(agent, profile=profile), self._limits
        if personal := self._personal_servers:
            # here they would be used with the gateway's own account, for every client
            tools = tools.narrowed(lambda tool: server_of(tool) not in personal)
        if limits == AudienceLimits():
            return tools
        # profiles name tools as the hub does, and a function is one of its tools as well
        functions = {
            tool.raw_name: tool.names
            for tool in self._environment.hub.catalog.tools.values()
            if tool.server == SERVER
        }

        def belongs(tool: ToolInfo) -> bool:
            if server_of(tool) is not None:
                return limits.may_call(names_of(tool))
            names = functions.get(tool.name)
            return names is not None and limits.may_call(names)

        return tools.narrowed(belongs)

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> protocol.PromptText:
        limits, prompt = self._limits, self._environment.hub.catalog.prompts.get(name)
        is_foreign = prompt is not None and name not in self._environment.settings.prompts
        # our own server repeats the prompts of the settings under other names
        hidden = {SERVER, *self._personal_servers}
        if prompt and is_foreign and (not limits.has(prompt.server) or prompt.server in hidden):
            # the same message as for a prompt that does not exist: hidden means not there
            raise UnknownName(f"no prompt named {name!r}")
        return await super().get_prompt(name, arguments)

    async def query_logs(self, query: protocol.LogQuery, /) -> protocol.LogPage:
        page, limits = await super().query_logs(query), self._limits
        personal = self._personal_servers
        if limits == AudienceLimits() and not personal:
            return page
        # filtered after the query: a page may be short, but never shows what is hidden
        tools = {
            (tool.server, tool.raw_name)
            for tool in self._environment.hub.catalog.tools.values()
            if limits.may_call(tool.names)
        }
        entries = tuple(
            entry
            for entry in page.entries
            # one without a server is about a reload, and names servers that may be hidden
            if entry.server is not None
            and entry.server not in personal
            and limits.has(entry.server)
            and (entry.tool is None or (entry.server, entry.tool) in tools)
        )
        return msgspec.structs.replace(page, entries=entries)

    @property
    def _personal_servers(self) -> frozenset[str]:
        """The servers at which people have accounts of their own."""
        servers = self._environment.settings.servers.items()
        return frozenset(name for name, server in servers if server.is_per_user)

    @property
    def _limits(self) -> AudienceLimits:
        """What the requesting client may see."""
        return self._audience().limits(self._environment.settings.profiles)


_Named = TypeVar("_Named", protocol.EnvAgent, protocol.EnvProfile)


def _by_id(things: Sequence[_Named], name: str, kind: str) -> _Named:
    by_id = {thing.id: thing for thing in things}
    if name not in by_id:
        raise UnknownName(f"no {kind} named {name!r}", hint=did_you_mean(name, by_id))
    return by_id[name]


def _is_of(tool: ToolInfo, servers: Sequence[str]) -> bool:
    """Whether a tool comes from one of these servers, or from none at all."""
    server = server_of(tool)
    return server is None or matches_any(server, servers)


def _profile(name: str, profile: Profile, agents: Iterable[str]) -> protocol.EnvProfile:
    return protocol.EnvProfile(
        id=name,
        display_name=profile.display_name or name,
        description=profile.description or "",
        agents=tuple(agent for agent in agents if matches_any(agent, profile.agents)),
        metadata={
            "servers": [*profile.servers],
            "allow": [*profile.allow],
            "deny": [*profile.deny],
            **({"prompt": profile.prompt} if profile.prompt else {}),
        },
    )


def _tool(tool: ToolInfo) -> protocol.ToolDescription:
    return protocol.ToolDescription(
        name=tool.name,
        description=tool.description,
        input_schema=tool.parameters,
        output_schema=tool.tool.output_schema if isinstance(tool, HubTool) else None,
        server=server_of(tool),
    )


def _prompt(name: str, result: types.GetPromptResult) -> protocol.PromptText:
    """A server's prompt; content other than text is described in words."""
    return protocol.PromptText(
        name=name,
        description=result.description or "",
        messages=tuple(
            protocol.PromptMessage(role=message.role, text=_text(message.content))
            for message in result.messages
        ),
    )


def _text(content: types.ContentBlock) -> str:
    return str(block(Raw(content.model_dump_json(by_alias=True, exclude_none=True))))


def _model_request(request: protocol.LlmRequest) -> ModelRequest:
    from multitap.agent.conversation import Assistant, user  # noqa: PLC0415 - as in `invoke_llm`
    from multitap.agent.models import ModelRequest  # noqa: PLC0415 - the same

    system = [message.content for message in request.messages if message.role == "system"]
    return ModelRequest(
        messages=[
            Assistant(message.content) if message.role == "assistant" else user(message.content)
            for message in request.messages
            if message.role != "system"
        ],
        system="\n\n".join(system) or None,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        stop=request.stop,
    )


def _reply(reply: Reply) -> protocol.LlmReply:
    return protocol.LlmReply(
        text=reply.text,
        model=reply.model,
        stop_reason=reply.stop,
        usage=protocol.LlmUsage(
            input_tokens=reply.usage.input_tokens, output_tokens=reply.usage.output_tokens
        ),
    )
