"""`multitap chat`: a model with the tools of all servers, at the terminal."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_never

import anyio
import click
import msgspec
from anyio import from_thread, to_thread

from multitap.agent.engine import ALLOW, Engine, Verdict, deny, unless_read_only
from multitap.agent.models.language_model import require_library
from multitap.catalog.schemas.typed_arguments import texts, to_arguments, words
from multitap.cli.configuration import explain_emptiness, load_configuration, show_problems
from multitap.cli.options import THOROUGH, CommonOptions, server_options
from multitap.cli.own_hub import adapt, open_command_hub
from multitap.cli.progress import progress
from multitap.cli.questions import prompt_handlers
from multitap.cli.signals import end_with_terminal, on_interrupt, run_async
from multitap.cli.terminal import Exit, TypedLines, complain, note, say, say_text, table
from multitap.cli.use.chat_lines import (
    HELP,
    ChatCommand,
    ChatPrinting,
    PromptUse,
    SavedChats,
    TypedMessage,
    typed_turn,
)
from multitap.config import Loaded, ModelConfig
from multitap.errors import ModelError, MultitapError, UnknownName
from multitap.hub.hub import Hub
from multitap.screens.typed_commands import TypedCommand, typed_command
from multitap.screens.view import stats_words
from multitap.tools.providers import ToolCall
from multitap.tools.tool import ToolInfo
from multitap.version import own_program
from multitap.wire.stderr_log import last_lines, log_path

_LAST = 2000
"""Bytes of a server's standard error that are shown."""


class ServerCommands:
    """Acts on the servers of one chat."""

    def __init__(self, hub: Hub, options: CommonOptions) -> None:
        self._hub = hub
        self._options = options

    async def obey(self, command: TypedCommand) -> None:
        """Run a typed command.

        Raises:
            MultitapError: It cannot be done.
        """
        if command.verb in {"add", "import", "remove", "rename"}:
            await self._run(command.verb, *command.words)
            self._reload()
            return
        server = self._require_known(command.about) if command.about else ""
        match command.verb:
            case "tools":
                self.show_tools(lambda owner, _: server in {"", owner})
            case "restart":
                self._hub.restart(server)
                note(f"{server} restarts")
            case "login" | "enable" | "disable":
                await self._run(command.verb, server)
                self._reload()
                # a reload would not restart it: only its tokens are new, not its entry
                if command.verb == "login":
                    self._hub.restart(server)
            case "logs":
                await self._show_log(server)
            case "stats":
                say_text(stats_words(self._hub.metrics.servers()) or "there have been no calls yet")
            case "reload":
                self._reload()
            case _:
                self._show()

    def show_tools(self, selects: Callable[[str, str], bool]) -> None:
        """List the tools that `selects` accepts, by server and text."""
        for tool in self._hub.catalog.tools.values():
            if selects(tool.server, f"{tool.name} {tool.description}"):
                say_text(f"{tool.name}  {tool.description.partition('.')[0]}")

    def _show(self) -> None:
        rows = [
            (server.name, server.state.value, str(server.tools), str(server.failure or ""))
            for server in self._hub.snapshot().servers
        ]
        table(("SERVER", "STATE", "TOOLS", "NOTE"), rows)

    def _require_known(self, server: str) -> str:
        if server not in self._hub.links:
            names = ", ".join(self._hub.links)
            raise UnknownName(f"no server named {server!r}", hint=f"there are: {names}")
        return server

    async def _show_log(self, server: str) -> None:
        logs = self._hub.logs
        if not server or logs is None:
            raise MultitapError("/mcp logs needs the name of a server")
        text = await to_thread.run_sync(last_lines, log_path(logs, server), _LAST)
        say_text(text or f"{server} has not written anything")

    def _reload(self) -> None:
        """Read the files again, and apply them."""
        # no question here: it would stop everything that runs in this loop
        loaded = load_configuration(msgspec.structs.replace(self._options, asks=False))
        plan = self._hub.apply(adapt(loaded, self._options, lambda _name, _config: {}))
        note(f"reloaded: {plan}")

    async def _run(self, *arguments: str) -> None:
        """Run a command of the program, at the same terminal."""
        files = (word for file in self._options.files for word in ("--config", str(file)))
        started = await asyncio.create_subprocess_exec(*own_program(), *files, *arguments)
        try:
            if await started.wait():
                raise MultitapError(f"`multitap {' '.join(arguments)}` failed")
        finally:
            # Ctrl-C cancels this task, and the command must not keep the terminal
            if started.returncode is None:
                started.terminate()


NO_MODEL = """\
no model is configured: only `/call TOOL key=value` and the other commands work
choose one with `/model anthropic/NAME` or `/model openai/NAME`, or in the configuration:
  [model]
  provider = "anthropic"
  name = "claude-sonnet-4-5\""""


def model_named(name: str | None, configured: ModelConfig | None) -> ModelConfig | None:
    """The configured model with this name; None to use the configured one unchanged.

    Raises:
        MultitapError: No provider has that name.
    """
    if name is None:
        return None
    provider, slash, model = name.partition("/")
    base = configured or ModelConfig(name=name)
    if not slash:
        return base.replace(name=name)
    if provider == base.provider:
        return base.replace(name=model)
    match provider:
        case "openai" | "anthropic":
            return ModelConfig(provider=provider, name=model)
        case _ if configured is not None:  # many endpoints name their models `maker/model`
            return base.replace(name=name)
        case _:
            hint = "`openai/NAME` or `anthropic/NAME`"
            raise MultitapError(f"no provider named {provider!r}", hint=hint)


class ChatUser:
    """The user at the terminal, who answers the chat, its tools and servers one at a time."""

    def __init__(self) -> None:
        self.lines = TypedLines()
        self.turn = anyio.Lock()
        """Held during a question: tools run side by side, and each may need an answer."""
        self._always: set[str] = set()

    async def type(self, question: str) -> str:
        """Ask for a line.

        Raises:
            EOFError: The user left.
        """
        async with self.turn:
            # in a thread, so that servers continue while the user thinks
            return await to_thread.run_sync(self.lines.ask, question, from_thread.check_cancelled)

    async def approve(self, call: ToolCall, tool: ToolInfo) -> Verdict:
        """Ask before a tool is used that may change something."""
        if call.name in self._always:
            return ALLOW
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        try:
            line = await self.type(f"  allow {call.name} {arguments}? [y]es, [a]lways, [n]o: ")
        except EOFError:
            return deny("the user has left")
        answer = line.strip().lower()[:1]
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
        person: ChatUser,
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
        with on_interrupt(self._interrupt):
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
        prompt = next(
            (
                prompt
                for prompt in prompts
                if (prompt.server, prompt.raw_name) == (turn.server, turn.prompt)
            ),
            None,
        )
        if prompt is None:
            names = ", ".join(f"/{prompt.server}:{prompt.raw_name}" for prompt in prompts) or "none"
            hint = f"there are: {names}"
            raise MultitapError(f"{turn.server} has no prompt {turn.prompt!r}", hint=hint)
        known_names = [
            str(argument.get("name")) for argument in prompt.definition.get("arguments") or ()
        ]
        arguments = texts(words(turn.arguments), known_names)
        self._engine.use(await self._hub.prompt(prompt.name, arguments))

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
                text = " ".join(command.arguments).lower()
                self._servers.show_tools(lambda _, about: text in about.lower())
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
        if model is not None:
            note(f"model: {model.provider}/{model.name}")
        _check_model(self._engine)

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


class ChatOptions(msgspec.Struct, frozen=True):
    """The options of a chat."""

    model: str | None = None
    """`[PROVIDER/]NAME`; by default, the configured one."""
    agent: str | None = None
    resume: bool = False


@click.command()
@click.option(
    "--model", metavar="[PROVIDER/]NAME", help="Model to talk to; default: the configured one"
)
@click.option(
    "--agent", metavar="NAME", help="Configured agent whose prompt, model and tools to use"
)
@click.option("--continue", "resume", is_flag=True, help="Continue the last conversation")
@server_options
def chat(options: CommonOptions, **typed: Any) -> int:
    """Talk to a model that uses the tools of your servers

    @SERVER:URI adds a resource, /SERVER:PROMPT uses a prompt, /help lists the commands.
    """
    choice = ChatOptions(**typed)
    loaded = load_configuration(options)
    show_problems(loaded.errors)
    explain_emptiness(loaded)
    with end_with_terminal():
        run_async(lambda: _talk(loaded, options, choice))
    return Exit.DONE


def _check_model(engine: Engine) -> None:
    """Say now, not after the first message, if there can be no answer."""
    model = engine.chosen_model
    if model is None:
        note(NO_MODEL)
    elif isinstance(model, ModelConfig):
        try:
            require_library(model.provider)
        except ModelError as exc:
            complain(str(exc), exc.hint)
            note("until then, only `/call TOOL key=value` and the other commands work")


async def _talk(loaded: Loaded, options: CommonOptions, choice: ChatOptions) -> None:
    settings = adapt(loaded, options, lambda _name, _config: {})
    # one lock for both: the chat and a server must not ask at the same time
    person = ChatUser()
    handlers = prompt_handlers(person.lines, person.turn)
    async with open_command_hub(loaded, settings, handlers) as hub:
        chats = SavedChats(loaded.state_directory)
        path = chats.latest() if choice.resume else chats.new()
        engine = Engine(
            hub.tools,
            settings=settings,
            agent=choice.agent,
            model=model_named(choice.model, settings.model),
            approve=unless_read_only(person.approve),
        )
        if choice.resume:
            engine.history = chats.load(path)
            note(f"continuing {path}")
        _check_model(engine)
        # not for all of them: tools of a slow server are available in a later turn
        async with progress(hub):
            # the wait at a terminal has no limit of its own
            with anyio.move_on_after(min(options.patience(), THOROUGH)):
                await hub.settled()
        servers = ServerCommands(hub, options)
        await Chat(hub, engine, chats, path, person=person, servers=servers).run()
