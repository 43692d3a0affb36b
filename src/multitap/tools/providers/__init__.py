"""Tools in the formats of language model providers.

In: tools with any JSON Schema, and a model's calls. Out: an `Offer`: definitions that the provider
accepts, what was changed or left out, and the way back from its calls to our arguments. Each
provider is one file; `schemas` and `dialects` rewrite schemas for them. It must not send anything:
`multitap.agent.models` does.
"""

from typing import Literal

from multitap.tools.providers import anthropic, gemini, openai
from multitap.tools.providers.offers import (
    Change,
    Conversions,
    Offer,
    Provider,
    Skipped,
    ToolCall,
    make_offer,
)

__all__ = [
    "ANTHROPIC",
    "Change",
    "Conversions",
    "Offer",
    "Provider",
    "Skipped",
    "ToolCall",
    "gemini_provider",
    "make_offer",
    "openai_provider",
]

ANTHROPIC = Provider(
    name=anthropic.NAME, dialect=anthropic.dialect, shape=anthropic.AnthropicMessages()
)


def openai_provider(*, strict: bool, api: Literal["chat", "responses"]) -> Provider:
    shape = openai.ChatCompletions() if api == "chat" else openai.Responses()
    return Provider(
        name=openai.NAME,
        dialect=openai.dialect,
        shape=shape,
        most_tools=openai.MOST_TOOLS,
        strict=strict,
    )


def gemini_provider(*, images: bool) -> Provider:
    return Provider(
        name=gemini.NAME,
        dialect=gemini.narrow,
        shape=gemini.GenerateContent(images=images),
        most_tools=gemini.MOST_TOOLS,
    )
