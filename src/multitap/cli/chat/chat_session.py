"""One conversation with a model at the terminal, until the user leaves."""

import asyncio
import json
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import assert_never

import anyio
from anyio import from_thread, to_thread

from multitap.agent.approval import ALLOW, Verdict, deny
from multitap.agent.engine import Engine
from multitap.catalog.schemas.argument_words import texts, words
from multitap.catalog.schemas.typed_arguments import to_arguments
from multitap.cli.chat.chat_printing import ChatPrinting
from multitap.cli.chat.mcp_commands import ServerCommands
from multitap.cli.chat.model_choice import NO_MODEL, model_named
from multitap.cli.chat.saved_chats import SavedChats
from multitap.cli.chat.typed_turns import HELP, ChatCommand, PromptUse, TypedMessage, typed_turn
from multitap.cli.terminal.output import complain, note, say, say_text
from multitap.cli.terminal.typed_lines import TypedLines
from multitap.errors import MultitapError
from multitap.hub.hub import Hub
from multitap.screens.typed_commands import typed_command
from multitap.tools.providers import ToolCall
from multitap.tools.tool import ToolInfo


class Person:
    """The user at the terminal, who answers the chat, its tools and servers one at a time."""

    def __init__(self) -> None:
        self.lines = TypedLines()
        self.turn = anyio.Lock()
        """Held during a question: tools run side by side, and each may need an answer."""
        self._always: set[str] = set()

    async def type(self, words: str) -> str:
        """Ask for a line.

        Raises:
            EOFError: The user left.
        """
        async with self.turn:
            # in a thread, so that servers continue while the user thinks
            return await to_thread.run_sync(self.lines.ask, words, from_thread.check_cancelled)

    async def approve(self, call: ToolCall, tool: ToolInfo) -> Verdict:
        """Ask before a tool is used that may change something."""
        if call.name in self._always:
            return ALLOW
        given = json.dumps(dict(call.arguments), ensure_ascii=False)
        try:
            said = await self.type(f"  allow {call.name} {given}? [y]es, [a]lways, [n]o: ")
        except EOFError:
            return deny("the user has left")
        answer = said.strip().lower()[:1]
        if answer == "a":
            # for this conversation only: the server may change until the next one
            self._always.add(tool.name)
        return ALLOW if answer in {"y", "a"} else deny("the user declined")


class Chat:
    """One conversation."""

    def __init__(
        self,
        hub: Hub,
        engine: Engine,
        chats: SavedChats,
        path: Path,
        *,
        person: Person,
        servers: ServerCommands,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._chats = chats
        self._path = path
        self._person = person
        self._servers = servers
        self._printing = ChatPrinting()
        self._working: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Run turns until the user leaves."""
        with _on_interrupt(self._interrupt):
            while True:
                # between turns there is nothing for Ctrl-C to stop
                self._working = None
                try:
                    line = await self._person.type("> ")
                except EOFError:
                    return
                if line.strip() and await self._take(line.strip()):
                    return

    def _interrupt(self) -> None:
        """Handle Ctrl-C: stop the current turn, not the chat."""
        if self._working is None:
            note("Ctrl-D or /quit leaves")
        else:
            self._working.cancel()

    async def _take(self, line: str) -> bool:
        """Run a line until it is done or stopped; returns whether to leave."""
        leaves = False
        with anyio.CancelScope() as self._working:
            try:
                leaves = await self._do(line)
            except MultitapError as exc:
                self._printing.end_line()
                complain(str(exc), exc.hint)
        if self._working.cancelled_caught:
            self._printing.end_line()
            note("stopped")
        return leaves

    async def _do(self, line: str) -> bool:
        turn = typed_turn(line)
        match turn:
            case TypedMessage():
                self._require_model()
                await self._attach(turn)
                await self._answer(turn.text)
            case PromptUse():
                self._require_model()
                await self._use(turn)
                await self._answer(None)
            case ChatCommand("quit"):
                return True
            case ChatCommand():
                await self._obey(turn, line)
            case _:
                assert_never(turn)
        return False

    def _require_model(self) -> None:
        if self._engine.chosen_model is None:
            raise MultitapError(NO_MODEL)

    async def _attach(self, turn: TypedMessage) -> None:
        for server, uri in turn.resources:
            self._engine.attach(await self._hub.read(uri, server=server), f"{server}:{uri}")

    async def _use(self, turn: PromptUse) -> None:
        prompts = self._hub.catalog.prompts.values()
        found = next(
            (one for one in prompts if (one.server, one.raw_name) == (turn.server, turn.prompt)),
            None,
        )
        if found is None:
            known = ", ".join(f"/{one.server}:{one.raw_name}" for one in prompts) or "none"
            hint = f"there are: {known}"
            raise MultitapError(f"{turn.server} has no prompt {turn.prompt!r}", hint=hint)
        known_names = [str(one.get("name")) for one in found.definition.get("arguments") or ()]
        given = texts(words(turn.arguments), known_names)
        self._engine.use(await self._hub.prompt(found.name, given))

    async def _answer(self, prompt: str | None) -> None:
        """Let the model answer; the conversation is saved even if it is stopped."""
        try:
            async with self._engine.run(prompt) as steps:
                async for step in steps:
                    self._printing.show(step, self._engine.chosen_model)
        finally:
            self._printing.end_line()
            self._chats.save(self._engine.history, self._path)

    async def _obey(self, command: ChatCommand, line: str) -> None:
        match command.verb:
            case "help" | "quit":
                say(HELP)
            case "mcp":
                await self._servers.obey(typed_command(line))
            case "tools":
                wanted = " ".join(command.arguments).lower()
                self._servers.show_tools(lambda _, words: wanted in words.lower())
            case "show":
                self._printing.show_whole(_number(command.arguments))
            case "model":
                self._change_model(command.arguments)
            case "save":
                self._save(command.arguments)
            case "call":
                await self._call(command.arguments)

    def _save(self, arguments: tuple[str, ...]) -> None:
        path = Path(arguments[0]).expanduser() if arguments else self._path
        self._chats.save(self._engine.history, path)
        note(f"saved in {path}")

    def _change_model(self, arguments: tuple[str, ...]) -> None:
        if arguments:
            self._engine.model = model_named(arguments[0], self._engine.settings.model)
        model = self._engine.chosen_model
        note(f"model: {model.provider}/{model.name}" if model else NO_MODEL)

    async def _call(self, arguments: tuple[str, ...]) -> None:
        if not arguments:
            raise MultitapError("/call needs the name of a tool", hint=HELP)
        name, *rest = arguments
        tool = await self._hub.lookup.find_tool(name)
        result = await self._hub.call(tool.name, to_arguments(words(rest), tool.input_schema))
        say_text(result.text)


def _number(arguments: tuple[str, ...]) -> int:
    text = arguments[0] if arguments else "1"
    if not text.isdecimal():
        raise MultitapError(f"{text!r} is not a number", hint="`/show 2` is the last call but one")
    return int(text)


@contextmanager
def _on_interrupt(act: Callable[[], None]) -> Generator[None]:
    """Within the block, Ctrl-C only calls this function."""
    loop = asyncio.get_running_loop()

    def leave_note(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)  # this interrupts the loop at any point

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, leave_note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
