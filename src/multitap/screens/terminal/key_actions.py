"""What keys and typed commands do."""

import asyncio
import json
from collections.abc import Sequence

from textual.app import App

from multitap.gateway.fronts.control_messages import (
    AskReload,
    AskRestart,
    AskStderr,
    ReloadReport,
)
from multitap.printable import printable
from multitap.screens.live_view import LiveView
from multitap.screens.terminal import places
from multitap.screens.terminal.board import Board
from multitap.screens.terminal.calling import Calling
from multitap.screens.terminal.dialogs import Reading
from multitap.screens.typed_commands import HELP, TypedCommand
from multitap.screens.view_model import ServerRow
from multitap.store.call_records import CallRecord


class KeyActions:
    """Acts on the row that the cursor is on, or on what a command names.

    Every method may raise a `MultitapError`, which says why it could not be done.

    Args:
        app: Where windows open.
        board: What is in sight.
        view: What is known of the gateway.
        program: What runs this program again, for what has a dialogue of its own.
    """

    def __init__(
        self, app: App[None], board: Board, view: LiveView, program: Sequence[str]
    ) -> None:
        self._app = app
        self._board = board
        self._view = view
        self._program = program
        self._calling = Calling(app, view)

    async def act(self, verb: str) -> None:
        """Do what a key stands for; nothing where that makes no sense."""
        if verb == "help":
            self._help()
        elif server := self._board.server:
            await self._on_server(verb, server)
        elif call := self._board.call:
            await self._on_call(verb, call)
        elif tool := self._board.tool:
            if verb == "call":
                await self._calling.fill_and_call(tool)
            elif verb == "open":
                schema = json.dumps(tool.input_schema, indent=2, ensure_ascii=False)
                self._read(tool.name, f"{tool.description}\n\n{schema}")
        elif verb == "open" and (row := self._board.list.current):
            self._read(self._board.place, "\n".join(filter(None, row.cells)))

    async def obey(self, command: TypedCommand) -> None:
        """Do what was typed."""
        match command.verb:
            case "servers":
                self._board.visit(places.SERVERS.name)
            case "tools" | "logs":
                place = places.TOOLS if command.verb == "tools" else places.LOG
                self._board.visit(place.name, command.about)
            case "stats":
                self._read("Calls since the start", places.summary(self._view.figures))
            case "call":
                await self._calling.call_typed(command)
            case "restart":
                await self._restart(command.about)
            case "login":
                await self._run("login", command.about)
            case "reload":
                await self._reload()
            case "help":
                self._help()
            case "quit":
                self._app.exit()

    async def _on_server(self, verb: str, server: ServerRow) -> None:
        match verb:
            case "again":
                await self._restart(server.name)
            case "switch":
                await self._run("enable" if server.state == "disabled" else "disable", server.name)
            case "login":
                await self._run("login", server.name)
            case "tools":
                self._board.visit(places.TOOLS.name, server.name)
            case "log":
                text = await self._view.client.ask(AskStderr(server.name), str)
                self._read(f"stderr of {server.name}", text or "it has not written anything")
            case "open":
                self._read(server.name, f"{server.state}\n{places.advice(server)}")
            case _:
                pass

    async def _on_call(self, verb: str, call: CallRecord) -> None:
        match verb:
            case "again":
                await self._calling.replay(call)
            case "compare":
                await self._calling.compare(call)
            case "open":
                said = await self._view.said(call)
                text = f"{places.phases(call).words}\n{call.error or ''}\n\n{said}"
                self._read(f"{call.server} {call.tool}: {call.outcome.value}", text)
            case _:
                pass

    async def _restart(self, server: str) -> None:
        await self._view.client.ask(AskRestart(server), type(None))
        self._app.notify(f"{printable(server)} restarts", markup=False)

    async def _reload(self) -> None:
        report = await self._view.client.ask(AskReload(), ReloadReport)
        words = "\n".join((report.plan or "nothing changed", *report.problems))
        self._app.notify(printable(words), markup=False)

    async def _run(self, *arguments: str) -> None:
        """Run a command of the program in place of the screen, as if it were typed."""
        with self._app.suspend():
            started = await asyncio.create_subprocess_exec(*self._program, *arguments)
            code = await started.wait()
        if code:
            words = f"`multitap {' '.join(arguments)}` failed"
            self._app.notify(words, severity="error", markup=False)

    def _read(self, title: str, text: str) -> None:
        self._app.push_screen(Reading(title, text))

    def _help(self) -> None:
        keys = "\n".join(f"{one.title}: {one.keys}" for one in places.PLACES if one.keys)
        self._read("Help", f"{HELP}\n\n{keys}\n\n1-6 places, f filter, q quit")
