"""`multitap chat`: a model with the tools of all servers, at the terminal."""

import anyio

from multitap.agent.approval import unless_read_only
from multitap.agent.engine import Engine
from multitap.cli.chat.chat_session import Chat, Person
from multitap.cli.chat.mcp_commands import ServerCommands
from multitap.cli.chat.model_choice import NO_MODEL, model_named
from multitap.cli.chat.saved_chats import SavedChats
from multitap.cli.command_hub import adapt, open_command_hub
from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.exits import Exit
from multitap.cli.offers.prompt_answers import prompt_handlers
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.stopping import end_with_terminal
from multitap.cli.terminal.output import note
from multitap.cli.terminal.progress import progress
from multitap.config import Loaded
from multitap.records import dataclass


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options of a chat."""

    model: str | None = None
    """`[PROVIDER/]NAME`; by default, the configured one."""
    agent: str | None = None
    resume: bool = False


def chat(options: CommonOptions, chosen: ChatOptions) -> int:
    """Chat until the user leaves."""
    loaded = load_configuration(options)
    with end_with_terminal():
        run_async(lambda: _talk(loaded, options, chosen))
    return Exit.DONE


async def _talk(loaded: Loaded, options: CommonOptions, chosen: ChatOptions) -> None:
    settings = adapt(loaded, options, lambda _name, _config: {})
    # one lock for both: the chat and a server must not ask at the same time
    person = Person()
    handlers = prompt_handlers(person.lines, person.turn)
    async with open_command_hub(loaded, settings, handlers) as hub:
        chats = SavedChats(loaded.state_directory)
        path = chats.latest() if chosen.resume else chats.new()
        engine = Engine(
            hub.tools,
            settings=settings,
            agent=chosen.agent,
            model=model_named(chosen.model, settings.model),
            approve=unless_read_only(person.approve),
        )
        if chosen.resume:
            engine.history = chats.load(path)
            note(f"continuing {path}")
        if engine.chosen_model is None:
            note(NO_MODEL)
        # not for all of them: tools of a slow server are available in a later turn
        async with progress(hub):
            with anyio.move_on_after(options.patience()):
                await hub.settled()
        servers = ServerCommands(hub, options)
        await Chat(hub, engine, chats, path, person=person, servers=servers).run()
