"""Tools as the providers of language models take them."""

from typing import Literal

from multitap.tools.providers import anthropic, gemini, openai
from multitap.tools.providers.narrow import narrow
from multitap.tools.providers.offer import Change, Offer, Skipped, ToolCall
from multitap.tools.providers.offering import Conversions, Provider, offered

__all__ = [
    "ANTHROPIC",
    "Change",
    "Conversions",
    "Offer",
    "Provider",
    "Skipped",
    "ToolCall",
    "gemini_provider",
    "offered",
    "openai_provider",
]

ANTHROPIC = Provider(anthropic.NAME, anthropic.dialect, anthropic.Messages())


def openai_provider(*, strict: bool, api: Literal["chat", "responses"]) -> Provider:
    shape = openai.Chat() if api == "chat" else openai.Responses()
    return Provider(openai.NAME, openai.dialect, shape, openai.MOST_TOOLS, strict)


def gemini_provider(*, images: bool) -> Provider:
    return Provider(gemini.NAME, narrow, gemini.Contents(images=images), gemini.MOST_TOOLS)
