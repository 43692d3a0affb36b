"""The Env protocol as an MCP server: in a hub, on stdio, over HTTP."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import anyio
import mcp_types as types
import msgspec
from anyio import to_thread
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ToolsListChanged,
)

from multitap.agent.skills import READ_SKILL, Skills, overview
from multitap.config import LocalServer, Serve, Settings
from multitap.config.projects import MANUAL
from multitap.env.configured import shows_protocol
from multitap.env.environment import SERVER, TIMEOUT
from multitap.env.protocol import (
    ENV_TOOLS,
    PREFIXES,
    EnvDescription,
    EnvMessage,
    EnvService,
    EnvTool,
    HasWorld,
    ToolOutcome,
    find_tool,
    own_name,
    to_json,
)
from multitap.errors import ConfigError, MultitapError, NotAllowed, quoted, ungrouped
from multitap.gateway.fronts import http, stdio
from multitap.gateway.fronts.access import AccessRules, open_access
from multitap.gateway.gateway import Gateway, open_gateway
from multitap.http.server.server import open_listener
from multitap.hub.hub import open_hub
from multitap.names import Naming
from multitap.tools import ToolDef
from multitap.version import VERSION

if TYPE_CHECKING:
    from multitap.env.configured import HostedEnvironment

logger = logging.getLogger(__name__)

SCHEME = "skill://"
_TEMPLATE = f"{SCHEME}{{name}}/{{+file}}"

Powers = Mapping[str, object]
"""Whether each tool that does more than read is turned on."""
_Context = ServerRequestContext[Any]
_Paged = types.PaginatedRequestParams | None


class Front(msgspec.Struct, frozen=True, eq=False):
    """The address of an environment while it is served."""

    url: str | None = None
    """None on standard input and output."""
    closed: anyio.Event = msgspec.field(default_factory=anyio.Event)
    """Set when serving has ended: the client closed its pipes, or the block was left."""


class EnvMCPServer:
    """The ten tools of the Env protocol, for clients of both protocol eras.

    Args:
        world: An environment, or any object with the methods of `EnvService`.
        execute_tool: Whether others may use the world's tools.
        invoke_llm: Whether others may use the world's model.
        name: The name that clients see.
        version: Its version; by default, ours.
    """

    def __init__(
        self,
        world: EnvService | HasWorld,
        *,
        execute_tool: bool = False,
        invoke_llm: bool = False,
        name: str = "multitap-env",
        version: str | None = None,
    ) -> None:
        if isinstance(world, Mapping):
            raise ConfigError(
                "callbacks are the methods of an object, not a dict",
                hint="name them as in `EnvService`, and pass `types.SimpleNamespace(**callbacks)`",
            )
        self._world = world.world if isinstance(world, HasWorld) else world
        # callers need not be type-checked; a class has no world, only its instances have
        if not callable(getattr(self._world, "describe", None)):
            raise ConfigError(
                f"expected an environment, not {quoted(repr(world))}",
                hint="any object with the methods of `EnvService` will do",
            )
        self._powers: Powers = {"execute_tool": execute_tool, "invoke_llm": invoke_llm}
        self._name = name
        self._version = version or VERSION
        self.server = self._make_server(
            {tool.listed: tool for tool in ENV_TOOLS.values() if _is_on(tool, self._powers)}
        )
        """An SDK server, for a `LocalServer` of a hub or for a transport of the SDK."""

    def serve(self, config: Serve, *, insecure: bool = False) -> AbstractAsyncContextManager[Front]:
        """Serve as configured; see `serve_stdio` and `serve_http`.

        Args:
            config: Transport and address.
            insecure: Allow an address that other machines can reach, regardless of the
                configuration.
        """
        if config.transport == "stdio":
            return self.serve_stdio()
        allowed = insecure or config.insecure
        return self.serve_http(
            host=config.host,
            port=config.port,
            insecure=allowed,
            require_token=config.require_token,
        )

    @asynccontextmanager
    async def serve_stdio(self) -> AsyncGenerator[Front]:
        """While entered, serve the program that started this process.

        Everything else that this process prints meanwhile goes to stderr.
        """
        front = Front()

        async def speak(gateway: Gateway) -> None:  # beside the block, until the client leaves
            try:
                with _standard_streams_restored():
                    await stdio.serve_stdio(gateway)
            finally:
                front.closed.set()

        with ungrouped():
            async with self._gateway() as gateway, anyio.create_task_group() as tasks:
                tasks.start_soon(speak, gateway)
                try:
                    yield front
                finally:
                    tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 3000,
        insecure: bool = False,
        require_token: bool = False,
        allowed_hosts: Sequence[str] = (),
    ) -> AsyncGenerator[Front]:
        """While entered, listen for Streamable HTTP.

        Clients of the same user on this machine need no token; others need one of the user's
        (`multitap token create`).

        Args:
            host: The address to listen on.
            port: 0 chooses a free one; the front's `url` says which.
            insecure: Accept every client that can reach the address, without a token.
            require_token: Whether clients of the same user need a token, too.
            allowed_hosts: Host names, besides `host`, that requests may have.

        Raises:
            ConfigError: The address cannot, or may not, be listened on.
        """
        rules = AccessRules(
            host=host, hosts=tuple(allowed_hosts), require_token=require_token, insecure=insecure
        )
        with open_access(rules) as allowed, open_listener(host, port) as listener:
            async with self._gateway() as gateway:
                app = http.HttpFront(gateway, allowed.access, sources=allowed.sources)
                async with http.serve_http(app, listener) as url:
                    front = Front(url)
                    try:
                        yield front
                    finally:
                        front.closed.set()

    @asynccontextmanager
    async def _gateway(self) -> AsyncGenerator[Gateway]:
        """A gateway to a hub with this as its only server.

        The hub calls the tools `env/x`, as the seed does; to clients they are `env_x`, and the
        gateway accepts either. Stored names would conflict if several environments shared a
        state directory, so this hub stores nothing.
        """
        off = [name for name, tool in ENV_TOOLS.items() if not _is_on(tool, self._powers)]
        server = LocalServer(
            server=self._make_server({_with_slash(name): tool for name, tool in ENV_TOOLS.items()}),
            timeout=TIMEOUT,
            on_request=tuple(map(_with_slash, off)),
        )
        with TemporaryDirectory(prefix="multitap-env-") as state:
            settings = Settings(servers={SERVER: server}, naming=Naming.BARE, state_dir=Path(state))
            async with open_gateway(
                lambda handlers: open_hub(settings, handlers=handlers),
                info={"name": self._name, "version": self._version},
            ) as gateway:
                await gateway.hub.settled()  # otherwise the first client would get no instructions
                yield gateway

    def _make_server(self, tools: Mapping[str, EnvTool]) -> Server[Any]:
        """An SDK server that lists tools by these names, and accepts calls by any of theirs."""
        protocol = ProtocolTools(self._world, lambda: self._powers, lambda: tools, find_tool)
        return Server(
            self._name,
            version=self._version,
            instructions="Start with env_get_description: it says what this environment can do.",
            get_tool_input_schema=_input_schema,
            on_list_tools=protocol.on_list,
            on_call_tool=protocol.on_call,
        )


class ProtocolTools:
    """The tools of the Env protocol, as an SDK server lists and calls them.

    Args:
        powers: Which of the powerful tools are on right now.
    """

    def __init__(
        self,
        world: EnvService,
        powers: Callable[[], Powers],
        listed: Callable[[], Mapping[str, EnvTool]],
        find: Callable[[str], EnvTool | None],
    ) -> None:
        self._world = world
        self._powers = powers
        self._listed = listed
        self._find = find

    async def on_list(self, _context: _Context, _params: _Paged) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[_definition(tool, name) for name, tool in self._listed().items()]
        )

    async def on_call(
        self, _context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Answer a call; every failure of the world becomes a result."""
        tool = self._find(params.name)
        if tool is None:
            raise _unknown(f"no tool named {params.name!r}")
        try:
            return _result(await self._answer(tool, params.arguments or {}))
        except MultitapError as exc:
            return _failure(f"{exc}; {exc.hint}" if exc.hint else str(exc))
        except Exception as exc:  # boundary: a broken world must not stop the server
            logger.exception("%s could not be answered", tool.listed)
            # Only the type: the message of a foreign exception may contain something that the
            # client must not see.
            return _failure(f"the environment could not answer: {type(exc).__name__}")

    async def _answer(self, tool: EnvTool, arguments: Mapping[str, Any]) -> EnvMessage:
        powers = self._powers()
        # Checked for each call as well: a client may know the name of a tool that is not, or no
        # longer, listed.
        if not _is_on(tool, powers):
            raise NotAllowed(
                f"{tool.listed} is turned off in this environment",
                hint=f"its owner can set `{tool.name} = true` under [environment]",
            )
        answer = await tool.work(self._world, tool.read(arguments))
        if isinstance(answer, EnvDescription):
            # what is on is decided here: a world of another program does not know it
            can = msgspec.structs.replace(answer.capabilities, **powers)
            return msgspec.structs.replace(answer, capabilities=can)
        return answer


class HostedServer:
    """An environment as one of the servers of its own hub.

    It has the tools of the Env protocol if they are shown, functions, prompts and skills.
    """

    def __init__(self, environment: HostedEnvironment) -> None:
        self._environment = environment
        self._protocol = ProtocolTools(
            environment.world,
            environment.create_mcp_server_options,
            self._listed,
            lambda name: self._listed().get(name),
        )
        self._changes = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            SERVER,
            version=VERSION,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=ListenHandler(self._changes),
        )
        """The SDK server, for a `LocalServer`."""

    async def announce_change(self) -> None:
        """Tell the hub to list everything again."""
        # all three: a changed file may affect any of them
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
            await self._changes.publish(event)

    def _listed(self) -> Mapping[str, EnvTool]:
        """The visible tools of the protocol, by their names here."""
        settings = self._environment.settings
        if not shows_protocol(settings):
            return {}
        powers = self._environment.create_mcp_server_options()
        return {
            own_name(tool, settings.naming): tool
            for tool in ENV_TOOLS.values()
            if _is_on(tool, powers)
        }

    async def _list_tools(self, context: _Context, params: _Paged) -> types.ListToolsResult:
        # Otherwise a list right after a reload would show the tools of the previous configuration.
        await self._environment.ready()
        result = await self._protocol.on_list(context, params)
        names = {tool.name for tool in result.tools}
        functions = self._environment.own_tools
        if (reading := functions.get(READ_SKILL)) is not None:
            # nothing else tells a client about skills
            about = f"{reading.description}\n\n{overview(await self._skills())}"
            functions = {
                **functions,
                READ_SKILL: msgspec.structs.replace(reading, description=about),
            }
        # the protocol wins: other environments rely on its names
        own = [_function(tool) for name, tool in functions.items() if name not in names]
        return types.ListToolsResult(tools=[*result.tools, *own])

    async def _call_tool(
        self, context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        # looked up for each call: a reload may have switched a tool off since it was listed
        function = self._environment.own_tools.get(params.name)
        if function is None or params.name in self._listed():
            return await self._protocol.on_call(context, params)
        result = await function.execute(params.arguments or {})
        return types.CallToolResult.model_validate_json(bytes(result.raw))

    async def _list_prompts(self, _context: _Context, _params: _Paged) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=name,
                    description=prompt.description,
                    arguments=[
                        types.PromptArgument(name=argument, description=about, required=True)
                        for argument, about in prompt.arguments.items()
                    ],
                )
                for name, prompt in self._environment.settings.prompts.items()
            ]
        )

    async def _get_prompt(
        self, _context: _Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        if params.name not in self._environment.settings.prompts:
            raise _unknown(f"no prompt named {params.name!r}")
        try:
            prompt = await self._environment.world.get_prompt(params.name, params.arguments or {})
        except MultitapError as exc:
            raise _unknown(str(exc)) from None
        return types.GetPromptResult(
            description=prompt.description or None,
            messages=[
                types.PromptMessage(role=message.role, content=types.TextContent(text=message.text))
                for message in prompt.messages
            ],
        )

    async def _list_resources(
        self, _context: _Context, _params: _Paged
    ) -> types.ListResourcesResult:
        skills = await self._skills()
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=address(skill.name),
                    name=skill.name,
                    description=skill.description,
                    mime_type="text/markdown",
                )
                for skill in skills.values()
            ]
        )

    async def _list_templates(
        self, _context: _Context, _params: _Paged
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=_TEMPLATE, name="skill", description="A file of a skill"
        )
        skills = await self._skills()
        return types.ListResourceTemplatesResult(resource_templates=[template] if skills else [])

    async def _read_resource(
        self, _context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        name, _, file = params.uri.removeprefix(SCHEME).partition("/")
        skill = (await self._skills()).get(unquote(name))
        if skill is None:
            raise _unknown(f"no resource {params.uri!r}")
        try:
            text = await to_thread.run_sync(skill.read, unquote(file))
        except MultitapError as exc:
            raise _unknown(str(exc)) from None
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, text=text)]
        )

    # Reads a folder each time, so not on the loop.
    async def _skills(self) -> Skills:
        return await to_thread.run_sync(lambda: self._environment.skills)


def address(skill: str, file: str = MANUAL) -> str:
    """The address of a skill's file as a resource."""
    return f"{SCHEME}{quote(skill)}/{quote(file)}"


def _function(tool: ToolDef) -> types.Tool:
    return types.Tool(
        name=tool.name, description=tool.description, input_schema=dict(tool.parameters)
    )


def _unknown(message: str) -> MCPError:
    return MCPError(types.INVALID_PARAMS, message)


def _is_on(tool: EnvTool, powers: Powers) -> bool:
    return bool(powers.get(tool.name, True))


def _definition(tool: EnvTool, name: str) -> types.Tool:
    """A tool as MCP describes it."""
    return types.Tool(
        name=name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            read_only_hint=not tool.powerful,
            destructive_hint=tool.name == "execute_tool",
            idempotent_hint=not tool.powerful,
            open_world_hint=tool.powerful,
        ),
    )


def _result(answer: EnvMessage) -> types.CallToolResult:
    data = to_json(answer)
    return types.CallToolResult(
        # MCP: the same as text, for clients that do not read structured content
        content=[types.TextContent(text=msgspec.json.encode(data).decode())],
        structured_content=data,
        is_error=isinstance(answer, ToolOutcome) and not answer.success,
    )


def _failure(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _with_slash(name: str) -> str:
    return PREFIXES[1] + name


def _input_schema(name: str) -> Mapping[str, Any] | None:
    tool = find_tool(name)
    return tool.input_schema if tool else None


@contextmanager
def _standard_streams_restored() -> Generator[None]:
    """Restores descriptors 0 and 1 afterwards, for a program that continues after serving."""
    copies = os.dup(0), os.dup(1)  # the front replaces them, and does not restore them
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        for public, private in enumerate(copies):
            os.dup2(private, public)
            os.close(private)
