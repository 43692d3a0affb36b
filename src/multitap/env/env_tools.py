"""The ten tools of the Env protocol: names, parameters and results."""

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from multitap.catalog.schemas.json_values import is_object, pointer
from multitap.env.env_protocol import (
    AgentList,
    AgentRequest,
    EnvAgent,
    EnvDescription,
    EnvProfile,
    EnvService,
    LlmReply,
    LlmRequest,
    LogPage,
    LogQuery,
    Nothing,
    ProfileList,
    ProfileRequest,
    PromptRequest,
    PromptText,
    ToolList,
    ToolOutcome,
    ToolRequest,
    ToolsRequest,
)
from multitap.errors import BadArguments
from multitap.records import dataclass

PREFIXES = ("env_", "env/")
"""Prefixes of tool names: as listed, and the alternative spelling."""
_REPORTED = 3

Schema = dict[str, Any]


@dataclass(frozen=True)
class EnvTool:
    """One tool of the protocol."""

    name: str
    """Without its prefix."""
    description: str
    question: type[BaseModel]
    answer: type[BaseModel]
    work: Callable[[EnvService, Any], Awaitable[BaseModel]]
    """Calls the method of a world that answers."""
    powerful: bool = False
    """Whether it does more than read; such tools are off by default."""

    @property
    def listed(self) -> str:
        """Its name on the wire: MCP allows no `/`."""
        return PREFIXES[0] + self.name

    @cached_property
    def input_schema(self) -> Schema:
        return _tidy(self.question.model_json_schema())

    @cached_property
    def output_schema(self) -> Schema:
        return _tidy(self.answer.model_json_schema(mode="serialization"))

    def read(self, arguments: Mapping[str, Any]) -> BaseModel:
        """The request in `arguments`.

        Raises:
            BadArguments: They do not match; `path` says where.
        """
        try:
            return self.question.model_validate(dict(arguments))
        except ValidationError as exc:
            # without the values: they may be secret, and the error is logged
            errors = exc.errors(include_url=False, include_context=False, include_input=False)
            words = [f"{pointer(error['loc'])}: {error['msg']}" for error in errors[:_REPORTED]]
            if len(errors) > _REPORTED:
                words.append(f"and {len(errors) - _REPORTED} more")
            raise BadArguments("; ".join(words), path=pointer(errors[0]["loc"])) from None


def plain(model: BaseModel) -> dict[str, Any]:
    """A model as JSON on the wire, without missing values."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def find(name: str) -> EnvTool | None:
    """The tool with this name on the wire, in either spelling."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return ENV_TOOLS.get(name.removeprefix(prefix))
    return None


def _tidy(schema: Schema) -> Schema:
    """Without titles, which repeat the names, and without null, which is never sent."""
    members = {
        key: _tidy_member(key, member)
        for key, member in schema.items()
        if key != "title" and not (key == "default" and member is None)
    }
    # pydantic writes an optional value as a union with null; here it is absent instead
    choices: list[Schema] = members.pop("anyOf", [])
    kept = [choice for choice in choices if choice.get("type") != "null"]
    if len(kept) == 1:
        return {**kept[0], **members}
    return {**members, "anyOf": kept} if kept else members


def _tidy_member(key: str, member: Any) -> Any:
    match key:
        case "properties" | "$defs":
            return {name: _tidy(inner) for name, inner in member.items()}
        case "anyOf":
            return [_tidy(inner) for inner in member]
        case "items" | "additionalProperties" if is_object(member):
            return _tidy(member)
        case _:
            return member


async def _get_description(world: EnvService, _: Nothing) -> EnvDescription:
    return await world.describe()


async def _list_profiles(world: EnvService, _: Nothing) -> ProfileList:
    return ProfileList(profiles=tuple(await world.list_profiles()))


async def _get_profile(world: EnvService, asked: ProfileRequest) -> EnvProfile:
    return await world.get_profile(asked.id)


async def _list_agents(world: EnvService, _: Nothing) -> AgentList:
    return AgentList(agents=tuple(await world.list_agents()))


async def _get_agent(world: EnvService, asked: AgentRequest) -> EnvAgent:
    return await world.get_agent(asked.id)


async def _query_logs(world: EnvService, asked: LogQuery) -> LogPage:
    return await world.query_logs(asked)


async def _list_tools(world: EnvService, asked: ToolsRequest) -> ToolList:
    return ToolList(tools=tuple(await world.list_tools(asked.agent)))


async def _execute_tool(world: EnvService, asked: ToolRequest) -> ToolOutcome:
    return await world.execute_tool(asked.name, asked.arguments, asked.agent)


async def _get_prompt(world: EnvService, asked: PromptRequest) -> PromptText:
    return await world.get_prompt(asked.name, asked.arguments)


async def _invoke_llm(world: EnvService, asked: LlmRequest) -> LlmReply:
    return await world.invoke_llm(asked)


ENV_TOOLS: Mapping[str, EnvTool] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            EnvTool(
                "get_description",
                "Describes this environment, its capabilities and its profiles. Call it first.",
                Nothing,
                EnvDescription,
                _get_description,
            ),
            EnvTool(
                "list_profiles",
                "Lists the profiles: the roles this environment can be used in.",
                Nothing,
                ProfileList,
                _list_profiles,
            ),
            EnvTool(
                "get_profile",
                "Returns one profile by its id.",
                ProfileRequest,
                EnvProfile,
                _get_profile,
            ),
            EnvTool(
                "list_agents",
                "Lists the agents of this environment, each with the tools it may use.",
                Nothing,
                AgentList,
                _list_agents,
            ),
            EnvTool(
                "get_agent", "Returns one agent by its id.", AgentRequest, EnvAgent, _get_agent
            ),
            EnvTool(
                "query_logs",
                "Searches the log, newest first: calls and how they ended, messages of"
                " servers, servers that came and went. Survives restarts.",
                LogQuery,
                LogPage,
                _query_logs,
            ),
            EnvTool(
                "list_tools",
                "Lists every tool of this environment, or those that one agent may use,"
                " with the JSON Schema of its arguments.",
                ToolsRequest,
                ToolList,
                _list_tools,
            ),
            EnvTool(
                "execute_tool",
                "Runs one of the tools in list_tools, and returns its outcome.",
                ToolRequest,
                ToolOutcome,
                _execute_tool,
                powerful=True,
            ),
            EnvTool(
                "get_prompt",
                "Returns one prompt of this environment, with its arguments filled in.",
                PromptRequest,
                PromptText,
                _get_prompt,
            ),
            EnvTool(
                "invoke_llm",
                "Sends messages to this environment's language model, and returns its answer.",
                LlmRequest,
                LlmReply,
                _invoke_llm,
                powerful=True,
            ),
        )
    }
)
"""By name, in the order in which they are listed."""
