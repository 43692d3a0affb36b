"""What all model protocols share: sending a conversation and collecting a reply."""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import structs

from multitap.agent.conversation import Assistant, Call, Message, ToolAnswer, ToolAnswers, User
from multitap.results import ToolResult
from multitap.tools.providers import Offer, ToolCall
from multitap.tools.providers.offer import Answered

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


def for_model(
    messages: Iterable[Message], offer: Offer, model: str
) -> Iterator[User | Assistant | list[Answered]]:
    """The messages for one model, answers together with their calls.

    Args:
        messages: The conversation, maybe with other models.
        offer: Has the provider's names of tools.
        model: The receiver; provider data goes back only to the model that sent it.
    """
    names = {ours: theirs for theirs, ours in offer.names.items()}
    calls: tuple[Call, ...] = ()
    for message in messages:
        match message:
            case User():
                yield message
            case Assistant():
                own = message.model == model
                calls = tuple(_rename(call, names, own=own) for call in message.calls)
                yield structs.replace(message, calls=calls, kept=_own_extras(message, own=own))
            case ToolAnswers(answers):
                yield [*map(_pair, calls, answers)]


def distinct(ids: Iterable[str]) -> tuple[str, ...]:
    """Unique ids for the calls of one answer; some endpoints give none, or the same to all."""
    seen: dict[str, None] = {}
    for one in ids:
        seen[one if one and one not in seen else f"call_{secrets.token_hex(8)}"] = None
    return tuple(seen)


def _rename(call: Call, names: Mapping[str, str], *, own: bool) -> Call:
    # With a name that this provider does not accept, it would refuse every request.
    fallback = _NO_NAME.sub("_", call.sent)[:_LONGEST_NAME] or "unknown"
    return structs.replace(
        call, sent=names.get(call.name, fallback), kept=_own_extras(call, own=own)
    )


def _own_extras(source: Assistant | Call, *, own: bool) -> Mapping[str, Any]:
    return source.kept if own else {}


def _pair(call: Call, answer: ToolAnswer) -> Answered:
    wanted = ToolCall(call.id, call.name, call.arguments, call.sent)
    return wanted, ToolResult(answer.result, tool=call.name)
