"""The messages of the Env protocol, as data."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from multitap.config.documents import is_list, is_table
from multitap.config.models import LogLevel
from multitap.events import Outcome
from multitap.results import ToolResult
from multitap.store import Activity, LogKind, Page, Store

MAX_LOGS = 1000  # the store's own limit for one page


class _EnvModel(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # it may be a secret
    )


class _Question(_EnvModel):
    # later versions may add keys to answers; an unknown key in a request is a mistake
    model_config = ConfigDict(extra="forbid")


class EnvCapabilities(_EnvModel):
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


class EnvProfile(_EnvModel):
    """A role an environment can be used in, and the agents that fill it."""

    id: str
    display_name: str
    description: str = ""
    agents: tuple[str, ...] = ()
    """The ids of its agents, the main one first."""
    metadata: Mapping[str, Any] = Field(default_factory=dict[str, Any])


class EnvDescription(_EnvModel):
    """An environment's description of itself."""

    id: str
    display_name: str
    version: str
    description: str = ""
    capabilities: EnvCapabilities = EnvCapabilities()
    profiles: tuple[EnvProfile, ...] = ()


class EnvAgent(_EnvModel):
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
    metadata: Mapping[str, Any] = Field(default_factory=dict[str, Any])


class ToolDescription(_EnvModel):
    """One tool of an environment."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = Field(default_factory=lambda: {"type": "object"})
    """The JSON Schema of its arguments."""
    output_schema: Mapping[str, Any] | None = None
    """The JSON Schema of its structured content."""
    server: str | None = None
    """The MCP server it comes from; absent for the environment's own."""


class _Answer(msgspec.Struct):
    content: Any = None  # foreign: `_media` checks each block


class ToolOutcome(_EnvModel):
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
    pieces = msgspec.json.decode(result.raw, type=_Answer).content
    blocks = pieces if is_list(pieces) else ()
    return tuple(one for one in blocks if is_table(one) and one.get("type") != "text")


class PromptMessage(_EnvModel):
    role: Literal["user", "assistant"] = "user"
    text: str


class PromptText(_EnvModel):
    """A prompt with its arguments filled in."""

    name: str
    description: str = ""
    messages: tuple[PromptMessage, ...]

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "\n\n".join(message.text for message in self.messages)


class LogEntry(_EnvModel):
    """One entry of the log."""

    at: AwareDatetime
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


class LogPage(_EnvModel):
    """Some entries, newest first."""

    entries: tuple[LogEntry, ...]
    cursor: str | None = None
    """Where the next page begins; absent after the last."""

    @classmethod
    def of(cls, found: Page[Activity]) -> "LogPage":
        """The entries that a store found."""
        return cls(entries=tuple(map(_entry, found.records)), cursor=found.cursor)


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


class LlmMessage(_EnvModel):
    role: Literal["system", "user", "assistant"] = "user"
    content: str


class LlmUsage(_EnvModel):
    input_tokens: int = 0
    output_tokens: int = 0


class LlmReply(_EnvModel):
    """What the model said."""

    text: str
    model: str
    stop_reason: str | None = None
    """Why it stopped: `stop`, `length`, or the provider's own word."""
    usage: LlmUsage = LlmUsage()


class Nothing(_Question):
    """No arguments."""


class ProfileRequest(_Question):
    id: str
    """The id of a profile in `list_profiles`."""


class AgentRequest(_Question):
    id: str
    """The id of an agent in `list_agents`."""


class LogQuery(_Question):
    """A search in the log; every given condition must hold."""

    level: LogLevel = "debug"
    """Only entries of this level and worse."""
    since: AwareDatetime | None = None
    """Only entries from this time on."""
    until: AwareDatetime | None = None
    """Only entries before this time."""
    server: str | None = None
    """Only entries about this MCP server."""
    text: str | None = None
    """Only entries that contain this text, ignoring case."""
    limit: int = Field(default=100, ge=1, le=MAX_LOGS)
    """The maximum number of entries."""
    cursor: str | None = None
    """The cursor of the previous page."""

    async def ask(self, store: Store) -> LogPage:
        """The page that the store returns.

        Raises:
            BadArguments: The cursor is not one of the store's.
        """
        found = await store.logs(
            level=self.level,
            since=None if self.since is None else self.since.timestamp(),
            until=None if self.until is None else self.until.timestamp(),
            server=self.server,
            text=self.text,
            limit=self.limit,
            cursor=self.cursor,
        )
        return LogPage.of(found)


class ToolsRequest(_Question):
    agent: str | None = None
    """Only tools that this agent may use."""


class ToolRequest(_Question):
    name: str
    """The name of a tool in `list_tools`."""
    arguments: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    agent: str | None = None
    """The agent whose rules apply."""


class PromptRequest(_Question):
    name: str
    arguments: Mapping[str, str] = Field(default_factory=dict[str, str])


class LlmRequest(_Question):
    """A request to the environment's model."""

    messages: tuple[LlmMessage, ...] = Field(min_length=1)
    model: str | None = None
    """A model other than the default, if the environment allows it."""
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    stop: tuple[str, ...] = ()
    """Stop sequences."""


class ProfileList(_EnvModel):
    profiles: tuple[EnvProfile, ...]


class AgentList(_EnvModel):
    agents: tuple[EnvAgent, ...]


class ToolList(_EnvModel):
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
