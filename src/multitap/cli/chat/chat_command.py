"""`multitap chat`: a model with the tools of all servers, at the terminal."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import assert_never

import anyio
from anyio import from_thread, to_thread

from multitap.agent.approval import ALLOW, Approve, Verdict, deny, unless_read_only
from multitap.agent.engine import Engine
from multitap.catalog.schemas.argument_words import texts, words
from multitap.catalog.schemas.typed_arguments import typed
from multitap.cli.chat.chat_printing import ChatPrinting
from multitap.cli.chat.saved_chats import SavedChats
from multitap.cli.chat.typed_turns import HELP, ChatCommand, PromptUse, Spoken, typed_turn
from multitap.cli.command_hub import adapted, open_command_hub
from multitap.cli.configuration.chosen import load_configuration
from multitap.cli.exits import Exit
from multitap.cli.offers.prompt_answers import prompt_handlers
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.terminal.output import complain, note, say, say_text
from multitap.cli.terminal.progress import progress
from multitap.cli.terminal.tables import table
from multitap.cli.terminal.typed_lines import TypedLines
from multitap.config import Loaded, ModelConfig
from multitap.errors import MultitapError
from multitap.hub.hub import Hub
from multitap.records import dataclass
from multitap.tools.providers import ToolCall
from multitap.tools.tool import ToolInfo

_NO_MODEL = """\
no model is configured: `/call TOOL key=value` works, and nothing else answers
name one in the configuration, as in:
  [model]
  provider = "anthropic"
  name = "claude-sonnet-4-5\""""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How the person wants it."""

    model: str | None = None
    """`[PROVIDER/]NAME`; the configured one if not given."""
    agent: str | None = None
    resume: bool = False


def chat(options: CommonOptions, chosen: ChatOptions) -> int:
    """Talk until the person leaves."""
    loaded = load_configuration(options)
    run_async(lambda: _talk(loaded, options, chosen))
    return Exit.DONE


async def _talk(loaded: Loaded, options: CommonOptions, chosen: ChatOptions) -> None:
    settings = adapted(loaded, options, lambda _name, _config: {})
    async with open_command_hub(loaded, settings, prompt_handlers()) as hub:
        chats = SavedChats(loaded.state_directory)
        path = chats.latest() if chosen.resume else chats.new()
        lines = TypedLines()
        engine = Engine(
            hub.tools,
            settings=settings,
            agent=chosen.agent,
            model=model_named(chosen.model, settings.model),
            approve=unless_read_only(_approval(lines)),
        )
        if chosen.resume:
            engine.history = chats.load(path)
            note(f"continuing {path}")
        if engine.chosen_model is None:
            note(_NO_MODEL)
        async with progress(hub):
            with anyio.move_on_after(options.patience()):
                await hub.settled()
        await Chat(hub, engine, chats, path, lines).run()


def model_named(name: str | None, configured: ModelConfig | None) -> ModelConfig | None:
    """The model that was named, otherwise as the configured one; None: what is configured counts.

    Raises:
        MultitapError: No provider has that name.
    """
    if name is None:
        return None
    provider, slash, model = name.partition("/")
    base = configured or ModelConfig(name=name)
    if not slash:
        return base.model_copy(update={"name": name})
    if provider == base.provider:
        return base.model_copy(update={"name": model})
    match provider:
        case "openai" | "anthropic":
            return ModelConfig(provider=provider, name=model)
        case _ if configured is not None:  # many endpoints name their models `maker/model`
            return base.model_copy(update={"name": name})
        case _:
            hint = "`openai/NAME` or `anthropic/NAME`"
            raise MultitapError(f"no provider named {provider!r}", hint=hint)


class Chat:
    """One conversation.

    Args:
        hub: Whose tools, resources and prompts.
        engine: The agent.
        chats: Where conversations are kept.
        path: Where this one is.
        lines: What the person types.
    """

    def __init__(
        self, hub: Hub, engine: Engine, chats: SavedChats, path: Path, lines: TypedLines
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._chats = chats
        self._path = path
        self._lines = lines
        self._printing = ChatPrinting()
        self._answering: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Take turns until the person leaves."""
        with _on_interrupt(self._interrupt):
            while True:
                self._answering = None
                try:
                    line = await _typed_line(self._lines, "> ")
                except EOFError:
                    return
                try:
                    if line.strip() and await self._take(line.strip()):
                        return
                except MultitapError as exc:
                    self._printing.end_line()
                    complain(str(exc), exc.hint)

    def _interrupt(self) -> None:
        """Ctrl-C stops what the model does, not the chat."""
        if self._answering is None:
            note("Ctrl-D or /quit leaves")
        else:
            self._answering.cancel()

    async def _take(self, line: str) -> bool:
        """Do what a line says; whether it says to leave."""
        turn = typed_turn(line)
        match turn:
            case Spoken():
                await self._attach(turn)
                await self._answer(turn.text)
            case PromptUse():
                await self._use(turn)
                await self._answer(None)
            case ChatCommand("quit"):
                return True
            case ChatCommand():
                await self._obey(turn)
            case _:
                assert_never(turn)
        return False

    async def _attach(self, turn: Spoken) -> None:
        for server, uri in turn.resources:
            self._engine.attach(await self._hub.read(uri, server=server), f"{server}:{uri}")

    async def _use(self, turn: PromptUse) -> None:
        prompts = self._hub.catalog.prompts.values()
        found = next(
            (one for one in prompts if (one.server, one.raw_name) == (turn.server, turn.prompt)),
            None,
        )
        if found is None:
            raise MultitapError(f"{turn.server} has no prompt {turn.prompt!r}", hint=HELP)
        known = [str(one.get("name")) for one in found.definition.get("arguments") or ()]
        given = texts(words(turn.arguments), known)
        self._engine.use(await self._hub.prompt(found.name, given))

    async def _answer(self, prompt: str | None) -> None:
        """Have the model answer; Ctrl-C stops it, and the conversation goes on."""
        if self._engine.chosen_model is None:
            raise MultitapError(_NO_MODEL)
        with anyio.CancelScope() as self._answering:
            async with self._engine.run(prompt) as steps:
                async for step in steps:
                    self._printing.show(step)
        self._printing.end_line()
        if self._answering.cancel_called:
            note("stopped")
        self._chats.save(self._engine.history, self._path)

    async def _obey(self, command: ChatCommand) -> None:
        match command.verb:
            case "help" | "quit":
                say(HELP)
            case "mcp":
                rows = [
                    (one.name, one.state.value, str(one.tools), str(one.failure or ""))
                    for one in self._hub.snapshot().servers
                ]
                table(("SERVER", "STATE", "TOOLS", "NOTE"), rows)
            case "tools":
                wanted = " ".join(command.arguments).lower()
                for tool in self._hub.catalog.tools.values():
                    if wanted in f"{tool.name} {tool.description}".lower():
                        say_text(f"{tool.name}  {tool.description.partition('.')[0]}")
            case "model":
                self._change_model(command.arguments)
            case "save":
                path = Path(command.arguments[0]) if command.arguments else self._path
                self._chats.save(self._engine.history, path)
                note(f"saved in {path}")
            case "call":
                await self._call(command.arguments)

    def _change_model(self, arguments: tuple[str, ...]) -> None:
        if arguments:
            self._engine.model = model_named(arguments[0], self._engine.settings.model)
        model = self._engine.chosen_model
        note(f"model: {model.provider}/{model.name}" if model else "there is no model")

    async def _call(self, arguments: tuple[str, ...]) -> None:
        if not arguments:
            raise MultitapError("/call needs the name of a tool", hint=HELP)
        name, *rest = arguments
        tool = await self._hub.lookup.find_tool(name)
        result = await self._hub.call(tool.name, typed(words(rest), tool.input_schema))
        say_text(result.text)


def _approval(lines: TypedLines) -> Approve:
    """Asks the person before a tool is used that may change something."""
    always: set[str] = set()

    async def approve(call: ToolCall, tool: ToolInfo) -> Verdict:
        if call.name in always:
            return ALLOW
        question = f"  allow {call.name} {dict(call.arguments)}? [y]es, [a]lways, [n]o: "
        try:
            said = (await _typed_line(lines, question)).strip().lower()
        except EOFError:
            return deny("the person is gone")
        if said.startswith("a"):
            always.add(tool.name)
        return ALLOW if said[:1] in {"y", "a"} else deny("the person does not want that")

    return approve


async def _typed_line(lines: TypedLines, words: str) -> str:
    # in a thread, because a person takes their time; the servers go on meanwhile
    return await to_thread.run_sync(lines.ask, words, from_thread.check_cancelled)


@contextmanager
def _on_interrupt(act: Callable[[], None]) -> Generator[None]:
    """Within the block, Ctrl-C does this and nothing else."""
    loop = asyncio.get_running_loop()

    def leave_note(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)  # whatever the loop does just now is interrupted by this

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, leave_note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
