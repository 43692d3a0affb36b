"""Prints the steps of an agent: text as it streams, tool calls folded to a line."""

import json
import sys
from collections import deque

import click

from multitap.agent.models.language_model import Model, TextDelta, Usage
from multitap.agent.steps import Asked, Ending, Finished, Step, ToolCalled, ToolFinished
from multitap.cli.terminal.output import colour_text, note, say_text
from multitap.cli.terminal.tables import one_line
from multitap.config import ModelConfig
from multitap.errors import MultitapError, counted, shortened
from multitap.printable import printable

MOST_KEPT = 50
"""Tool calls that `/show` can print in full."""
_LINE = 160
"""Characters of a call or a result that are shown."""
_REASONS = {
    Ending.LENGTH: "the answer was cut at the model's limit",
    Ending.REFUSED: "the model refused to answer",
    Ending.MAX_STEPS: "the agent took too many steps; say `go on` to continue",
    Ending.MAX_TOKENS: "the agent used up its tokens",
}


class ChatPrinting:
    """Prints the turns, and counts their cost."""

    def __init__(self) -> None:
        self.usage = Usage()
        """Tokens of all turns."""
        self.cost: float | None = None
        """The cost of turns whose model has a price."""
        self.finished: deque[ToolFinished] = deque(maxlen=MOST_KEPT)
        """The tool calls that were shown in a line, for `/show`."""
        self._in_line = False

    def show(self, step: Step, model: Model | ModelConfig | None) -> None:
        """Print a step; `model` determines the price."""
        match step:
            case TextDelta(text):
                click.echo(printable(text), nl=False)
                self._in_line = not text.endswith("\n")
            case ToolCalled(call):
                self.end_line()
                given = json.dumps(dict(call.arguments), ensure_ascii=False)
                self._dim(f"→ {call.name} {given}")
            case ToolFinished(call, result, seconds):
                mark = "✗" if result.is_error else "←"
                self.finished.append(step)
                self._dim(f"{mark} {call.name} ({seconds:.1f} s) {result.beginning(_LINE)}")
            case Finished(reason, usage):
                self.end_line()
                if words := _REASONS.get(reason):
                    note(words)
                note(self._counters(usage, price(usage, model)))
            case Asked():
                self.end_line()

    def show_whole(self, back: int) -> None:
        """Print a tool call with its full result.

        Args:
            back: Counted from the end; 1 is the last call.

        Raises:
            MultitapError: There is none.
        """
        if not 0 < back <= len(self.finished):
            raise MultitapError(f"there were {counted(len(self.finished), 'tool call')} so far")
        step = self.finished[-back]
        say_text(f"{step.call.name} {json.dumps(dict(step.call.arguments), ensure_ascii=False)}")
        say_text(step.result.text)

    def _counters(self, usage: Usage, cost: float | None) -> str:
        self.usage += usage
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        now = counted(usage.total, "token") + (f", {cost:.4f}" if cost is not None else "")
        total = f"{self.usage.total:,}" + (f", {self.cost:.4f}" if self.cost is not None else "")
        return f"[{now}; {total} so far]"

    def end_line(self) -> None:
        """Start a new line, unless at the beginning of one."""
        if self._in_line:
            click.echo()
            self._in_line = False

    @staticmethod
    def _dim(text: str) -> None:
        line = shortened(one_line(text), _LINE)
        click.echo(colour_text(f"  {line}", "bright_black", sys.stdout))


def price(usage: Usage, model: Model | ModelConfig | None) -> float | None:
    """The cost of an answer; None if the model has no price."""
    if not isinstance(model, ModelConfig) or model.input_price is model.output_price is None:
        return None
    read, written = model.input_price or 0.0, model.output_price or 0.0
    return (usage.input_tokens * read + usage.output_tokens * written) / 1_000_000
