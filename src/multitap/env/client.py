"""A typed client for another environment, over MCP."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from multitap.catalog.catalog import Tool
from multitap.config import ServerConfig, Settings
from multitap.env import protocol
from multitap.env.protocol import ENV_TOOLS, find_tool, to_json
from multitap.errors import BadAnswer, MultitapError, ToolFailed, Unavailable, UnknownName, quoted
from multitap.hub.hub import Hub, open_hub
from multitap.results import TextBlock, ToolResult

_Answer = TypeVar("_Answer", bound=protocol.EnvMessage)


class EnvClient:
    """A typed client for the ten tools of the Env protocol, on one server of a hub.

    Every method waits for a server that is still starting. It raises `Unavailable` while the
    server is down, `UnknownName` if it does not offer the tool, `ToolFailed` with its message
    if it cannot answer, and otherwise what `Hub.call` raises.

    Args:
        hub: The hub that is connected to it.
        server: The server's name in the hub.
    """

    def __init__(self, hub: Hub, server: str) -> None:
        self._hub = hub
        self._server = server

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, config: ServerConfig, *, state_dir: Path | None = None
    ) -> AsyncGenerator["EnvClient"]:
        """Connect to an environment without a hub of your own.

        Args:
            config: How to reach it.
            state_dir: Where to store what it offers; by default, the user's state directory.

        Raises:
            Unavailable: It cannot be reached.
        """
        settings = Settings(servers={"env": config}, state_dir=state_dir)
        async with open_hub(settings) as hub:
            client = cls(hub, "env")
            await client._find("get_description")
            yield client

    async def get_description(self) -> protocol.EnvDescription:
        """What the environment is, and what it can do."""
        return await self._ask("get_description", protocol.Nothing(), protocol.EnvDescription)

    async def list_profiles(self) -> tuple[protocol.EnvProfile, ...]:
        return (await self._ask("list_profiles", protocol.Nothing(), protocol.ProfileList)).profiles

    async def get_profile(self, profile: str) -> protocol.EnvProfile:
        return await self._ask(
            "get_profile", protocol.ProfileRequest(id=profile), protocol.EnvProfile
        )

    async def list_agents(self) -> tuple[protocol.EnvAgent, ...]:
        return (await self._ask("list_agents", protocol.Nothing(), protocol.AgentList)).agents

    async def get_agent(self, agent: str) -> protocol.EnvAgent:
        return await self._ask("get_agent", protocol.AgentRequest(id=agent), protocol.EnvAgent)

    async def query_logs(self, query: protocol.LogQuery = protocol.LogQuery()) -> protocol.LogPage:
        """Its log entries, newest first."""
        return await self._ask("query_logs", query, protocol.LogPage)

    async def list_tools(self, agent: str | None = None) -> tuple[protocol.ToolDescription, ...]:
        """Its tools, or those that one of its agents may use."""
        return (
            await self._ask("list_tools", protocol.ToolsRequest(agent=agent), protocol.ToolList)
        ).tools

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, agent: str | None = None
    ) -> protocol.ToolOutcome:
        """Run one of its tools; a failed tool is a normal outcome, not an error."""
        request = protocol.ToolRequest(name=name, arguments=arguments or {}, agent=agent)
        return await self._ask("execute_tool", request, protocol.ToolOutcome)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> protocol.PromptText:
        """One of its prompts, filled in."""
        request = protocol.PromptRequest(name=name, arguments=arguments or {})
        return await self._ask("get_prompt", request, protocol.PromptText)

    async def invoke_llm(self, request: protocol.LlmRequest) -> protocol.LlmReply:
        """Ask its model."""
        return await self._ask("invoke_llm", request, protocol.LlmReply)

    async def _ask(self, name: str, request: protocol.EnvRequest, answer: type[_Answer]) -> _Answer:
        tool = await self._find(name)
        result = await self._hub.call(tool.name, to_json(request))
        # With structured content, a failed tool is an outcome that the protocol describes, not a
        # failure of the environment.
        if result.is_error and result.structured is None:
            raise ToolFailed(self._server, result.text)
        try:
            return msgspec.convert(_data(result), answer)
        except msgspec.DecodeError as exc:
            raise BadAnswer(
                self._server,
                f"the answer of {quoted(tool.raw_name)} is not of the Env protocol: {exc}",
            ) from None

    async def _find(self, name: str) -> Tool:
        tool = self._look(name)
        if tool is None:
            # only now: names from the stored catalog need no waiting
            await self._hub.settled()
            tool = self._look(name)
        if tool is None:
            raise self._missing(name)
        return tool

    def _look(self, name: str) -> Tool | None:
        catalog = self._hub.catalog
        # also finds tools of a server that is down: calling one says why it is down
        for tools in (catalog.tools, catalog.absent):
            for tool in tools.values():
                # by what it is: environments spell the names in two ways
                if tool.server == self._server and find_tool(tool.raw_name) is ENV_TOOLS[name]:
                    return tool
        return None

    def _missing(self, name: str) -> MultitapError:
        link = self._hub.links.get(self._server)
        if link is None:
            return UnknownName(f"no server named {self._server!r}")
        if not link.live and (failure := link.failure) is not None:
            return Unavailable(self._server, failure.message, hint=failure.hint, failure=failure)
        return UnknownName(
            f"{self._server!r} does not offer {ENV_TOOLS[name].listed}",
            hint=f"its owner can set `{name} = true` under [environment]"
            if ENV_TOOLS[name].powerful
            else "it may not be an environment",
        )


def _data(result: ToolResult) -> Any:
    """The answer as data; for servers that send only text, the parsed text."""
    if result.structured is not None:
        return result.structured
    texts = (block.text for block in result.blocks if isinstance(block, TextBlock))
    return msgspec.json.decode("".join(texts))
