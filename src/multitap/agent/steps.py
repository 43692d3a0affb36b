"""The events of an agent at work, for observers."""

from enum import StrEnum

from multitap.agent.models.language_model import TextDelta, Usage
from multitap.records import dataclass
from multitap.results import ToolResult
from multitap.tools.providers import ToolCall


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody is asked whether this may be done."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCalled:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A call has its answer, which may be that it was refused."""

    call: ToolCall
    result: ToolResult
    seconds: float = 0.0


class Ending(StrEnum):
    """Why an agent stopped."""

    DONE = "done"
    LENGTH = "length"
    """The model's answer was cut at its limit."""
    REFUSED = "refused"
    """The model does not want to."""
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"


@dataclass(frozen=True, slots=True)
class Finished:
    """The last thing that happens."""

    reason: Ending
    usage: Usage
    """Of all steps together."""
    text: str
    """What the model said last."""
    steps: int
    """How often the model was asked."""


Step = TextDelta | Asked | ToolCalled | ToolFinished | Finished
