"""The lines of a chat: parsed when typed, printed as the model works, saved for later."""

import json
import os
import re
import shlex
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click
import msgspec

from multitap.agent.conversation import Conversation
from multitap.agent.engine import Asked, Ending, Finished, Step, ToolCalled, ToolFinished
from multitap.agent.models.language_model import Model, TextDelta, Usage
from multitap.cli.terminal import colour_text, note, one_line, say_text
from multitap.config import ModelConfig
from multitap.errors import BadArguments, MultitapError, counted, quoted, shortened
from multitap.printable import printable

if TYPE_CHECKING:
    from multitap.screens.markdown import MarkdownStream

HELP = """\
@SERVER:URI                    add a resource to the conversation
/SERVER:PROMPT key=value       go on with a prompt
/call TOOL key=value           call a tool yourself
/mcp [tools|restart|enable|disable|login|logs|stats|reload] [SERVER]
                               the servers: their state, or what to do with them
/mcp add WHAT                  add a server; also `remove`, `rename` and `import`
/tools [WORD]                  the tools
/show [NUMBER]                 a tool call with its whole result; the last one, or one before
/model [NAME]                  show or change the model
/save [FILE]                   save the conversation
/help, /quit                   this text; leave (so does Ctrl-D)
Ctrl-C stops an answer, not the chat."""

# at the beginning of a word, so that mail addresses stay as they are
_RESOURCE = re.compile(r"(?<!\S)@([^\s:@]+):(\S+)")

Verb = Literal["call", "mcp", "tools", "show", "model", "save", "help", "quit"]
_VERBS: tuple[Verb, ...] = get_args(Verb)


class TypedMessage(msgspec.Struct, frozen=True):
    """Text for the model, with the resources it mentions."""

    text: str
    resources: tuple[tuple[str, str], ...] = ()
    """Server and URI of each."""


class PromptUse(msgspec.Struct, frozen=True):
    """A prompt of a server, to be filled in."""

    server: str
    prompt: str
    arguments: tuple[str, ...] = ()


class ChatCommand(msgspec.Struct, frozen=True):
    """A command for the chat itself."""

    verb: Verb
    arguments: tuple[str, ...] = ()


TypedTurn = TypedMessage | PromptUse | ChatCommand


def typed_turn(line: str) -> TypedTurn:
    """Parse a line.

    Raises:
        BadArguments: It is an unknown command.
    """
    if not line.startswith("/"):
        resources = tuple((server, uri) for server, uri in _RESOURCE.findall(line))
        return TypedMessage(line, resources)
    try:
        first, *rest = shlex.split(line[1:]) or ["help"]
    except ValueError as exc:
        raise BadArguments(f"the line cannot be read: {exc}", path="", hint=HELP) from None
    server, colon, prompt = first.partition(":")
    if colon:
        return PromptUse(server, prompt, tuple(rest))
    for verb in _VERBS:
        if first == verb:
            return ChatCommand(verb, tuple(rest))
    raise BadArguments(f"no command {quoted('/' + first)}", path="", hint=HELP)


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
        self._markdown = _markdown_stream()
        """Formats answers; None if nobody sees them, as in a pipe."""

    def show(self, step: Step, model: Model | ModelConfig | None) -> None:
        """Print a step; `model` determines the price."""
        match step:
            case TextDelta(text) if self._markdown is not None:
                self._markdown.feed(text)
            case TextDelta(text):
                click.echo(printable(text), nl=False)
                self._in_line = not text.endswith("\n")
            case ToolCalled(call):
                self.end_line()
                arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
                self._dim(f"→ {call.name} {arguments}")
            case ToolFinished(call, result, seconds):
                mark = "✗" if result.is_error else "←"
                self.finished.append(step)
                self._dim(f"{mark} {call.name} ({seconds:.1f} s) {result.beginning(_LINE)}")
            case Finished(reason, usage):
                self.end_line()
                if text_ := _REASONS.get(reason):
                    note(text_)
                note(self._counters(usage, price(usage, model)))
            case Asked():
                self.end_line()

    def show_whole(self, back: int) -> None:
        """Print a tool call with its full result.

        `back` is counted from the end; 1 is the last call.

        Raises:
            MultitapError: There is none.
        """
        if not 0 < back <= len(self.finished):
            raise MultitapError(
                f"there have been {counted(len(self.finished), 'tool call')} so far"
            )
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
        if self._markdown is not None:
            self._markdown.end()
        if self._in_line:
            click.echo()
            self._in_line = False

    @staticmethod
    def _dim(text: str) -> None:
        line = shortened(one_line(text), _LINE)
        click.echo(colour_text(f"  {line}", "bright_black", sys.stdout))


def _markdown_stream() -> "MarkdownStream | None":
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    from rich.console import Console  # noqa: PLC0415 - slow to import, and not for pipes

    from multitap.screens.markdown import MarkdownStream  # noqa: PLC0415 - the same

    return MarkdownStream(sys.stdout, Console(file=sys.stdout))


def price(usage: Usage, model: Model | ModelConfig | None) -> float | None:
    """The cost of an answer; None if the model has no price."""
    if not isinstance(model, ModelConfig) or model.input_price is model.output_price is None:
        return None
    read, written = model.input_price or 0.0, model.output_price or 0.0
    return (usage.input_tokens * read + usage.output_tokens * written) / 1_000_000


MOST = 100
"""The maximum number of saved conversations."""


class SavedChats:
    """The conversations of one user."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "chats"

    def new(self) -> Path:
        """The path of a new conversation."""
        # with the process, because two chats may begin in the same second
        return self._folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}.json"

    def latest(self) -> Path:
        """The conversation that was saved last.

        Raises:
            MultitapError: There is none.
        """
        chats = self._all()
        if not chats:
            raise MultitapError("there is no conversation to continue", hint="run `multitap chat`")
        return chats[-1]

    def load(self, path: Path) -> Conversation:
        """Read a conversation.

        Raises:
            MultitapError: It cannot be read, or is not a conversation.
        """
        try:
            return Conversation.from_json(path.read_bytes())
        except OSError as exc:
            raise MultitapError(f"{path} cannot be read: {exc.strerror}") from None

    def save(self, history: Conversation, path: Path) -> None:
        """Write a conversation atomically, readable only by its owner.

        Raises:
            MultitapError: It cannot be written.
        """
        # the dot keeps an incomplete one out of `_all`
        fresh = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # private from the start, and never through a link that somebody put there
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(fresh, flags, 0o600), "wb") as file:  # noqa: PTH123 - for its mode
                file.write(history.to_json())
            fresh.replace(path)
            # results of tools can be large, and nobody else removes them
            for old in self._all()[:-MOST]:
                old.unlink(missing_ok=True)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            raise MultitapError(f"{path} cannot be written: {exc.strerror}") from None

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
