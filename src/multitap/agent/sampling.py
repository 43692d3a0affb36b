"""Answers the sampling requests of MCP servers with a model."""

from collections.abc import Iterator, Mapping

import mcp_types as types
import msgspec
from msgspec import Raw

from multitap.agent.conversation import (
    Assistant,
    Call,
    Message,
    Part,
    Picture,
    Text,
    ToolAnswer,
    ToolAnswers,
    User,
    mend,
)
from multitap.agent.models.language_model import Model, ModelRequest, Reply, StopReason
from multitap.errors import ModelError
from multitap.results import AudioBlock
from multitap.tools.providers import Offer
from multitap.tools.registry import ToolRegistry
from multitap.tools.tool import ToolDef
from multitap.upstream.questions import RequestOrigin, Sample

# The user pays for what servers ask: this bounds each answer, whatever a server requests.
MAX_TOKENS = 4096
_REASONS: Mapping[StopReason, types.StopReason] = {
    StopReason.END: "endTurn",
    StopReason.TOOLS: "toolUse",
    StopReason.LENGTH: "maxTokens",
    StopReason.STOPPED: "stopSequence",
    StopReason.REFUSED: "refusal",
}


def sampler(model: Model, *, max_tokens: int = MAX_TOKENS) -> Sample:
    """A handler for `Handlers.sample` that lets servers use this model.

    Their model preferences are ignored: there is only this one.

    Args:
        model: The model that answers.
        max_tokens: The limit of one answer, whatever a server requests.
    """

    async def sample(
        _: RequestOrigin, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        try:
            reply = await model.complete(_request(params, model, max_tokens))
        except ModelError as exc:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=str(exc))
        return _with_tools(reply) if params.tools else _plain(reply)

    return sample


def _request(params: types.CreateMessageRequestParams, model: Model, most: int) -> ModelRequest:
    choice = params.tool_choice.mode if params.tool_choice else None
    messages = (inner for message in params.messages for inner in _messages(message))
    return ModelRequest(
        # a server may send a history that providers refuse
        messages=mend(messages),
        system=params.system_prompt,
        offer=_offer(params.tools or [], model),
        tool_choice=choice or "auto",
        max_tokens=min(params.max_tokens, most),
        temperature=params.temperature,
        stop=tuple(params.stop_sequences or ()),
    )


def _offer(tools: list[types.Tool], model: Model) -> Offer:
    """The tools in a sampling request; the server runs them itself."""
    return model.offer(
        ToolRegistry(
            ToolDef(tool.name, tool.description or "", tool.input_schema, _never_run)
            # by name: providers refuse a list with one name twice
            for tool in {tool.name: tool for tool in tools}.values()
        )
    )


def _never_run() -> str:
    raise AssertionError("the server that asks uses its tools itself")


def _messages(message: types.SamplingMessage) -> Iterator[Message]:
    blocks = message.content_as_list
    parts = tuple(_part(block) for block in blocks if not isinstance(block, _TOOLS))
    if message.role == "assistant":
        text = "\n".join(part.text for part in parts if isinstance(part, Text))
        calls = (_call(block) for block in blocks if isinstance(block, types.ToolUseContent))
        yield Assistant(text, tuple(calls))
        return
    results = [block for block in blocks if isinstance(block, types.ToolResultContent)]
    # results before text: they belong to the calls in the previous message
    if results:
        yield ToolAnswers(tuple(map(_answer, results)))
    if parts:
        yield User(parts)


_TOOLS = (types.ToolUseContent, types.ToolResultContent)


def _part(block: types.TextContent | types.ImageContent | types.AudioContent) -> Part:
    match block:
        case types.TextContent():
            return Text(block.text)
        case types.ImageContent():
            return Picture(block.mime_type, block.data)
        case types.AudioContent():  # few models accept audio; a line of text works for all
            return Text(str(AudioBlock(block.mime_type, block.data)))


def _call(block: types.ToolUseContent) -> Call:
    return Call(block.id, block.name, block.input, block.name)


def _answer(block: types.ToolResultContent) -> ToolAnswer:
    result = {
        "content": [
            content.model_dump(mode="json", by_alias=True, exclude_none=True)
            for content in block.content
        ],
        "isError": bool(block.is_error),
    }
    if block.structured_content is not None:
        result["structuredContent"] = block.structured_content
    return ToolAnswer(block.tool_use_id, Raw(msgspec.json.encode(result)))


def _plain(reply: Reply) -> types.CreateMessageResult:
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(text=reply.text),
        model=reply.model,
        stop_reason=_REASONS[reply.stop],
    )


def _with_tools(reply: Reply) -> types.CreateMessageResultWithTools:
    text = [types.TextContent(text=reply.text)] if reply.text else []
    uses = [
        types.ToolUseContent(id=call.id, name=call.name, input=dict(call.arguments))
        for call in reply.calls
    ]
    return types.CreateMessageResultWithTools(
        role="assistant",
        content=[*text, *uses],
        model=reply.model,
        stop_reason=_REASONS[reply.stop],
    )
