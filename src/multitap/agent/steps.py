"""The events of an agent at work, for observers."""

from enum import StrEnum

from multitap.agent.models.language_model import TextDelta, Usage
from multitap.records import dataclass
from multitap.results import ToolResult
from multitap.tools.providers import ToolCall


@dataclass(frozen=True, slots=True)
class Asked:
    """A person is asked whether this call may be made."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCalled:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool call has ended, or was refused."""

    call: ToolCall
    result: ToolResult
    seconds: float = 0.0


class Ending(StrEnum):
    """Why an agent stopped."""

    DONE = "done"
    LENGTH = "length"
    """The model's answer reached its token limit."""
    REFUSED = "refused"
    """The model refused."""
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"


@dataclass(frozen=True, slots=True)
class Finished:
    """The last step of a turn."""

    reason: Ending
    usage: Usage
    """Tokens of all steps together."""
    text: str
    """The model's last text."""
    steps: int
    """Requests to the model."""


Step = TextDelta | Asked | ToolCalled | ToolFinished | Finished
