"""The ten tools of the Env protocol: names, parameters and results."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from multitap.catalog.schemas.json_values import is_object, pointer
from multitap.env import env_protocol as protocol
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
    method: Callable[[protocol.EnvService, Any], Awaitable[BaseModel | Sequence[BaseModel]]]
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

    async def work(self, world: protocol.EnvService, asked: BaseModel) -> BaseModel:
        """The answer of a world."""
        answer = await self.method(world, asked)
        if isinstance(answer, BaseModel):
            return answer
        # a tool answers with an object, so a list is its only member
        (member,) = self.answer.model_fields
        return self.answer.model_validate({member: tuple(answer)})

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


ENV_TOOLS: Mapping[str, EnvTool] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            EnvTool(
                "get_description",
                "Describes this environment, its capabilities and its profiles. Call it first.",
                protocol.Nothing,
                protocol.EnvDescription,
                lambda world, _: world.describe(),
            ),
            EnvTool(
                "list_profiles",
                "Lists the profiles: the roles this environment can be used in.",
                protocol.Nothing,
                protocol.ProfileList,
                lambda world, _: world.list_profiles(),
            ),
            EnvTool(
                "get_profile",
                "Returns one profile by its id.",
                protocol.ProfileRequest,
                protocol.EnvProfile,
                lambda world, asked: world.get_profile(asked.id),
            ),
            EnvTool(
                "list_agents",
                "Lists the agents of this environment, each with the tools it may use.",
                protocol.Nothing,
                protocol.AgentList,
                lambda world, _: world.list_agents(),
            ),
            EnvTool(
                "get_agent",
                "Returns one agent by its id.",
                protocol.AgentRequest,
                protocol.EnvAgent,
                lambda world, asked: world.get_agent(asked.id),
            ),
            EnvTool(
                "query_logs",
                "Searches the log, newest first: calls and how they ended, messages of"
                " servers, servers that came and went. Survives restarts.",
                protocol.LogQuery,
                protocol.LogPage,
                lambda world, asked: world.query_logs(asked),
            ),
            EnvTool(
                "list_tools",
                "Lists every tool of this environment, or those that one agent may use,"
                " with the JSON Schema of its arguments.",
                protocol.ToolsRequest,
                protocol.ToolList,
                lambda world, asked: world.list_tools(asked.agent),
            ),
            EnvTool(
                "execute_tool",
                "Runs one of the tools in list_tools, and returns its outcome.",
                protocol.ToolRequest,
                protocol.ToolOutcome,
                lambda world, asked: world.execute_tool(asked.name, asked.arguments, asked.agent),
                powerful=True,
            ),
            EnvTool(
                "get_prompt",
                "Returns one prompt of this environment, with its arguments filled in.",
                protocol.PromptRequest,
                protocol.PromptText,
                lambda world, asked: world.get_prompt(asked.name, asked.arguments),
            ),
            EnvTool(
                "invoke_llm",
                "Sends messages to this environment's language model, and returns its answer.",
                protocol.LlmRequest,
                protocol.LlmReply,
                lambda world, asked: world.invoke_llm(asked),
                powerful=True,
            ),
        )
    }
)
"""By name, in the order in which they are listed."""
