"""The answers of a running gateway, and its errors."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw

from multitap.errors import (
    BadArguments,
    CallTimeout,
    ConfigError,
    Denied,
    MultitapError,
    Overloaded,
    Unavailable,
    UnknownName,
    UpstreamError,
    counted,
    shorten_and_count,
)
from multitap.events import Snapshot
from multitap.hub.metrics import Stats

if TYPE_CHECKING:
    from pydantic import BaseModel

    from multitap.catalog.catalog import Prompt, Resource, Tool

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request, which may contain the arguments of a call."""


class ControlFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no answer, in a form that the other side can raise again."""

    error: str
    hint: str | None = None
    kind: Literal["unknown", "arguments", "configuration", "unavailable", "denied", "failed"] = (
        "failed"
    )
    server: str | None = None
    """The server that the error comes from."""

    @classmethod
    def of(cls, exc: MultitapError) -> "ControlFailure":
        server = exc.server if isinstance(exc, UpstreamError) else None
        match exc:
            case ConfigError():
                return cls(str(exc), exc.hint, "configuration", server)
            case UnknownName():
                return cls(str(exc), exc.hint, "unknown", server)
            case BadArguments():
                return cls(str(exc), exc.hint, "arguments", server)
            # those for which a command has the same exit code
            case Unavailable() | CallTimeout() | Overloaded():
                return cls(str(exc), exc.hint, "unavailable", server)
            case Denied():
                return cls(str(exc), exc.hint, "denied", server)
            case _:
                return cls(str(exc), exc.hint, "failed", server)

    def exception(self) -> MultitapError:
        """The exception that a gateway reports."""
        error, hint = self.error, self.hint
        match self.kind:
            case "unknown":
                return UnknownName(error, hint=hint)
            case "arguments":
                return BadArguments(error, path="", hint=hint)
            case "configuration":
                return ConfigError(error, hint=hint)
            case "denied":
                return Denied(error, hint=hint)
            case "unavailable" if self.server:
                # the exception puts the server's name in front again
                return Unavailable(self.server, error.removeprefix(f"{self.server}: "), hint=hint)
            case _:
                return MultitapError(error, hint=hint)


class ServerQuestion(msgspec.Struct, frozen=True):
    """A question that a server asks during an action."""

    server: str
    method: str
    params: Raw
    number: int = 0


class PersonReply(msgspec.Struct, frozen=True):
    """A person's answer to a question, or why there is none."""

    result: Raw = Raw(b"null")
    error: str | None = None


def cut_text(text: object) -> str:
    """A text of a server, so short that it does not scroll the question away."""
    return shorten_and_count(str(text), 4000)


def sampling_lines(params: Mapping[str, Any]) -> Iterator[str]:
    """What a model is asked, for a person who may answer in its place."""
    if system := params.get("systemPrompt"):
        yield f"system: {cut_text(system)}"
    for message in params.get("messages") or ():
        yield f"{message.get('role')}: {_content(message.get('content'))}"


def _content(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(map(_content, content))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(content, Mapping):
        return cut_text(content.get("text") or f"({content.get('type')})")  # pyright: ignore[reportUnknownArgumentType,reportUnknownMemberType]
    return cut_text(content)


def sampling_answer(text: str) -> dict[str, Any]:
    """The answer that a person gives in place of a model."""
    content = {"type": "text", "text": text}
    return {"role": "assistant", "content": content, "model": "human", "stopReason": "endTurn"}


class ProgressStep(msgspec.Struct, frozen=True):
    """How far an action has come."""

    done: float
    total: float | None = None
    message: str | None = None


class Delivery(msgspec.Struct, frozen=True):
    """The result of a call, a read or a prompt, as the server sent it."""

    result: Raw
    server: str = ""
    tool: str = ""
    """The server's own name for it."""
    cap: int = 0
    """Characters after which its text is cut."""

    @classmethod
    def of(cls, result: "BaseModel") -> "Delivery":
        return cls(Raw(result.model_dump_json(by_alias=True, exclude_none=True).encode()))


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task: a call that runs by itself, of a client or of a command."""

    id: str
    server: str
    name: str
    """The tool, by the name that its caller used."""
    status: str
    message: str | None
    created: float
    """Seconds since the epoch."""
    updated: float
    caller: str
    result: Raw = Raw(b"null")
    """The result, if it was asked for and there is one."""


class About(msgspec.Struct, frozen=True):
    """One gateway."""

    pid: int
    version: str
    started: float
    """Seconds since the epoch."""
    files: tuple[str, ...] | None
    """Its configuration files; None if it has none."""
    url: str | None = None
    """Its address for clients; None if it serves its own pipes."""
    folder: str | None = None
    """The folder that its clients work in."""
    is_background: bool = False
    """Whether it serves all clients of its user in the background."""


class GatewayState(msgspec.Struct, frozen=True):
    """The state of all servers at one moment."""

    snapshot: Snapshot
    asleep: tuple[str, ...] = ()
    """Servers that start with the first call."""
    degraded: tuple[str, ...] = ()
    """What is degraded."""


class ToolLine(msgspec.Struct, frozen=True, rename="camel"):
    """One tool."""

    name: str
    server: str
    tool: str
    """The server's own name for it."""
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]

    @classmethod
    def of(cls, tool: "Tool") -> "ToolLine":
        return cls(
            name=tool.name,
            server=tool.server,
            tool=tool.raw_name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.input_schema,
            output_schema=tool.output_schema,
            annotations=tool.annotations,
        )


class ResourceLine(msgspec.Struct, frozen=True):
    """One resource or template."""

    uri: str
    server: str
    definition: Mapping[str, Any]

    @classmethod
    def of(cls, resource: "Resource") -> "ResourceLine":
        key = "uri" if "uri" in resource.definition else "uriTemplate"
        definition = {**resource.definition, key: resource.address}
        return cls(resource.address, resource.server, definition)


class PromptLine(msgspec.Struct, frozen=True):
    """One prompt."""

    name: str
    server: str
    definition: Mapping[str, Any]

    @classmethod
    def of(cls, prompt: "Prompt") -> "PromptLine":
        return cls(prompt.name, prompt.server, prompt.definition)


class ShapedResults(msgspec.Struct, frozen=True):
    """Results that were shaped for models, in estimated tokens."""

    results: int = 0
    before: int = 0
    after: int = 0

    @property
    def words(self) -> str:
        """What was saved; empty if nothing was shaped."""
        if not self.results:
            return ""
        return f"results {self.before:,} tokens, shaped to {self.after:,} (estimated)"


class ServerFigures(msgspec.Struct, frozen=True):
    """One server's calls since the gateway started."""

    total: Stats
    tools: dict[str, Stats]
    shaped: ShapedResults = ShapedResults()


class ListCost(msgspec.Struct, frozen=True):
    """What the clients of one profile list, in estimated tokens."""

    profile: str
    """Empty for clients without a profile."""
    mode: str
    """`all`, `search` or `code`."""
    tools: int
    """Tools that they can use."""
    tokens: int
    all_tokens: int
    """What a list of all tools takes."""


class ClientFigures(msgspec.Struct, frozen=True):
    """One connected client; stateless clients, which connect for each call, are not listed."""

    name: str
    version: str
    protocol_version: str
    profile: str | None = None
    requests: int = 0
    """Requests in progress."""
    principal: str = ""
    """Who it is, as calls record it."""
    label: str = ""
    """The same for people: the name of its token."""
    capabilities: tuple[str, ...] = ()
    """The kinds of questions it can answer."""


class Figures(msgspec.Struct, frozen=True):
    """Calls and clients of a gateway since it started."""

    servers: dict[str, ServerFigures]
    clients: tuple[ClientFigures, ...]
    sessions: int
    waiting: int
    """Calls whose client is being asked something."""
    private_links: int
    """Sessions with servers that belong to one client."""
    missing_workers: int = 0
    """Workers that did not answer in time: what went through them is not counted here."""
    lists: tuple[ListCost, ...] = ()

    @property
    def gap(self) -> str:
        """What is not counted; empty if everything is."""
        if not self.missing_workers:
            return ""
        return (
            f"{counted(self.missing_workers, 'worker')} did not answer in time;"
            " calls, clients and sessions there are not counted"
        )


class ReloadReport(msgspec.Struct, frozen=True):
    """The outcome of a reload."""

    taken: bool
    """Whether the new files are in use; if not, nothing has changed."""
    plan: str = ""
    problems: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Servers that keep their old configuration, because the new one cannot be used."""
    missing_workers: int = 0
    """Workers that have not confirmed the reload."""

    @property
    def gap(self) -> str:
        """The unconfirmed workers; empty if all have confirmed it."""
        if not self.missing_workers:
            return ""
        return f"{counted(self.missing_workers, 'worker')} did not confirm the reload: reload again"
