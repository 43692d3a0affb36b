"""The scripted model of the examples, and ways to ask it."""

import sys
from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from multitap.agent.models import open_model
from multitap.config import ModelConfig

_PATH = Path(__file__).parents[3] / "examples" / "scripted_model.py"
_SPEC = spec_from_file_location("scripted_model", _PATH)
_MODULE = sys.modules["scripted_model"] = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

Fail, Garbage, Pings, Say, Silence, Use = (
    getattr(_MODULE, name) for name in ("Fail", "Garbage", "Pings", "Say", "Silence", "Use")
)
Anthropic, ScriptedModel = _MODULE.Anthropic, _MODULE.ScriptedModel
scripted_model = _MODULE.scripted_model

PROVIDERS = ("openai", "anthropic")
KEY = "sk-hunter2"


def config(server, provider, **changes):
    url = getattr(server, f"{provider}_url")
    values = {"provider": provider, "name": "scripted", "base_url": url, "api_key": KEY}
    return ModelConfig(**values | changes)


@asynccontextmanager
async def opened(provider, *script, retries=0, **changes):
    """A scripted model and our way to ask it."""
    async with (
        scripted_model(script) as server,
        open_model(config(server, provider, **changes), retries=retries) as model,
    ):
        yield model, server


def texts(server, provider, at=-1):
    """What the model was told, a line for each message, in words that are the same for both."""
    lines = []
    for message in server.requests[at]["messages"]:
        content = message.get("content") or ""
        if message["role"] == "tool":
            lines.append(f"tool: {content.removeprefix('error: ')}")
        elif isinstance(content, str):
            lines.append(f"{message['role']}: {content}")
        else:
            lines += [_line(message["role"], block) for block in content]
        lines += [
            f"use: {call['function']['name']} {call['function']['arguments']}"
            for call in message.get("tool_calls", ())
        ]
    return [line for line in lines if line != "assistant: "]


def _line(role, block):
    match block["type"]:
        case "text":
            return f"{role}: {block['text']}"
        case "tool_use":
            arguments = str(block["input"]).replace("'", '"').replace(" ", "")
            return f"use: {block['name']} {arguments}"
        case "tool_result":
            content = block["content"]
            parts = content if isinstance(content, str) else content[0].get("text")
            return f"tool: {parts}"
        case kind:
            return f"{role}: <{kind}>"
