"""The actions of keys and typed commands."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec
from textual.app import App

from multitap.config.durations import seconds
from multitap.control.messages import ReloadReport, TaskLine, ToolLine
from multitap.control.overview import AuditRow, PinReview, TokenLine
from multitap.errors import MultitapError
from multitap.gateway.person_questions import OpenQuestion
from multitap.printable import printable
from multitap.screens.live_view import LiveView
from multitap.screens.terminal import places
from multitap.screens.terminal.board import Board
from multitap.screens.terminal.call_dialog import CallDialog
from multitap.screens.terminal.places import AccessItem, review_text, token_rights
from multitap.screens.terminal.windows import (
    Desktop,
    FormWindow,
    ReviewWindow,
    TextWindow,
    ask_person,
)
from multitap.screens.typed_commands import HELP, TypedCommand
from multitap.screens.view import ServerRow, stats_words
from multitap.store.tables import CallRecord, indent_json

_NEW_TOKEN: Mapping[str, Any] = {
    "properties": {
        "name": {"type": "string", "description": "who gets it", "maxLength": 64},
        "profile": {"type": "string", "description": "of the configuration; all if not given"},
        "allow": {"type": "string", "description": "tools, as globs separated by commas"},
        "expires": {"type": "string", "description": "after how long, such as 12h or 90d"},
        "rate": {"type": "string", "description": "of its calls, such as 10/s"},
    },
    "required": ["name"],
}


class AccessActions:
    """Acts on the rows of the Access place.

    Every method may raise a `MultitapError`, which says why it could not be done.
    """

    def __init__(self, app: App[None], view: LiveView, desktop: Desktop) -> None:
        self._app = app
        self._view = view
        self._desktop = desktop

    async def act(self, verb: str, item: AccessItem | None) -> None:
        """Run the action of a key; does nothing if it does not apply."""
        match verb, item:
            case "new", _:
                await self._create()
            case "revoke", TokenLine():
                self._ask_to_revoke(item)
            case "open", OpenQuestion():
                await self._answer(item)
            case "open", PinReview():
                self._review(item)
            case "open", TokenLine():
                self._app.push_screen(TextWindow(f"token {item.name}", _list_fields(item)))
            case "open", AuditRow():
                self._app.push_screen(TextWindow(f"entry {item.entry}", _list_fields(item.record)))
            case _:
                pass

    async def _answer(self, question: OpenQuestion) -> None:
        result, refusal = await ask_person(
            self._app, self._desktop, question.server, question.method, question.params
        )
        if not await self._view.client.answer_question(question.number, result, refusal):
            raise MultitapError("the question was answered elsewhere, or cancelled")

    def _review(self, review: PinReview) -> None:
        async def decide(accepted: bool) -> None:  # noqa: FBT001 - as windows say it
            if accepted:
                # the digest of what was shown: if it has changed meanwhile, nothing is accepted
                await self._view.client.accept_pins(review.server, review.digest)
                self._say(f"the tools of {review.server} are accepted as shown")
            else:
                self._say("they stay withheld; e in Servers disables the whole server")

        labels = ("accept", "keep them withheld")
        title = f"changed tools of {review.server}"
        self._app.push_screen(ReviewWindow(title, review_text(review), labels, decide))

    def _ask_to_revoke(self, token: TokenLine) -> None:
        async def decide(accepted: bool) -> None:  # noqa: FBT001 - as windows say it
            if accepted:
                await self._view.client.revoke_token(token.id)
                self._say(f"{token.name} is revoked; its clients are refused from now on")

        text = f"{token.name} (id {token.id}): {token_rights(token)}"
        self._app.push_screen(ReviewWindow("Revoke a token", text, ("revoke", "keep"), decide))

    async def _create(self) -> None:
        form = FormWindow("New token", "A client sends it to be let in.", _NEW_TOKEN)
        filled = await self._app.push_screen_wait(form)
        if filled is None:
            return
        created = await self._view.client.create_token(
            name=filled["name"],
            profile=filled.get("profile"),
            allow=_split(filled.get("allow")),
            lasts=_seconds(filled.get("expires")),
            rate=filled.get("rate"),
        )
        text = (
            f"{created.token}\n\nIt is not shown again. Send it as `Authorization: Bearer TOKEN`."
        )
        self._app.push_screen(TextWindow(f"token {filled['name']}", text))

    def _say(self, message: str) -> None:
        self._app.notify(printable(message), markup=False)


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _seconds(expires: str | None) -> float | None:
    try:
        return None if expires is None else seconds(expires, bare="s")
    except ValueError:
        raise MultitapError(f"{expires!r} is not a duration", hint="such as 12h") from None


def _list_fields(value: msgspec.Struct) -> str:
    fields: Mapping[str, object] = msgspec.to_builtins(value)
    return "\n".join(f"{name}: {content}" for name, content in fields.items() if content)


_KEYS = """
1-7        go to a place; Tab and the mouse do, too
arrows     move; also j, k, Home, End, Page up and down
Enter      open the row, or click it twice
f          filter what is listed: server:github status:error >500ms text
/          type a command
Esc        back to the list; close a window
q          leave"""


_COMMANDS = frozenset({"add", "import", "remove", "rename"})
"""What has its own dialogue at the prompt: it shows what would change, and asks."""


class KeyActions:
    """Acts on the row under the cursor, or on the object of a command.

    Every method may raise a `MultitapError`, which says why it could not be done.
    """

    def __init__(
        self,
        app: App[None],
        board: Board,
        view: LiveView,
        program: Sequence[str],
        desktop: Desktop,
    ) -> None:
        self._app = app
        self._board = board
        self._view = view
        self._program = program
        self._calling = CallDialog(app, view, desktop)
        self._access = AccessActions(app, view, desktop)

    async def act(self, verb: str) -> None:
        """Run the action of a key; does nothing if it does not apply."""
        if verb == "help":
            self._help()
        elif verb == "trust":
            await self._trust()
        elif verb == "import":
            await self._change(TypedCommand("import"))
        elif server := self._board.selected.server:
            await self._on_server(verb, server)
        elif call := self._board.selected.call:
            await self._on_call(verb, call)
        elif tool := self._board.selected.tool:
            await self._on_tool(verb, tool)
        else:
            await self._on_other(verb)

    async def _on_other(self, verb: str) -> None:
        if task := self._board.selected.task:
            await self._on_task(verb, task)
        elif self._board.place is places.ACCESS:
            await self._access.act(verb, self._board.selected.access)
        elif client := self._board.selected.client:
            self._board.visit(places.CALLS.name, f'{client.kind}:"{client.caller}"')
        elif verb == "open" and (row := self._board.list.current):
            self._read(self._board.place.title, "\n".join(filter(None, row.cells)))

    async def obey(self, command: TypedCommand) -> None:
        """Run a typed command."""
        if command.verb in _COMMANDS:
            await self._change(command)
            return
        match command.verb:
            case "servers":
                self._board.visit(places.SERVERS.name)
            case "tools" | "logs":
                place = places.TOOLS if command.verb == "tools" else places.LOG
                about = command.about and self._require_server(command.about)
                # quoted, because a name may have spaces
                self._board.visit(place.name, f'server:"{about}"' if about else "")
            case "stats":
                self._show_stats()
            case "call":
                await self._calling.call_typed(command)
            case "restart" | "login" | "enable" | "disable":
                await self._manage(command.verb, self._require_server(command.about))
            case "reload":
                await self._reload()
            case "help":
                self._help()
            case _:
                self._app.exit()

    async def _on_server(self, verb: str, server: ServerRow) -> None:
        match verb:
            case "restart" | "login":
                await self._manage(verb, server.name)
            case "switch":
                verb = "enable" if server.state == "disabled" else "disable"
                await self._manage(verb, server.name)
            case "tools":
                self._board.visit(places.TOOLS.name, f'server:"{server.name}"')
            case "log":
                self._show_stderr(server.name)
            case "open":
                self._read(server.name, f"{server.state}\n\n{places.server_words(server)}")
            case _:
                pass

    async def _on_call(self, verb: str, call: CallRecord) -> None:
        match verb:
            case "replay":
                await self._calling.replay(call)
            case "compare":
                await self._calling.compare(call)
            case "open":
                text = f"{places.call_words(call)}\n\n{await self._view.exchange_text(call)}"
                self._read(f"{call.server} {call.tool}: {call.outcome.value}", text)
            case _:
                pass

    async def _on_tool(self, verb: str, tool: ToolLine) -> None:
        if verb == "call":
            await self._calling.fill_and_call(tool)
        elif verb == "open":
            schema = json.dumps(tool.input_schema, indent=2, ensure_ascii=False)
            self._read(tool.name, f"{tool.description}\n\n{schema}")

    async def _on_task(self, verb: str, task: TaskLine) -> None:
        if verb == "cancel":
            ended = await self._view.client.cancel_task(task.id)
            self._app.notify(printable(f"{ended.name} is {ended.status}"), markup=False)
        elif verb == "open":
            whole = await self._view.client.task(task.id)
            text = f"{whole.status}\n{places.task_words(whole)}"
            if bytes(whole.result) != b"null":
                text += f"\n\n{indent_json(bytes(whole.result).decode())}"
            self._read(task.name, text)

    async def _manage(self, verb: str, server: str) -> None:
        client = self._view.client
        match verb:
            case "restart":
                await client.restart(server)
                self._app.notify(f"{printable(server)} restarts", markup=False)
            case "login":
                await self._run("login", server)
            case _:
                self._report(await client.switch(server, on=verb == "enable"))

    async def _trust(self) -> None:
        """Show the project of the row under the cursor, or the first one, and ask."""
        server = self._board.selected.server
        projects = [part.project for part in self._view.withheld]
        project = server.project if server and server.project else next(iter(projects), None)
        if project is None:
            raise MultitapError("there is no project that has to be trusted")
        await self._run("trust", project)
        # the gateway would notice by itself, but a person is waiting
        await self._view.client.reload()

    async def _change(self, command: TypedCommand) -> None:
        """Run a command that changes files, keep what it printed, and use the new files."""
        if command.verb in {"remove", "rename"}:
            self._require_server(command.about)
        await self._run(command.verb, *command.words, wait=True)
        await self._view.client.reload()

    async def _reload(self) -> None:
        self._report(await self._view.client.reload())

    def _report(self, report: ReloadReport) -> None:
        message = "\n".join(
            (report.plan or "nothing changed", *report.problems, report.gap)
        ).strip()
        self._app.notify(printable(message), markup=False)

    def _show_stats(self) -> None:
        figures = self._view.figures.servers if self._view.figures else {}
        text = stats_words({name: figure.total for name, figure in figures.items()})
        self._read("Calls since the start", text or "There were no calls yet.")

    def _show_stderr(self, server: str) -> None:
        async def read_stderr() -> str:
            text = await self._view.client.stderr(server)
            return text or "it has not written anything"

        self._app.push_screen(TextWindow(f"stderr of {server}", source=read_stderr))

    async def _run(self, *arguments: str, wait: bool = False) -> None:
        """Suspend the screen and run a command of the program, as if it were typed.

        `wait` keeps its output until the person presses Enter, even if it succeeds.
        """
        # a login prints, asks and may open a browser: it needs the terminal for itself
        with self._app.suspend():
            started = await asyncio.create_subprocess_exec(*self._program, *arguments)
            try:
                code = await started.wait()
            finally:
                if started.returncode is None:  # the screen is closing: leave nothing running
                    started.terminate()
            if code or wait:
                await _wait_for_enter()

    def _require_server(self, server: str) -> str:
        """The name of a server.

        Raises:
            MultitapError: There is none of that name.
        """
        if self._view.server(server) is None:
            names = ", ".join(row.name for row in self._view.servers)
            raise MultitapError(f"no server named {server!r}", hint=f"there are: {names}")
        return server

    def _read(self, title: str, text: str) -> None:
        self._app.push_screen(TextWindow(title, text))

    def _help(self) -> None:
        verbs = self._board.place.verbs
        here = "\n".join(f"{key:10} {label}" for key, verb, label in places.KEYS if verb in verbs)
        self._read("Help", f"{self._board.place.title}\n{here}\n{_KEYS}\n\n{HELP}")


async def _wait_for_enter() -> None:
    """Keep the output of a command on screen until the person has read it."""
    if sys.__stdin__ is None or sys.__stdout__ is None:
        return
    print("\nPress Enter to go back to the screen.", file=sys.__stdout__, flush=True)
    await anyio.wait_readable(sys.__stdin__)
    # input that was typed meanwhile is not meant for the screen
    os.read(sys.__stdin__.fileno(), 4096)
