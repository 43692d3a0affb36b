"""The base class of environments: tools, servers, and the view others get."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypedDict

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from msgspec.structs import replace

from multitap.config import (
    Document,
    Layer,
    Loaded,
    ModelConfig,
    Problem,
    Scope,
    Search,
    Serve,
    ServerConfig,
    Settings,
    Source,
    load,
    read_document,
)
from multitap.errors import (
    ConfigError,
    HubClosed,
    MultitapError,
    Unavailable,
    UnknownName,
    ungrouped,
)
from multitap.hub.hub import Hub, open_hub
from multitap.hub.reload import Reloader, warn_of_untrusted
from multitap.hub.supervisor import is_up
from multitap.tasks import InOwnTask
from multitap.tools import HubTools, ToolInfo, ToolRegistry
from multitap.tools.tool import server_of
from multitap.trust.vault import model_scope
from multitap.upstream.connect import Placements, local_placements
from multitap.upstream.questions import Handlers, RequestOrigin

if TYPE_CHECKING:
    import mcp_types as types

    from multitap.env.protocol import EnvAgent, EnvProfile
    from multitap.env.server import Front
    from multitap.env.world import EnvironmentWorld

logger = logging.getLogger(__name__)

SERVER = "env"
"""The environment's name in a hub; it gives the protocol's tools their usual names."""
TIMEOUT = 600.0
"""Seconds for a call; the tools that it calls have their own limits."""

ClientConfig = Mapping[str, Any] | ServerConfig
"""A server as agent-core writes it (`{"type": "local", "command": [...]}`), or as we do."""
Sampled: TypeAlias = (
    "types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData"
)

_RENAMED = {
    "get_mcp_client_config": "mcp_client_config",
    "get_mcpservers_directory": "mcpservers_directory",
    "get_mcp_server_config": "mcp_server_config",
}
"""Hooks that nobody calls under agent-core's names, in Python's spelling."""
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class McpClientLoadResult(msgspec.Struct, frozen=True):
    """How many servers are up, and which have failed."""

    loaded: int
    failed: tuple[str, ...] = ()


class McpServerOptions(TypedDict):
    """What others may do through the environment's own server, besides reading."""

    execute_tool: bool
    invoke_llm: bool


class BaseEnvironment:
    """Functions and MCP servers as one set of tools, for agents and, over MCP, for others.

    A subclass overrides hooks: `mcp_client_config`, `mcpservers_directory`, `mcp_server_config`,
    `base_settings`, and those below them. It is open inside its `async with` block, or from
    `initialize_mcp` to `shutdown_mcp`.
    """

    settle_timeout: float = 10.0
    """Seconds that opening waits for servers; tools of slower servers are added later."""

    _recall: ClassVar[bool] = False
    """Whether a server's tools from the last run are listed while it starts."""
    _place: Placements = local_placements
    """Where its servers run."""
    _warns: ClassVar[bool] = True
    """Whether opening warns of parts of a project that nobody has trusted."""
    _tools_of: ClassVar[type[HubTools]] = HubTools
    """Selects the tools of its servers."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # at once: a hook that is never called would only be missed much later
        for name in vars(cls):
            snake = _CAPITAL.sub("_", name).lower()
            hook = _RENAMED.get(snake, snake)
            if hook != name and hasattr(BaseEnvironment, hook):
                raise TypeError(f"{cls.__name__}.{name} is never called: name it `{hook}`")

    def __init__(self) -> None:
        self.registry = ToolRegistry()
        """All tools; the environment's own win over servers' tools of the same name."""
        self._hub: Hub | None = None
        """None while the environment is closed."""
        self._disconnected: frozenset[str] = frozenset()  # replaced: `_read` runs in a thread
        self._life: InOwnTask[None] | None = None
        self._front: FrontSwitch | None = None

    def base_settings(self) -> Settings:
        """Agents, profiles, prompts, a model, limits, and servers."""
        return Settings()

    def mcpservers_directory(self) -> Path | None:
        """A folder of servers: each folder in it is one."""
        return None

    def mcp_client_config(self) -> Mapping[str, ClientConfig]:
        """The servers to connect to, by name; amends what `mcpservers_directory` finds."""
        return {}

    def mcp_server_config(self) -> Serve | None:
        """How the environment is served to MCP clients."""
        return self.settings.serve

    def is_mcp_server_enabled(self) -> bool:
        """Whether it is served as soon as it is open."""
        config = self.mcp_server_config()
        return config is not None and config.enabled

    def create_mcp_server_options(self) -> McpServerOptions:
        """What others may do through its server."""
        rights = self.settings.environment
        return McpServerOptions(execute_tool=rights.execute_tool, invoke_llm=rights.invoke_llm)

    def handlers(self) -> Handlers:
        """Callbacks for requests of servers; by default, the model if `invoke_llm` is on."""
        settings = self.settings
        # the user pays for it, so servers get the model only if configured
        shared = settings.environment.invoke_llm and settings.model is not None
        return Handlers(sample=self._sample if shared else None, sample_tools=shared)

    def get_env_id(self) -> str:
        """Its id, for programs."""
        configured = self.settings.environment
        return configured.id if "id" in configured.given_fields else type(self).__name__

    def get_env_display_name(self) -> str:
        """Its name, for people."""
        return self.settings.environment.display_name or self.get_env_id()

    def get_profiles(self) -> Sequence[EnvProfile]:
        """Its profiles."""
        return self.world.profiles()

    def get_agents(self) -> Sequence[EnvAgent]:
        """Its agents."""
        return self.world.agents()

    def briefing(self) -> str:
        """Text that is added to every agent's system prompt."""
        return ""

    def load_configuration(self) -> Loaded:
        """Evaluate the other hooks again; called in a thread while the environment is open."""
        folder, clients = self.mcpservers_directory(), self.mcp_client_config()
        sources = (Source(path=folder, folder=True),) if folder else ()
        loaded = load(Search(sources), on_top=[_program_layer(clients)])
        base = self.base_settings()
        servers = {**base.servers, **loaded.settings.servers, **_ready(clients)}
        return replace(loaded, settings=base.with_servers(servers))

    async def __aenter__(self) -> Self:
        await self.initialize_mcp()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.__aexit__(kind, exc, trace)

    async def initialize_mcp(self) -> McpClientLoadResult:
        """Connect to the servers, and start the environment's own if that is enabled.

        Raises:
            MultitapError: It is open already, or its own server cannot start.
        """
        if self._life is not None:
            raise MultitapError(f"{type(self).__name__} is open already")
        # in its own task: another one may close it
        life = self._life = InOwnTask(self._living())
        try:
            await life.__aenter__()
        except BaseException:
            self._life = None
            raise
        try:
            if self._warns:
                # here, not in that task: this one has the line of the program that opens it
                warn_of_untrusted(self.hub.withheld)
        except BaseException:  # a program may turn warnings into errors
            await self.shutdown_mcp()
            raise
        return self._load_result()

    async def shutdown_mcp(self) -> None:
        """Stop everything that `initialize_mcp` started; does nothing if the environment is closed.

        Any task may do it.
        """
        await self.__aexit__(None, None, None)

    async def start_mcp_server(self, *, insecure: bool = False) -> Front:
        """Serve the environment to MCP clients, as `mcp_server_config` says, until it is closed.

        Args:
            insecure: Accept every client that can reach the address, without a token.
                `insecure` in the configuration does the same.

        Raises:
            ConfigError: The address cannot, or may not, be listened on.
            HubClosed: The environment is not open.
        """
        from multitap.env.server import EnvMCPServer  # noqa: PLC0415 - it needs the MCP SDK

        if self._front is None:
            raise self._not_open()
        config = self.mcp_server_config() or Serve()
        server = EnvMCPServer(
            self.world, **self.create_mcp_server_options(), name=self.get_env_id()
        )
        return await self._front.start(lambda: server.serve(config, insecure=insecure))

    async def stop_mcp_server(self) -> None:
        """Stop serving it; does nothing if it is not served."""
        if self._front is not None:
            await self._front.stop()

    async def load_mcp_clients(self) -> McpClientLoadResult:
        """Read the configuration again, and wait until every server has answered or failed."""
        hub = self.hub
        await self.files.reload(hub)
        await hub.settled()
        return self._load_result()

    async def disconnect_mcp_client(self, name: str) -> None:
        """Stop a server and remove its tools until it is reconnected; ignores unknown names."""
        hub = self.hub
        self._disconnected |= {name}
        hub.apply(self._without_disconnected(hub.settings))

    async def reconnect_mcp_client(self, name: str) -> None:
        """Start a server again, and wait for it.

        Raises:
            UnknownName: None of that name is configured.
            Unavailable: It does not come up, or is disabled.
        """
        hub = self.hub
        if name in self._disconnected:
            self._disconnected -= {name}
            configured = self._loaded.settings.servers
            again = {name: configured[name]} if name in configured else {}
            hub.apply(hub.settings.with_servers({**hub.settings.servers, **again}))
        else:
            hub.restart(name)
        await _wait_until_up(hub, name)

    def register_tool(self, tool: ToolInfo | Callable[..., Any]) -> None:
        """Add a tool, or a plain function as one.

        Raises:
            MultitapError: The name is taken.
        """
        self.registry.register(tool)

    def get_tools(self) -> Sequence[ToolInfo]:
        """All current tools."""
        return self.registry.list()

    def get_mcp_tools(self) -> Sequence[ToolInfo]:
        """The tools of MCP servers."""
        return [tool for tool in self.registry.list() if server_of(tool) is not None]

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        """The tools of an agent; see `EnvironmentWorld.tools_for`."""
        return self.world.tools_for(agent, profile=profile)

    def model_for(self, agent: str | None = None) -> ModelConfig:
        """The model of an agent, otherwise the environment's.

        Raises:
            ConfigError: None is configured.
        """
        settings = self.settings
        configured = settings.agents.get(agent) if agent else None
        model = (configured.model if configured else None) or settings.model
        if model is None:
            raise ConfigError("no model is configured", hint="name one under `[model]`")
        return model

    def system_prompt(self, agent: str | None = None, *, profile: str | None = None) -> str:
        """The system prompt of an agent; see `EnvironmentWorld.system_prompt`."""
        return self.world.system_prompt(agent, profile=profile)

    @cached_property
    def world(self) -> EnvironmentWorld:
        """The environment as the Env protocol sees it: its agents, tools, prompts and logs."""
        from multitap.env.world import EnvironmentWorld  # noqa: PLC0415 - many never need it

        return EnvironmentWorld(self)

    @cached_property
    def files(self) -> Reloader:
        """The configuration; first read on access, when a subclass is fully initialised."""
        return Reloader(self._read)

    @property
    def settings(self) -> Settings:
        """The settings in force now."""
        return self._hub.settings if self._hub else self.files.settings

    @property
    def scope(self) -> Scope:
        """Expands variables in the configuration."""
        search = self.files.loaded.search
        return model_scope(search.folder, search.env)

    @property
    def hub(self) -> Hub:
        """The servers.

        Raises:
            HubClosed: The environment is not open.
        """
        if self._hub is None:
            raise self._not_open()
        return self._hub

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the configuration."""
        return self.files.problems

    def _not_open(self) -> HubClosed:
        name = type(self).__name__
        return HubClosed(f"{name} is not open", hint="use it inside its `async with` block")

    @asynccontextmanager
    async def _living(self) -> AsyncGenerator[None]:
        opening = open_hub(
            self.files,
            handlers=self.handlers(),
            recall=self._recall,
            place=self._place,
            # `initialize_mcp` does, from the line that opens it
            warns=False,
        )
        with ungrouped():
            async with opening as hub, anyio.create_task_group() as tasks:
                tools = self._tools_of(hub)
                self.registry.attach(tools)
                self._hub, self._front = hub, FrontSwitch(tasks)
                try:
                    await self._on_open(tasks)
                    yield
                finally:
                    # callers first, which then get `HubClosed`, then the tasks that may call
                    self._hub = self._front = None
                    self.registry.detach(tools)
                    tasks.cancel_scope.cancel()

    async def _on_open(self, tasks: TaskGroup) -> None:  # noqa: ARG002 - for subclasses
        """Finish opening; subclasses may start `tasks` that run while it is open."""
        with anyio.move_on_after(self.settle_timeout):
            await self.hub.settled()
        if self.is_mcp_server_enabled():
            await self.start_mcp_server()

    def _load_result(self) -> McpClientLoadResult:
        """Which of the enabled servers are up now."""
        enabled = {name: link for name, link in self.hub.links.items() if link.config.enabled}
        up = [name for name, link in enabled.items() if is_up(link)]
        failed = {*self.files.loaded.broken, *enabled} - {*up}
        return McpClientLoadResult(len(up), tuple(sorted(failed)))

    def _read(self) -> Loaded:
        self._loaded = self.load_configuration()
        return replace(self._loaded, settings=self._without_disconnected(self._loaded.settings))

    def _without_disconnected(self, settings: Settings) -> Settings:
        off = {
            name: server.replace(enabled=False)
            for name, server in settings.servers.items()
            if name in self._disconnected
        }
        return settings.with_servers({**settings.servers, **off})

    async def _sample(
        self, origin: RequestOrigin, params: types.CreateMessageRequestParams
    ) -> Sampled:
        """A handler for `Handlers.sample` that lets servers use the environment's model."""
        import mcp_types as types  # noqa: PLC0415 - slow to import

        from multitap.agent.models import open_model  # noqa: PLC0415 - few environments have one
        from multitap.agent.sampling import sampler  # noqa: PLC0415 - the same

        try:
            async with open_model(self.model_for(), scope=self.scope) as model:
                return await sampler(model)(origin, params)
        except MultitapError as exc:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=str(exc))


OpenFront: TypeAlias = "Callable[[], AbstractAsyncContextManager[Front]]"


class FrontSwitch:
    """The environment's own server, started and stopped by any task, many times."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._turn = anyio.Lock()  # two tasks may start and stop it at the same time
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._front: Front | None = None

    async def start(self, open_front: OpenFront) -> Front:
        """Open it, and return once it can be reached; does nothing if it is open.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        async with self._turn:
            if self._front is not None:
                return self._front
            front: Front = await self._tasks.start(self._run, open_front)
            return front

    async def stop(self) -> None:
        """Close it, and return once it is closed; does nothing if it is closed."""
        async with self._turn:
            if self._front is not None:
                self._scope.cancel()
                # Until the port is free: a `start` that waits for its turn may want the same one.
                await self._ended.wait()

    async def _run(self, open_front: OpenFront, *, task_status: TaskStatus[Front]) -> None:
        self._ended = anyio.Event()
        try:
            with anyio.CancelScope() as self._scope:  # ends the front, not the environment
                async with open_front() as front:
                    self._front = front
                    task_status.started(front)
                    await front.closed.wait()
        except Exception as exc:
            if self._front is None:
                raise  # `start` passes it on
            logger.error("the environment's server failed: %s", exc)  # noqa: TRY400 - boundary: the environment goes on
        finally:
            self._front = None
            # After `_front` is cleared: a caller that waits in `stop` must not find it still open.
            self._ended.set()


def _program_layer(clients: Mapping[str, ClientConfig]) -> Layer:
    """Reads servers in agent-core's format."""
    # also what is neither: it has failed, and the others have not
    ready = _ready(clients)
    entries = {name: client for name, client in clients.items() if name not in ready}
    document = Document(path=Path("(program)"), data={"mcp": entries})
    return Layer(read_document(document, Path.cwd(), dialect_name="spec07"))


def _ready(clients: Mapping[str, ClientConfig]) -> dict[str, ServerConfig]:
    return {name: client for name, client in clients.items() if isinstance(client, ServerConfig)}


async def _wait_until_up(hub: Hub, name: str) -> None:
    """Wait until a server is up.

    Raises:
        Unavailable: It is not, or is no longer wanted.
    """
    # subscribed before the first check, otherwise a change could be missed
    with hub.events.subscribe() as events:
        while (link := hub.links.get(name)) is not None and not link.is_settled:
            await anext(events)
    if link is None:
        raise UnknownName(f"no server named {name!r}")
    if not is_up(link):
        raise Unavailable.because(name, link.failure, f"it is {link.state}")
