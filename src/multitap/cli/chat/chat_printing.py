"""Prints the steps of an agent: text as it streams, tool calls folded to a line."""

import json
import sys

import click

from multitap.agent.models.language_model import TextDelta, Usage
from multitap.agent.steps import Asked, Ending, Finished, Step, ToolCalled, ToolFinished
from multitap.cli.terminal.output import note, painted
from multitap.cli.terminal.tables import one_line
from multitap.errors import counted, shortened
from multitap.printable import printable

_LINE = 160
"""Characters of a call or a result that are shown."""
_REASONS = {
    Ending.LENGTH: "the answer was cut at the model's limit",
    Ending.REFUSED: "the model does not want to answer",
    Ending.MAX_STEPS: "the agent took too many steps; say `go on` to continue",
    Ending.MAX_TOKENS: "the agent used up its tokens",
}


class ChatPrinting:
    """Writes one turn after the other, and counts what they cost."""

    def __init__(self) -> None:
        self.usage = Usage()
        """Of all turns."""
        self._in_line = False

    def show(self, step: Step) -> None:
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
                self._dim(f"{mark} {call.name} ({seconds:.1f} s) {result.text}")
            case Finished(reason, usage):
                self.end_line()
                self.usage += usage
                if words := _REASONS.get(reason):
                    note(words)
                note(f"[{counted(usage.total, 'token')}; {self.usage.total:,} so far]")
            case Asked():
                self.end_line()

    def end_line(self) -> None:
        """Begin a new line, unless at the beginning of one."""
        if self._in_line:
            click.echo()
            self._in_line = False

    @staticmethod
    def _dim(text: str) -> None:
        line = shortened(one_line(text), _LINE)
        click.echo(painted(f"  {line}", "bright_black", sys.stdout))
