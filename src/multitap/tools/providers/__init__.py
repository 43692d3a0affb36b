"""Tools in the formats of language model providers.

In: tools with any JSON Schema, and a model's calls. Out: an `Offer`: definitions that the provider
accepts, what was changed or left out, and the way back from its calls to our arguments. Each
provider is one file, and so is each transformation of a schema. It must not send anything:
`multitap.agent.models` does.
"""

from typing import Literal

from multitap.tools.providers import anthropic, gemini, openai
from multitap.tools.providers.narrow import narrow
from multitap.tools.providers.offer import Change, Offer, Skipped, ToolCall
from multitap.tools.providers.offering import Conversions, Provider, make_offer

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

ANTHROPIC = Provider(anthropic.NAME, anthropic.dialect, anthropic.AnthropicMessages())


def openai_provider(*, strict: bool, api: Literal["chat", "responses"]) -> Provider:
    shape = openai.ChatCompletions() if api == "chat" else openai.Responses()
    return Provider(openai.NAME, openai.dialect, shape, openai.MOST_TOOLS, strict)


def gemini_provider(*, images: bool) -> Provider:
    return Provider(gemini.NAME, narrow, gemini.GenerateContent(images=images), gemini.MOST_TOOLS)
