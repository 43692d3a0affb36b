"""The world an agent lives in: its tools, the servers they come from, and how others see it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import cached_property
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, TypeVar

import anyio
from anyio.abc import TaskGroup

from multitap.agent import prompts
from multitap.agent.selection import of_servers, server_of
from multitap.agent.serving import Serving
from multitap.config import (
    Document,
    Layer,
    Loaded,
    ModelConfig,
    Problem,
    Profile,
    Scope,
    Search,
    Serve,
    ServerConfig,
    Settings,
    Source,
    ToolFilter,
    load,
    read_document,
)
from multitap.config.problems import did_you_mean
from multitap.errors import (
    ConfigError,
    HubClosed,
    MultitapError,
    Unavailable,
    UnknownName,
    ungrouped,
)
from multitap.events import LinkState
from multitap.hub import Hub
from multitap.later import Later
from multitap.records import dataclass
from multitap.reload import Reloader, open_configured
from multitap.tools import HubTools, ToolContext, ToolInfo, ToolRegistry
from multitap.upstream.handlers import Asked, Handlers
from multitap.upstream.link import Link

if TYPE_CHECKING:
    import mcp_types as types

    from multitap.agent import described, env_server, models, protocol, sampling
else:
    types = Later("mcp_types")
    described = Later("multitap.agent.described")
    env_server = Later("multitap.agent.env_server")
    models = Later("multitap.agent.models")
    protocol = Later("multitap.agent.protocol")
    sampling = Later("multitap.agent.sampling")

Sampled: TypeAlias = (
    "types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData"
)
ClientConfig = Mapping[str, Any] | ServerConfig
"""A server as agent-core writes it down (`{"type": "local", "command": [...]}`), or as we do."""


@dataclass(frozen=True, slots=True)
class McpClientLoadResult:
    """What came of loading many clients."""

    loaded: int
    failed: tuple[str, ...] = ()


class McpServerOptions(TypedDict):
    """What others may do through the environment's own server, besides looking."""

    execute_tool: bool
    invoke_llm: bool


@dataclass(frozen=True, slots=True)
class _Open:
    """What there is while the environment is open."""

    hub: Hub
    tasks: TaskGroup
    serving: Serving


class BaseEnvironment:
    """Tools of our own and of MCP servers, for our agents, and as an MCP server for others.

    A subclass says by hooks what is special about it: `mcp_client_config`, `mcpservers_directory`,
    `mcp_server_config`, `base_settings`. It is open inside its `async with` block, or from
    `initialize_mcp` to `shutdown_mcp`.
    """

    settle_timeout: float = 10.0
    """Seconds that opening waits for servers; the tools of slower ones come when they are up."""

    def __init__(self) -> None:
        self.registry = ToolRegistry()
        """Every tool, wherever it runs; one of ours wins over a server's of the same name."""
        self._open: _Open | None = None
        self._life: AbstractAsyncContextManager[None] | None = None
        self._owner = 0
        self._disconnected: frozenset[str] = frozenset()

    def base_settings(self) -> Settings:
        """By which rules: agents, profiles, prompts, a model, and servers too."""
        return Settings()

    def mcpservers_directory(self) -> Path | None:
        """A folder whose folders are servers."""
        return None

    def mcp_client_config(self) -> Mapping[str, ClientConfig]:
        """The servers to connect to, by name; says more than `mcpservers_directory` does."""
        return {}

    def mcp_server_config(self) -> Serve | None:
        """How the environment shows itself to MCP clients."""
        return self.settings.serve

    def is_mcp_server_enabled(self) -> bool:
        """Whether it does so as soon as it is open."""
        config = self.mcp_server_config()
        return config is not None and config.enabled

    def create_mcp_server_options(self) -> McpServerOptions:
        """What others may do through its server."""
        said = self.settings.environment
        return McpServerOptions(execute_tool=said.execute_tool, invoke_llm=said.invoke_llm)

    def handlers(self) -> Handlers:
        """Who answers when a server asks for something: the model, where others may ask it."""
        said = self.settings
        shared = said.environment.invoke_llm and said.model is not None
        return Handlers(sample=self._sample if shared else None, sample_tools=shared)

    def get_env_id(self) -> str:
        """What other programs call it."""
        said = self.settings.environment
        return said.id if "id" in said.model_fields_set else type(self).__name__

    def get_env_display_name(self) -> str:
        """What people call it."""
        return self.settings.environment.display_name or self.get_env_id()

    def get_profiles(self) -> Sequence[protocol.EnvProfile]:
        """In which ways it can be used; where nothing is said, in one."""
        profiles = self.settings.profiles or {
            "default": Profile(display_name=self.get_env_display_name())
        }
        agents = [agent.id for agent in self.get_agents()]
        return [described.profile(name, said, agents) for name, said in profiles.items()]

    def get_agents(self) -> Sequence[protocol.EnvAgent]:
        """Who lives in it."""
        return [
            described.agent(
                name,
                said,
                instructions=self._instructions(name),
                model=said.model or self.settings.model,
                tools=self.tools_for(name).list(),
            )
            for name, said in self.settings.agents.items()
        ]

    def briefing(self) -> str:
        """What every agent is told besides its own prompt."""
        return ""

    def load_configuration(self) -> Loaded:
        """All that the hooks say, read anew; called in a thread while it is open."""
        folder, clients = self.mcpservers_directory(), self.mcp_client_config()
        sources = (Source(folder, folder=True),) if folder else ()
        loaded = load(Search(sources), on_top=[_said_by_program(clients)])
        base = self.base_settings()
        servers = {**base.servers, **loaded.settings.servers, **_ready(clients)}
        return replace(loaded, settings=base.model_copy(update={"servers": servers}))

    async def __aenter__(self) -> Self:
        await self.initialize_mcp()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._end(kind, exc, trace)

    async def initialize_mcp(self) -> McpClientLoadResult:
        """Connect to the servers, and start the environment's own if that is enabled.

        Raises:
            MultitapError: It is open already, or its own server cannot start.
        """
        if self._life is not None:
            raise MultitapError(f"{type(self).__name__} is open already")
        self._owner = anyio.get_current_task().id
        life = self._life = self._living()
        try:
            await life.__aenter__()
        except BaseException:
            self._life = None
            raise
        return self._load_result()

    async def shutdown_mcp(self) -> None:
        """Stop all that `initialize_mcp` started; a closed environment is fine.

        Raises:
            MultitapError: Another task opened it, and has to close it.
        """
        if self._life is not None and self._owner != anyio.get_current_task().id:
            raise MultitapError(
                f"{type(self).__name__} was opened by another task",
                hint="close it there, best by an `async with` block",
            )
        await self._end(None, None, None)

    async def start_mcp_server(self, *, insecure: bool = False) -> env_server.Front:
        """Show the environment to MCP clients, as `mcp_server_config` says, until it is closed.

        Args:
            insecure: Allow an address that other machines can reach: anybody there may use the
                environment, without a password. `insecure` in the configuration does the same.

        Raises:
            ConfigError: Nobody can, or may, listen there.
        """
        config = self.mcp_server_config() or Serve()
        server = env_server.EnvMCPServer(
            self, **self.create_mcp_server_options(), name=self.get_env_id()
        )
        return await self._opened.serving.start(lambda: server.serve(config, insecure=insecure))

    async def stop_mcp_server(self) -> None:
        """No longer show it; one that is not shown is fine."""
        if self._open is not None:
            await self._open.serving.stop()

    async def load_mcp_clients(self) -> McpClientLoadResult:
        """Read the configuration anew, and wait until every server has answered or failed."""
        hub = self.hub
        await self.files.reload(hub)
        await hub.settled()
        return self._load_result()

    async def disconnect_mcp_client(self, name: str) -> None:
        """Stop a server and lose its tools until it is reconnected; none of that name is fine."""
        hub = self.hub
        self._disconnected |= {name}
        hub.apply(self._without_disconnected(hub.settings))

    async def reconnect_mcp_client(self, name: str) -> None:
        """Start a server anew, and wait for it.

        Raises:
            UnknownName: None of that name is configured.
            Unavailable: It does not come up, or is disabled; says why.
        """
        hub = self.hub
        if name in self._disconnected:
            self._disconnected -= {name}
            known = self._said.settings.servers
            again = {name: known[name]} if name in known else {}
            hub.apply(_with_servers(hub.settings, {**hub.settings.servers, **again}))
        else:
            hub.restart(name)
        await _answered(hub, name)

    def register_tool(self, tool: ToolInfo | Callable[..., Any]) -> None:
        """Have a tool, or a plain function as one.

        Raises:
            MultitapError: One of that name was registered before, or the name is taken.
        """
        self.registry.register(tool)

    def get_tools(self) -> Sequence[ToolInfo]:
        """Every tool there is right now."""
        return self.registry.list()

    def get_mcp_tools(self) -> Sequence[ToolInfo]:
        """Those that come from MCP servers."""
        return [tool for tool in self.registry.list() if server_of(tool) is not None]

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        """What an agent may use, and what belongs to a profile, as it is whenever one looks.

        Raises:
            UnknownName: There is no such agent or profile.
        """
        chosen = self.registry
        if agent is not None:
            chosen = chosen.narrowed(self._filter_of(agent))
        if profile is not None:
            said = self._profile(profile)
            chosen = of_servers(chosen.narrowed(said), said.servers)
        return chosen

    def model_for(self, agent: str | None = None) -> ModelConfig:
        """The model an agent thinks with.

        Raises:
            ConfigError: None is configured.
        """
        said = self.settings.agents.get(agent) if agent else None
        model = (said.model if said else None) or self.settings.model
        if model is None:
            raise ConfigError("no model is configured", hint="say which one under `[model]`")
        return model

    def system_prompt(self, agent: str | None = None, *, profile: str | None = None) -> str:
        """What a model is told first: the prompts of profile and agent, and the briefing.

        Raises:
            UnknownName: There is no such agent, profile or prompt.
            ConfigError: A prompt's file can not be read.
            BadArguments: A prompt wants arguments.
        """
        settings = self.settings
        users = [settings.profiles.get(profile or ""), settings.agents.get(agent or "")]
        named = [user.prompt for user in users if user and user.prompt]
        texts = [*(self._prompt_text(name, {}) for name in named), self.briefing()]
        return "\n\n".join(text for text in texts if text)

    async def describe(self) -> protocol.EnvDescription:
        said, options = self.settings.environment, self.create_mcp_server_options()
        return protocol.EnvDescription(
            id=self.get_env_id(),
            display_name=self.get_env_display_name(),
            version=said.version,
            description=said.description or "",
            capabilities=protocol.EnvCapabilities(
                prompts=bool(self.settings.prompts or self.hub.catalog.prompts),
                mcp_tools=bool(self.settings.servers),
                **options,
            ),
            profiles=tuple(self.get_profiles()),
        )

    async def list_profiles(self) -> Sequence[protocol.EnvProfile]:
        return self.get_profiles()

    async def get_profile(self, profile: str, /) -> protocol.EnvProfile:
        return _one(self.get_profiles(), profile, "profile")

    async def list_agents(self) -> Sequence[protocol.EnvAgent]:
        return self.get_agents()

    async def get_agent(self, agent: str, /) -> protocol.EnvAgent:
        return _one(self.get_agents(), agent, "agent")

    async def query_logs(self, query: protocol.LogQuery, /) -> protocol.LogPage:
        """What happened, calls and servers alike; it is still there after a restart."""
        return await query.ask(self.hub.store)

    async def list_tools(self, agent: str | None = None) -> Sequence[protocol.ToolDescription]:
        return [described.tool(tool) for tool in self.tools_for(agent).list()]

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Any], agent: str | None = None
    ) -> protocol.ToolOutcome:
        """Use a tool, by the rules of an agent.

        Raises:
            UnknownName: There is no such tool for this agent.
        """
        tools = self.tools_for(agent)
        if name not in tools:
            near = did_you_mean(name, [tool.name for tool in tools])
            raise UnknownName(f"no tool named {name!r}", hint=near)
        return protocol.ToolOutcome.of(
            await tools.execute(name, arguments, ToolContext(agent_id=agent))
        )

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> protocol.PromptText:
        """One of our prompts, else one of a server's, by its catalog name.

        Raises:
            UnknownName: There is none.
            BadArguments: The arguments do not fit.
        """
        if (prompt := self.settings.prompts.get(name)) is None:
            return described.prompt(name, await self.hub.prompt(name, arguments))
        message = protocol.PromptMessage(text=self._prompt_text(name, arguments))
        return protocol.PromptText(
            name=name, description=prompt.description or "", messages=(message,)
        )

    async def invoke_llm(self, request: protocol.LlmRequest, /) -> protocol.LlmReply:
        """Ask the environment's model, or another one that is configured for an agent.

        Raises:
            ConfigError: There is none.
            UnknownName: None is called so.
            ModelError: It gave no answer; says why.
        """
        async with models.open_model(self._model_named(request.model), scope=self.scope) as model:
            return described.reply(await model.complete(described.request(request)))

    @property
    def hub(self) -> Hub:
        """The servers.

        Raises:
            HubClosed: The environment is not open.
        """
        return self._opened.hub

    @property
    def settings(self) -> Settings:
        """What is in force now."""
        return self._open.hub.settings if self._open else self.files.settings

    @property
    def loaded(self) -> Loaded:
        """What was last read and taken over."""
        return self.files.loaded

    @property
    def scope(self) -> Scope:
        """What variables in the configuration stand for."""
        return scope_of(self.loaded)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the configuration."""
        return self.files.problems

    @property
    def _opened(self) -> _Open:
        if self._open is None:
            hint = "use it inside its `async with` block"
            raise HubClosed(f"{type(self).__name__} is not open", hint=hint)
        return self._open

    @cached_property
    def files(self) -> Reloader:
        """What it is configured from."""
        return Reloader(self._load)

    def _load(self) -> Loaded:
        self._said = self.load_configuration()
        return replace(self._said, settings=self._without_disconnected(self._said.settings))

    def _without_disconnected(self, settings: Settings) -> Settings:
        off = {
            name: server.model_copy(update={"enabled": False})
            for name, server in settings.servers.items()
            if name in self._disconnected
        }
        return _with_servers(settings, {**settings.servers, **off})

    @asynccontextmanager
    async def _living(self) -> AsyncGenerator[None]:
        with ungrouped():
            async with (
                self._open_hub() as hub,
                anyio.create_task_group() as tasks,
            ):
                tools = self._tools_of(hub)
                self.registry.attach(tools)
                self._open = _Open(hub, tasks, Serving(tasks))
                try:
                    await self._started()
                    yield
                finally:
                    self._open = None
                    self.registry.detach(tools)
                    tasks.cancel_scope.cancel()

    def _open_hub(self) -> AbstractAsyncContextManager[Hub]:
        return open_configured(self.files, handlers=self.handlers())

    def _tools_of(self, hub: Hub) -> HubTools:
        return HubTools(hub)

    async def _started(self) -> None:
        with anyio.move_on_after(self.settle_timeout):
            await self.hub.settled()
        if self.is_mcp_server_enabled():
            await self.start_mcp_server()

    async def _end(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        life, self._life = self._life, None
        return await life.__aexit__(kind, exc, trace) if life else None

    def _load_result(self) -> McpClientLoadResult:
        hub = self.hub
        wanted = {name: link for name, link in hub.links.items() if link.config.enabled}
        loaded = [name for name, link in wanted.items() if _is_up(link)]
        failed = {*self.files.loaded.broken, *wanted} - {*loaded}
        return McpClientLoadResult(len(loaded), tuple(sorted(failed)))

    def _filter_of(self, agent: str) -> ToolFilter:
        if (filter_ := self.settings.agents.get(agent)) is not None:
            return filter_
        tools = _one(self.get_agents(), agent, "agent").tools  # a subclass says which
        return ToolFilter(allow=tuple(map(escape, tools)))

    def _profile(self, name: str) -> Profile:
        if (profile := self.settings.profiles.get(name)) is not None:
            return profile
        _one(self.get_profiles(), name, "profile")
        return Profile()  # a subclass has it, and says nothing about tools

    async def _sample(self, asked: Asked, params: types.CreateMessageRequestParams) -> Sampled:
        try:
            async with models.open_model(self.model_for(), scope=self.scope) as model:
                return await sampling.sampler(model)(asked, params)
        except MultitapError as exc:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=str(exc))

    def _instructions(self, agent: str) -> str | None:
        try:
            return self.system_prompt(agent) or None
        except MultitapError:  # `problems` tells of it; the agent can still be talked to
            return None

    def _prompt_text(self, name: str, arguments: Mapping[str, str]) -> str:
        prompt = self.settings.prompts.get(name)
        if prompt is None:
            hint = did_you_mean(name, self.settings.prompts)
            raise UnknownName(f"no prompt named {name!r}", hint=hint)
        return prompts.filled(prompts.text_of(prompt, self.scope), prompt.arguments, arguments)

    def _model_named(self, name: str | None) -> ModelConfig:
        if name is None:
            return self.model_for()
        agents = self.settings.agents.values()
        models = (self.settings.model, *(agent.model for agent in agents))
        known = {model.name: model for model in reversed(models) if model}
        if name not in known:
            raise UnknownName(
                f"no model named {name!r} is configured", hint=did_you_mean(name, known)
            )
        return known[name]


def scope_of(loaded: Loaded) -> Scope:
    """What variables in a configuration stand for."""
    return Scope(os.environ, loaded.search.folder, Path.home())


def _said_by_program(clients: Mapping[str, ClientConfig]) -> Layer:
    """What a program says in agent-core's words."""
    entries = {name: one for name, one in clients.items() if isinstance(one, Mapping)}
    document = Document(Path("(program)"), {"mcp": entries})
    return Layer(read_document(document, Path.cwd(), told="spec07"))


def _ready(clients: Mapping[str, ClientConfig]) -> dict[str, ServerConfig]:
    return {name: one for name, one in clients.items() if not isinstance(one, Mapping)}


def _with_servers(settings: Settings, servers: Mapping[str, ServerConfig]) -> Settings:
    return settings.model_copy(update={"servers": servers})


def _is_up(link: Link) -> bool:
    return link.state is LinkState.CONNECTED or link.asleep


async def _answered(hub: Hub, name: str) -> None:
    """Wait until a server is up.

    Raises:
        Unavailable: It is not, or is no longer wanted.
    """
    with hub.events.subscribe() as events:
        while (link := hub.links.get(name)) is not None and not link.settled:
            await anext(events)
    if link is None:
        raise UnknownName(f"no server named {name!r}")
    if not _is_up(link):
        failure = link.failure
        words = str(failure) if failure else f"it is {link.state}"
        hint = failure.hint if failure else None
        raise Unavailable(name, words, hint=hint, failure=failure)


_Named = TypeVar("_Named", "protocol.EnvAgent", "protocol.EnvProfile")


def _one(things: Sequence[_Named], name: str, kind: str) -> _Named:
    found = {thing.id: thing for thing in things}
    if name not in found:
        raise UnknownName(f"no {kind} named {name!r}", hint=did_you_mean(name, found))
    return found[name]
