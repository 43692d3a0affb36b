"""Turns resources and prompts of MCP servers into messages for a model."""

from typing import TYPE_CHECKING

from multitap.agent.conversation import Assistant, Message, Part, Picture, Text, User

if TYPE_CHECKING:
    import mcp_types as types

LONGEST = 200_000  # about 50,000 tokens: a log file must not fill the whole context
"""Characters of one resource that a model sees."""


def resource_message(name: str, read: "types.ReadResourceResult") -> User:
    """A message with the content of a resource."""
    return User(tuple(_part(name, content) for content in read.contents))


def prompt_messages(filled: "types.GetPromptResult") -> tuple[Message, ...]:
    """The messages of a filled-in prompt, with their roles."""
    return tuple(_message(one.role, _prompt_part(one.content)) for one in filled.messages)


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
    if role == "assistant" and isinstance(part, Text):
        return Assistant(part.text)
    return User((part,))
