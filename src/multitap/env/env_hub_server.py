"""An environment as one of the servers of its own hub."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import quote, unquote

import mcp_types as types
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
from multitap.config import Settings
from multitap.config.trust_gate import MANUAL
from multitap.env.env_dispatch import EnvDispatch, definition
from multitap.env.env_protocol import HasWorld
from multitap.env.env_tools import EnvTool
from multitap.env.visibility import SERVER, shows_protocol
from multitap.errors import MultitapError
from multitap.names import Naming
from multitap.tools import ToolDef
from multitap.version import VERSION

SCHEME = "skill://"
_TEMPLATE = f"{SCHEME}{{name}}/{{+file}}"

_Context = ServerRequestContext[Any]
_Paged = types.PaginatedRequestParams | None


class HubMember(HasWorld, Protocol):
    """An environment with its own functions, prompts and skills."""

    @property
    def settings(self) -> Settings: ...
    @property
    def skills(self) -> Skills: ...
    @property
    def own_tools(self) -> Mapping[str, ToolDef]:
        """Its loaded functions, by name."""
        ...

    async def ready(self) -> None:
        """Wait until the functions match the settings."""
        ...


class EnvHubServer:
    """The tools of the Env protocol if they are shown, functions, prompts and skills."""

    def __init__(self, host: HubMember) -> None:
        self._host = host
        self._dispatch = EnvDispatch(host.world, self._powers)
        self._news = InMemorySubscriptionBus()
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
            on_subscriptions_listen=ListenHandler(self._news),
        )
        """The SDK server, for a `LocalServer`."""

    async def announce_change(self) -> None:
        """Tell the hub to list everything again."""
        # all three: a changed file may affect any of them
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
            await self._news.publish(event)

    def _powers(self) -> Mapping[str, bool]:
        said = self._host.settings.environment
        return {"execute_tool": said.execute_tool, "invoke_llm": said.invoke_llm}

    def _protocol(self) -> Mapping[str, EnvTool]:
        """The visible tools of the protocol, by their names here."""
        settings = self._host.settings
        if not shows_protocol(settings):
            return {}
        return {own_name(tool, settings.naming): tool for tool in self._dispatch.tools()}

    async def _list_tools(self, _context: _Context, _params: _Paged) -> types.ListToolsResult:
        # Otherwise a list right after a reload would show the tools of the previous configuration.
        await self._host.ready()
        own, protocol = self._host.own_tools, self._protocol()
        if (reading := own.get(READ_SKILL)) is not None:  # nothing else tells a client about skills
            told = f"{reading.description}\n\n{overview(await self._skills())}"
            own = {**own, READ_SKILL: replace(reading, description=told)}
        return types.ListToolsResult(
            tools=[
                *(definition(tool, name) for name, tool in protocol.items()),
                # the protocol wins: other environments rely on its names
                *(_function(tool) for name, tool in own.items() if name not in protocol),
            ]
        )

    async def _call_tool(
        self, _context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        arguments = params.arguments or {}
        # looked up for each call: a reload may have switched a tool off since it was listed
        if (tool := self._protocol().get(params.name)) is not None:
            return await self._dispatch.call(tool, arguments)
        function = self._host.own_tools.get(params.name)
        if function is None:
            raise _unknown(f"no tool named {params.name!r}")
        result = await function.execute(arguments)
        return types.CallToolResult.model_validate_json(bytes(result.raw))

    async def _list_prompts(self, _context: _Context, _params: _Paged) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=name,
                    description=prompt.description,
                    arguments=[
                        types.PromptArgument(name=argument, description=words, required=True)
                        for argument, words in prompt.arguments.items()
                    ],
                )
                for name, prompt in self._host.settings.prompts.items()
            ]
        )

    async def _get_prompt(
        self, _context: _Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        if params.name not in self._host.settings.prompts:
            raise _unknown(f"no prompt named {params.name!r}")
        try:
            prompt = await self._host.world.get_prompt(params.name, params.arguments or {})
        except MultitapError as exc:
            raise _unknown(str(exc)) from None
        return types.GetPromptResult(
            description=prompt.description or None,
            messages=[
                types.PromptMessage(role=one.role, content=types.TextContent(text=one.text))
                for one in prompt.messages
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
        about = types.ResourceTemplate(
            uri_template=_TEMPLATE, name="skill", description="A file of a skill"
        )
        found = await self._skills()
        return types.ListResourceTemplatesResult(resource_templates=[about] if found else [])

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
        return await to_thread.run_sync(lambda: self._host.skills)


def own_name(tool: EnvTool, naming: Naming) -> str:
    """A protocol tool's name here, chosen so that the hub's name for it has only one `env`."""
    return tool.listed if naming is Naming.BARE else tool.name


def address(skill: str, file: str = MANUAL) -> str:
    """The address of a skill's file as a resource."""
    return f"{SCHEME}{quote(skill)}/{quote(file)}"


def _function(tool: ToolDef) -> types.Tool:
    return types.Tool(
        name=tool.name, description=tool.description, input_schema=dict(tool.parameters)
    )


def _unknown(words: str) -> MCPError:
    return MCPError(types.INVALID_PARAMS, words)
