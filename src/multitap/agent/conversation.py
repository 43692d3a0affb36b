"""The messages between a person, a model of any vendor and its tools."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from multitap.errors import MultitapError
from multitap.results import ToolResult
from multitap.tools.providers import ToolCall
from multitap.tools.tool import text_result

if TYPE_CHECKING:
    import mcp_types as types

CANCELLED = text_result("cancelled before it was done", is_error=True)
_VERSION = 1


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Picture(msgspec.Struct, frozen=True, tag="image"):
    mime_type: str
    data: str
    """The bytes in base64."""


Part = Text | Picture


class Call(msgspec.Struct, frozen=True):
    """A tool the model wants to use."""

    id: str
    name: str
    """The tool's name in the registry."""
    arguments: Mapping[str, Any]
    sent: str
    """The tool's name as the model wrote it."""
    kept: Mapping[str, Any] = {}
    """Data that the provider requires back with the call."""

    @classmethod
    def of(cls, call: ToolCall, kept: Mapping[str, Any] | None = None) -> "Call":
        return cls(call.id, call.name, dict(call.arguments), call.sent, kept or {})


class ToolAnswer(msgspec.Struct, frozen=True):
    """The result of one call."""

    id: str
    """The call's."""
    result: Raw
    """The MCP result, its text cut to what the model may see."""

    @classmethod
    def of(cls, call_id: str, result: ToolResult) -> "ToolAnswer":
        return cls(call_id, _as_raw(result))


class User(msgspec.Struct, frozen=True, tag="user"):
    content: tuple[Part, ...]


class Assistant(msgspec.Struct, frozen=True, tag="assistant"):
    text: str = ""
    calls: tuple[Call, ...] = ()
    model: str = ""
    """The model that said it, as `provider/name`."""
    kept: Mapping[str, Any] = {}
    """Data that the provider requires back: thoughts, signatures."""


class ToolAnswers(msgspec.Struct, frozen=True, tag="tools"):
    """The answers to all calls of the message before."""

    answers: tuple[ToolAnswer, ...]


Message = User | Assistant | ToolAnswers


class _File(msgspec.Struct):
    version: int
    messages: tuple[Message, ...]


_parse = msgspec.json.Decoder(_File).decode


def user(*content: str | Part) -> User:
    """What a person says."""
    return User(tuple(Text(part) if isinstance(part, str) else part for part in content))


class Conversation(msgspec.Struct):
    """Messages in order; any model can continue from any state of it."""

    messages: Sequence[Message] = ()

    def __post_init__(self) -> None:
        self.messages = mend(self.messages)

    def add(self, *messages: Message) -> None:
        """Add messages, all or none; calls come together with their answers."""
        # replaced, not extended: a turn that is under way keeps the history it began with
        self.messages = mend((*self.messages, *messages))

    @property
    def awaits_answer(self) -> bool:
        """Whether it is the model's turn."""
        return bool(self.messages) and not isinstance(self.messages[-1], Assistant)

    def to_json(self) -> bytes:
        return msgspec.json.encode(_File(_VERSION, tuple(self.messages)))

    @classmethod
    def from_json(cls, text: bytes | str) -> "Conversation":
        """The conversation that `to_json` wrote.

        Raises:
            MultitapError: The text is not a stored conversation.
        """
        try:
            file = _parse(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise MultitapError(f"this is not a stored conversation: {exc}") from None
        if file.version != _VERSION:
            raise MultitapError(f"the conversation has version {file.version}, not {_VERSION}")
        return cls(file.messages)


def mend(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages with an answer to every call, and no answer without its call."""
    return tuple(_mend(tuple(messages)))


# Providers refuse a call without its answer and an answer without its call, and with it every later
# request: a broken history could never be continued.
def _mend(messages: tuple[Message, ...]) -> Iterator[Message]:
    for at, message in enumerate(messages):
        if isinstance(message, ToolAnswers):
            continue
        yield message
        if isinstance(message, Assistant) and message.calls:
            following = messages[at + 1] if at + 1 < len(messages) else None
            yield _complete(message.calls, following)


def _complete(calls: Iterable[Call], following: Message | None) -> ToolAnswers:
    present = following.answers if isinstance(following, ToolAnswers) else ()
    answers = {answer.id: answer for answer in present}
    return ToolAnswers(
        tuple(answers.get(call.id) or ToolAnswer.of(call.id, CANCELLED) for call in calls)
    )


def _as_raw(result: ToolResult) -> Raw:
    if not result.truncated:
        return Raw(bytes(result.raw))
    text = {"type": "text", "text": result.text}
    pictures = [
        {"type": "image", "mimeType": block.mime_type, "data": block.encoded}
        for block in result.images
    ]
    answer = {"content": [text, *pictures], "isError": result.is_error}
    return Raw(msgspec.json.encode(answer))


LONGEST = 200_000  # about 50,000 tokens: a log file must not fill the whole context
"""Characters of one resource that a model sees."""


def resource_message(name: str, read: "types.ReadResourceResult") -> User:
    """A message with the content of a resource."""
    return User(tuple(_part(name, content) for content in read.contents))


def prompt_messages(filled: "types.GetPromptResult") -> tuple[Message, ...]:
    """The messages of a filled-in prompt, with their roles."""
    return tuple(
        _message(message.role, _prompt_part(message.content)) for message in filled.messages
    )


def _part(name: str, content: "types.TextResourceContents | types.BlobResourceContents") -> Part:
    kind = content.mime_type or ""
    text: str | None = getattr(content, "text", None)
    if text is None:
        blob: str = getattr(content, "blob", "")
        if kind.startswith("image/"):
            return Picture(kind, blob)
        return Text(f"[{name}: {kind or 'binary data'}, {len(blob) * 3 // 4:,} bytes]")
    cut = f"{text[:LONGEST]}\n[cut]" if len(text) > LONGEST else text
    # marked: a resource may contain text that pretends to come from the user
    return Text(f'<resource uri="{content.uri}" from="{name}">\n{cut}\n</resource>')


def _prompt_part(content: object) -> Part:
    match getattr(content, "type", None):
        case "text":
            return Text(getattr(content, "text", ""))
        case "image":
            return Picture(getattr(content, "mime_type", ""), getattr(content, "data", ""))
        case "resource":
            return _part("prompt", getattr(content, "resource"))  # noqa: B009 - its type says so
        case kind:
            return Text(f"[{kind}]")


def _message(role: str, part: Part) -> Message:
    # providers accept pictures from the user only
    if role == "assistant" and isinstance(part, Text):
        return Assistant(part.text)
    return User((part,))
