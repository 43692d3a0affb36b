"""Converts an environment's objects to those of the Env protocol."""

from collections.abc import Iterable, Sequence

import mcp_types as types
from msgspec import Raw

from multitap.agent.conversation import Assistant, Message, user
from multitap.agent.models import ModelRequest, Reply
from multitap.config import Agent, ModelConfig, Profile
from multitap.env import env_protocol as protocol
from multitap.names import matches_any
from multitap.results.blocks import block
from multitap.tools import HubTool, ToolInfo
from multitap.tools.tool import server_of


def agent(
    name: str,
    said: Agent,
    *,
    instructions: str | None,
    model: ModelConfig | None,
    tools: Iterable[ToolInfo],
) -> protocol.EnvAgent:
    return protocol.EnvAgent(
        id=name,
        display_name=name,
        description=said.description or "",
        instructions=instructions,
        model=model.name if model else None,
        tools=tuple(tool.name for tool in tools),
        metadata={"maxSteps": said.max_steps},
    )


def profile(name: str, said: Profile, agents: Iterable[str]) -> protocol.EnvProfile:
    return protocol.EnvProfile(
        id=name,
        display_name=said.display_name or name,
        description=said.description or "",
        agents=tuple(one for one in agents if matches_any(one, said.agents)),
        metadata={
            "servers": [*said.servers],
            "allow": [*said.allow],
            "deny": [*said.deny],
            **({"prompt": said.prompt} if said.prompt else {}),
        },
    )


def tool(known: ToolInfo) -> protocol.ToolDescription:
    return protocol.ToolDescription(
        name=known.name,
        description=known.description,
        input_schema=known.parameters,
        output_schema=known.tool.output_schema if isinstance(known, HubTool) else None,
        server=server_of(known),
    )


def prompt(name: str, answer: types.GetPromptResult) -> protocol.PromptText:
    """A server's prompt; content other than text is described in words."""
    return protocol.PromptText(
        name=name,
        description=answer.description or "",
        messages=tuple(
            protocol.PromptMessage(role=message.role, text=_text(message.content))
            for message in answer.messages
        ),
    )


def request(asked: protocol.LlmRequest) -> ModelRequest:
    """The request to a model for an `env_invoke_llm` call."""
    system = [message.content for message in asked.messages if message.role == "system"]
    return ModelRequest(
        messages=_conversation(asked),
        system="\n\n".join(system) or None,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        stop=asked.stop,
    )


def reply(answer: Reply) -> protocol.LlmReply:
    return protocol.LlmReply(
        text=answer.text,
        model=answer.model,
        stop_reason=answer.stop,
        usage=protocol.LlmUsage(
            input_tokens=answer.usage.input_tokens, output_tokens=answer.usage.output_tokens
        ),
    )


def _conversation(asked: protocol.LlmRequest) -> Sequence[Message]:
    return [
        Assistant(message.content) if message.role == "assistant" else user(message.content)
        for message in asked.messages
        if message.role != "system"
    ]


def _text(content: types.ContentBlock) -> str:
    return str(block(Raw(content.model_dump_json(by_alias=True, exclude_none=True))))
