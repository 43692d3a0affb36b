"""Serves the ten tools of the Env protocol as MCP tools."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
import msgspec
from pydantic import BaseModel

from multitap.env.env_protocol import EnvDescription, EnvService, ToolOutcome
from multitap.env.env_tools import ENV_TOOLS, EnvTool, plain
from multitap.errors import MultitapError, NotAllowed

logger = logging.getLogger(__name__)

Powers = Mapping[str, bool]
"""Whether each tool that does more than read is turned on."""


class EnvDispatch:
    """Answers calls of the Env tools with a world.

    Args:
        world: The source of the answers.
        powers: Which of the powerful tools are on right now.
    """

    def __init__(self, world: EnvService, powers: Callable[[], Powers]) -> None:
        self._world = world
        self._powers = powers

    def tools(self) -> tuple[EnvTool, ...]:
        """The tools that may be used right now."""
        powers = self._powers()
        return tuple(tool for tool in ENV_TOOLS.values() if powers.get(tool.name, True))

    async def call(self, tool: EnvTool, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Answer a call; every failure becomes a result."""
        try:
            return _result(await self._answer(tool, arguments))
        except MultitapError as exc:
            return _failure(f"{exc}; {exc.hint}" if exc.hint else str(exc))
        except Exception as exc:  # boundary: a broken world must not stop the server
            logger.exception("%s could not be answered", tool.listed)
            # Only the type: the message of a foreign exception may contain something that the
            # client must not see.
            return _failure(f"the environment could not answer: {type(exc).__name__}")

    async def _answer(self, tool: EnvTool, arguments: Mapping[str, Any]) -> BaseModel:
        powers = self._powers()
        # Checked for each call as well: a client may know the name of a tool that is not, or no
        # longer, listed.
        if not powers.get(tool.name, True):
            raise NotAllowed(
                f"{tool.listed} is turned off in this environment",
                hint=f"its owner can set `{tool.name} = true` under [environment]",
            )
        answer = await tool.work(self._world, tool.read(arguments))
        if isinstance(answer, EnvDescription):
            can = answer.capabilities.model_copy(update=dict(powers))
            return answer.model_copy(update={"capabilities": can})
        return answer


def definition(tool: EnvTool, name: str | None = None) -> types.Tool:
    """A tool as MCP describes it, under its name on the wire or another one."""
    return types.Tool(
        name=name or tool.listed,
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


def _result(answer: BaseModel) -> types.CallToolResult:
    data = plain(answer)
    return types.CallToolResult(
        content=[types.TextContent(text=msgspec.json.encode(data).decode())],
        structured_content=data,
        is_error=isinstance(answer, ToolOutcome) and not answer.success,
    )


def _failure(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
