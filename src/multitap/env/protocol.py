"""The Env protocol: its messages, and its ten tools."""

import ast
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from multitap.catalog import schemas
from multitap.catalog.schemas.schema import is_list, is_object
from multitap.config.models import LogLevel
from multitap.errors import BadArguments
from multitap.events import Outcome
from multitap.names import Naming
from multitap.results import ToolResult
from multitap.store import Activity, LogKind, Page, Store

MAX_LOGS = 1000  # the store's own limit for one page

# without a zone, it would be another moment on another machine
_Time = Annotated[datetime, Meta(tz=True)]


class EnvMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message of the protocol; unknown keys are ignored, because later versions may add some."""


class EnvRequest(EnvMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request; an unknown key in it is a mistake."""


class EnvCapabilities(EnvMessage, frozen=True, kw_only=True):
    """What an environment can do."""

    logs: bool = True
    """It has a log for `query_logs`."""
    events: bool = True
    """It publishes events, which `query_logs` finds later."""
    profiles: bool = True
    """It has profiles."""
    prompts: bool = False
    """It has prompts."""
    mcp_tools: bool = True
    """It uses tools of MCP servers."""
    mcp_server: bool = True
    """It is itself an MCP server."""
    execute_tool: bool = False
    """Others may use its tools."""
    invoke_llm: bool = False
    """Others may use its model."""


class EnvProfile(EnvMessage, frozen=True, kw_only=True):
    """A role an environment can be used in, and the agents that fill it."""

    id: str
    display_name: str
    description: str = ""
    agents: tuple[str, ...] = ()
    """The ids of its agents, the main one first."""
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class EnvDescription(EnvMessage, frozen=True, kw_only=True):
    """An environment's description of itself."""

    id: str
    display_name: str
    version: str
    description: str = ""
    capabilities: EnvCapabilities = EnvCapabilities()
    profiles: tuple[EnvProfile, ...] = ()


class EnvAgent(EnvMessage, frozen=True, kw_only=True):
    """One agent of an environment."""

    id: str
    display_name: str
    description: str = ""
    instructions: str | None = None
    """Its system prompt."""
    model: str | None = None
    """Its model."""
    tools: tuple[str, ...] = ()
    """The names of the tools it may use."""
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class ToolDescription(EnvMessage, frozen=True, kw_only=True):
    """One tool of an environment."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    """The JSON Schema of its arguments."""
    output_schema: Mapping[str, Any] | None = None
    """The JSON Schema of its structured content."""
    server: str | None = None
    """The MCP server it comes from; absent for the environment's own."""


class _Content(msgspec.Struct):
    content: Any = None  # foreign: `_media` checks each block


class ToolOutcome(EnvMessage, frozen=True, kw_only=True):
    """The outcome of a tool call."""

    success: bool
    output: str = ""
    """The answer as text."""
    error: str | None = None
    """Why it failed, in words."""
    content: tuple[Mapping[str, Any], ...] = ()
    """Everything but text: images, audio, resources, as MCP content blocks."""
    structured_content: Any = None
    """The structured content, if the tool returns any."""

    @classmethod
    def of(cls, result: ToolResult) -> "ToolOutcome":
        """The outcome that a tool's result describes.

        Raises:
            BadAnswer: It cannot be read.
        """
        return cls(
            success=result.success,
            output=result.text if result.success else "",
            error=result.error,
            content=_media(result),
            structured_content=result.structured,
        )


def _media(result: ToolResult) -> tuple[Mapping[str, Any], ...]:
    pieces = msgspec.json.decode(result.raw, type=_Content).content
    blocks = pieces if is_list(pieces) else ()
    return tuple(block for block in blocks if is_object(block) and block.get("type") != "text")


class PromptMessage(EnvMessage, frozen=True, kw_only=True):
    role: Literal["user", "assistant"] = "user"
    text: str


class PromptText(EnvMessage, frozen=True, kw_only=True):
    """A prompt with its arguments filled in."""

    name: str
    description: str = ""
    messages: tuple[PromptMessage, ...]

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "\n\n".join(message.text for message in self.messages)


class LogEntry(EnvMessage, frozen=True, kw_only=True):
    """One entry of the log."""

    at: _Time
    level: LogLevel
    kind: LogKind
    server: str | None = None
    """The MCP server it is about."""
    text: str
    tool: str | None = None
    """The tool that was called, by the server's own name."""
    agent: str | None = None
    """Who called it."""
    session: str | None = None
    """The caller's session."""
    seconds: float | None = None
    """How long the call took."""
    outcome: Outcome | None = None
    """How the call ended."""


class LogPage(EnvMessage, frozen=True, kw_only=True):
    """Some entries, newest first."""

    entries: tuple[LogEntry, ...]
    cursor: str | None = None
    """Where the next page begins; absent after the last."""

    @classmethod
    def of(cls, page: Page[Activity]) -> "LogPage":
        """The entries that a store found."""
        return cls(entries=tuple(map(_entry, page.records)), cursor=page.cursor)


def _entry(activity: Activity) -> LogEntry:
    return LogEntry(
        at=datetime.fromtimestamp(activity.at, UTC),
        level=activity.level,
        kind=activity.kind,
        server=activity.server,
        text=activity.text,
        tool=activity.tool,
        agent=activity.agent,
        session=activity.session,
        seconds=activity.seconds,
        outcome=activity.outcome,
    )


class LlmMessage(EnvMessage, frozen=True, kw_only=True):
    role: Literal["system", "user", "assistant"] = "user"
    content: str


class LlmUsage(EnvMessage, frozen=True, kw_only=True):
    input_tokens: int = 0
    output_tokens: int = 0


class LlmReply(EnvMessage, frozen=True, kw_only=True):
    """What the model said."""

    text: str
    model: str
    stop_reason: str | None = None
    """Why it stopped: `stop`, `length`, or the provider's own word."""
    usage: LlmUsage = LlmUsage()


class Nothing(EnvRequest, frozen=True, kw_only=True):
    """No arguments."""


class ProfileRequest(EnvRequest, frozen=True, kw_only=True):
    id: str
    """The id of a profile in `list_profiles`."""


class AgentRequest(EnvRequest, frozen=True, kw_only=True):
    id: str
    """The id of an agent in `list_agents`."""


class LogQuery(EnvRequest, frozen=True, kw_only=True):
    """A search in the log; every given condition must hold."""

    level: LogLevel = "debug"
    """Only entries of this level and worse."""
    since: _Time | None = None
    """Only entries from this time on."""
    until: _Time | None = None
    """Only entries before this time."""
    server: str | None = None
    """Only entries about this MCP server."""
    text: str | None = None
    """Only entries that contain this text, ignoring case."""
    limit: Annotated[int, Meta(ge=1, le=MAX_LOGS)] = 100
    """The maximum number of entries."""
    cursor: str | None = None
    """The cursor of the previous page."""

    async def ask(self, store: Store) -> LogPage:
        """The page that the store returns.

        Raises:
            BadArguments: The cursor is not one of the store's.
        """
        page = await store.logs(
            level=self.level,
            since=None if self.since is None else self.since.timestamp(),
            until=None if self.until is None else self.until.timestamp(),
            server=self.server,
            text=self.text,
            limit=self.limit,
            cursor=self.cursor,
        )
        return LogPage.of(page)


class ToolsRequest(EnvRequest, frozen=True, kw_only=True):
    agent: str | None = None
    """Only tools that this agent may use."""


class ToolRequest(EnvRequest, frozen=True, kw_only=True):
    name: str
    """The name of a tool in `list_tools`."""
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    agent: str | None = None
    """The agent whose rules apply."""


class PromptRequest(EnvRequest, frozen=True, kw_only=True):
    name: str
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class LlmRequest(EnvRequest, frozen=True, kw_only=True):
    """A request to the environment's model."""

    messages: Annotated[tuple[LlmMessage, ...], Meta(min_length=1)]
    model: str | None = None
    """A model other than the default, if the environment allows it."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    stop: tuple[str, ...] = ()
    """Stop sequences."""


class ProfileList(EnvMessage, frozen=True, kw_only=True):
    profiles: tuple[EnvProfile, ...]


class AgentList(EnvMessage, frozen=True, kw_only=True):
    agents: tuple[EnvAgent, ...]


class ToolList(EnvMessage, frozen=True, kw_only=True):
    tools: tuple[ToolDescription, ...]


class EnvService(Protocol):
    """An environment, as the Env protocol sees it.

    A request for something that does not exist raises `UnknownName`; clients get the message of
    every `MultitapError`.
    """

    async def describe(self) -> EnvDescription: ...
    async def list_profiles(self) -> Sequence[EnvProfile]: ...
    async def get_profile(self, profile: str, /) -> EnvProfile: ...
    async def list_agents(self) -> Sequence[EnvAgent]: ...
    async def get_agent(self, agent: str, /) -> EnvAgent: ...
    async def query_logs(self, query: LogQuery, /) -> LogPage: ...
    async def list_tools(self, agent: str | None = None) -> Sequence[ToolDescription]: ...
    async def execute_tool(
        self, name: str, arguments: Mapping[str, Any], agent: str | None = None
    ) -> ToolOutcome: ...
    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> PromptText: ...
    async def invoke_llm(self, request: LlmRequest, /) -> LlmReply: ...


@runtime_checkable
class HasWorld(Protocol):
    """An object with a world, such as an environment."""

    @property
    def world(self) -> EnvService: ...


PREFIXES = ("env_", "env/")
"""Prefixes of tool names: as listed, and the alternative spelling."""

Schema = dict[str, Any]


class EnvTool(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One tool of the protocol."""

    name: str
    """Without its prefix."""
    description: str
    question: type[EnvRequest]
    answer: type[EnvMessage]
    method: Callable[[EnvService, Any], Awaitable[EnvMessage | Sequence[EnvMessage]]]
    """Calls the method of a world that answers."""
    powerful: bool = False
    """Whether it does more than read; such tools are off by default."""

    @property
    def listed(self) -> str:
        """Its name on the wire: MCP allows no `/`."""
        return PREFIXES[0] + self.name

    @cached_property
    def input_schema(self) -> Schema:
        return _schema(self.question)

    @cached_property
    def output_schema(self) -> Schema:
        return _schema(self.answer)

    async def work(self, world: EnvService, question: EnvRequest) -> EnvMessage:
        """The answer of a world."""
        answer = await self.method(world, question)
        if isinstance(answer, EnvMessage):
            return answer
        # a tool answers with an object, so a list is its only member
        return self.answer(**{self.answer.__struct_fields__[0]: tuple(answer)})

    def read(self, arguments: Mapping[str, Any]) -> EnvRequest:
        """The request in `arguments`.

        Raises:
            BadArguments: They do not match; `path` says where.
        """
        self._checker.check(arguments)
        # clients send null for what they leave out, and the check lets that pass
        present = {name: value for name, value in arguments.items() if value is not None}
        try:
            return msgspec.convert(present, self.question)
        except msgspec.ValidationError as exc:  # a time without a zone, which schemas cannot forbid
            # msgspec says where only in its message
            text, _, place = str(exc).partition(" - at `$")
            path = "".join(f"/{part}" for part in _PATH_PART.findall(place))
            raise BadArguments(f"{path}: {text}", path=path) from None

    @cached_property
    def _checker(self) -> schemas.Checker | schemas.Unchecked:
        return schemas.compile_schema(self.input_schema)


_PATH_PART = re.compile(r"[^.`\[\]]+")


def to_json(message: EnvMessage) -> dict[str, Any]:
    """A message as JSON on the wire, without missing values."""
    names = zip(message.__struct_encode_fields__, message.__struct_fields__, strict=True)
    values = ((key, getattr(message, name)) for key, name in names)
    return {key: _to_json(value) for key, value in values if value is not None}


def _to_json(value: Any) -> Any:
    if isinstance(value, EnvMessage):
        return to_json(value)
    # only messages lose their nulls: one in a schema or a result has a meaning
    return (
        [*map(_to_json, value)]
        if is_list(value)
        else msgspec.to_builtins(value, enc_hook=_to_plain)
    )


def _to_plain(value: Any) -> object:
    """Other mappings and values that a program puts into `metadata`."""
    return {**value} if isinstance(value, Mapping) else str(value)  # pyright: ignore[reportUnknownVariableType]


def own_name(tool: EnvTool, naming: Naming) -> str:
    """A tool's name in a hub's own server, so that the hub's name for it has only one `env`."""
    return tool.listed if naming is Naming.BARE else tool.name


def find_tool(name: str) -> EnvTool | None:
    """The tool with this name on the wire, in either spelling."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return ENV_TOOLS.get(name.removeprefix(prefix))
    return None


def _schema(message: type[EnvMessage]) -> Schema:
    """The JSON Schema of a message, with the text below each field as its description."""
    (_,), definitions = msgspec.json.schema_components([message], ref_template="#/$defs/{name}")
    texts = _field_texts()
    for name, definition in definitions.items():
        for field, member in definition.get("properties", {}).items():
            if text := texts.get((name, field)):
                member["description"] = text
    definitions = {name: _tidy(definition) for name, definition in definitions.items()}
    whole = definitions.pop(message.__name__)
    return {**whole, "$defs": definitions} if definitions else whole


@cache
def _field_texts() -> Mapping[tuple[str, str], str]:
    """The text below each field of a message, by class and name on the wire."""
    texts: dict[tuple[str, str], str] = {}
    # from the source: one text for those who read the code and for models that read the schema
    for node in ast.parse(inspect.getsource(sys.modules[__name__])).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in pairwise(node.body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(description))),
                ):
                    texts[node.name, _camel(name)] = description
                case _:
                    continue
    return texts


def _camel(name: str) -> str:
    # as msgspec renames the fields for the wire
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _tidy(schema: Mapping[str, Any]) -> Schema:
    """Without titles, which repeat the names, and without null, which is never sent."""
    members = {
        key: _tidy_member(key, member)
        for key, member in schema.items()
        if key != "title"
        and not (key == "default" and member is None)
        and not (key == "required" and not member)
    }
    # an optional value is a union with null here, and absent on the wire
    choices: list[Schema] = members.pop("anyOf", [])
    values = [choice for choice in choices if choice.get("type") != "null"]
    if len(values) == 1:
        return {**values[0], **members}
    return {**members, "anyOf": values} if values else members


def _tidy_member(key: str, member: Any) -> Any:
    match key:
        case "properties":
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
                name="get_description",
                description="Describes this environment, its capabilities and its profiles."
                " Call it first.",
                question=Nothing,
                answer=EnvDescription,
                method=lambda world, _: world.describe(),
            ),
            EnvTool(
                name="list_profiles",
                description="Lists the profiles: the roles this environment can be used in.",
                question=Nothing,
                answer=ProfileList,
                method=lambda world, _: world.list_profiles(),
            ),
            EnvTool(
                name="get_profile",
                description="Returns one profile by its id.",
                question=ProfileRequest,
                answer=EnvProfile,
                method=lambda world, question: world.get_profile(question.id),
            ),
            EnvTool(
                name="list_agents",
                description="Lists the agents of this environment, each with the tools it may use.",
                question=Nothing,
                answer=AgentList,
                method=lambda world, _: world.list_agents(),
            ),
            EnvTool(
                name="get_agent",
                description="Returns one agent by its id.",
                question=AgentRequest,
                answer=EnvAgent,
                method=lambda world, question: world.get_agent(question.id),
            ),
            EnvTool(
                name="query_logs",
                description="Searches the log, newest first: calls and how they ended, messages of"
                " servers, servers that came and went. Survives restarts.",
                question=LogQuery,
                answer=LogPage,
                method=lambda world, question: world.query_logs(question),
            ),
            EnvTool(
                name="list_tools",
                description="Lists every tool of this environment, or those that one agent may use,"
                " with the JSON Schema of its arguments.",
                question=ToolsRequest,
                answer=ToolList,
                method=lambda world, question: world.list_tools(question.agent),
            ),
            EnvTool(
                name="execute_tool",
                description="Runs one of the tools in list_tools, and returns its outcome.",
                question=ToolRequest,
                answer=ToolOutcome,
                method=lambda world, question: world.execute_tool(
                    question.name, question.arguments, question.agent
                ),
                powerful=True,
            ),
            EnvTool(
                name="get_prompt",
                description="Returns one prompt of this environment, with its arguments filled in.",
                question=PromptRequest,
                answer=PromptText,
                method=lambda world, question: world.get_prompt(question.name, question.arguments),
            ),
            EnvTool(
                name="invoke_llm",
                description="Sends messages to this environment's language model, and returns"
                " its answer.",
                question=LlmRequest,
                answer=LlmReply,
                method=lambda world, question: world.invoke_llm(question),
                powerful=True,
            ),
        )
    }
)
"""By name, in the order in which they are listed."""
