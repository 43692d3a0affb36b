"""The terminal screen: its layout, keys and prompt line."""

import sys
from collections.abc import Coroutine, Sequence

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Input, Static

from multitap.errors import MultitapError
from multitap.printable import printable
from multitap.screens.gateway_client import GatewayClient
from multitap.screens.live_view import LiveView
from multitap.screens.terminal import places
from multitap.screens.terminal.board import Board
from multitap.screens.terminal.key_actions import KeyActions
from multitap.screens.terminal.row_list import RowList
from multitap.screens.typed_commands import typed_command

BEAT = 0.1
"""Seconds between two looks at the counters."""
SLOW_BEAT = 1.0
"""Seconds between two looks at all the rest."""


class Terminal(App[None]):
    """Shows one gateway.

    Args:
        client: The way to it.
        command: What runs this program again, for what has a dialogue of its own, such as a login.
    """

    CSS = """
    #title { height: 1; background: $panel; }
    #prompt { height: 1; border: none; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [  # noqa: RUF012 - as Textual declares them
        *(
            Binding(str(number), f"place({place.name!r})", place.title, show=False)
            for number, place in enumerate(places.PLACES, 1)
        ),
        Binding("f", "filter", "Filter"),
        Binding("slash", "prompt", "Command"),
        Binding("r", "act('again')", "Restart/replay"),
        Binding("e", "act('switch')", "On/off"),
        Binding("o", "act('login')", "Log in"),
        Binding("l", "act('log')", "Log"),
        Binding("c", "act('call')", "Call"),
        Binding("d", "act('compare')", "Compare"),
        Binding("t", "act('tools')", "Tools", show=False),
        Binding("question_mark", "act('help')", "Help"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, client: GatewayClient, command: Sequence[str] = ()) -> None:
        super().__init__()
        self.view = LiveView(client)
        self._board = Board(self.view)
        program = (*command,) or (sys.executable, "-m", "multitap")
        self._keys = KeyActions(self, self._board, self.view, program)

    def compose(self) -> ComposeResult:
        yield Static("multitap", id="title", markup=False)
        yield self._board
        yield Input(placeholder="/mcp, /call TOOL key=value, /help", id="prompt")
        yield Footer()

    def on_mount(self) -> None:
        self._board.list.focus()
        self.set_interval(BEAT, lambda: self._keep_up("pulse", self._take_pulse()))
        self.set_interval(SLOW_BEAT, self._look_again)
        self._look_again()

    def _keep_up(self, group: str, work: Coroutine[None, None, None]) -> None:
        """Look at something, unless the last look is not over yet."""
        if any(worker.group == group and worker.is_running for worker in self.workers):
            work.close()
        else:
            self.run_worker(work, group=group, exit_on_error=False)

    @on(Board.Visited)
    def _look_again(self) -> None:
        self._keep_up("look", self._look())

    async def _take_pulse(self) -> None:
        if await self.view.take_pulse():
            self._show()

    async def _look(self) -> None:
        await self.view.look(self._board.log_filter())
        self._show()

    def _show(self) -> None:
        self._board.show()
        self.query_one("#title", Static).update(printable(self.view.title))

    def _try(self, work: Coroutine[None, None, None]) -> None:
        """Do something that may fail, and say so if it does."""

        async def tried() -> None:
            try:
                await work
            except MultitapError as exc:
                self._complain(exc)

        self.run_worker(tried(), exit_on_error=False)

    def _complain(self, exc: MultitapError) -> None:
        hint = f"\n{exc.hint}" if exc.hint else ""
        self.notify(printable(f"{exc}{hint}"), severity="error", markup=False)

    @on(Board.FilterRefused)
    def _on_refused(self, event: Board.FilterRefused) -> None:
        self._complain(event.reason)

    @on(Input.Submitted, "#prompt")
    def _on_prompt(self, event: Input.Submitted) -> None:
        event.input.value = ""
        self._board.list.focus()
        if not event.value.strip():
            return
        try:
            command = typed_command(event.value)
        except MultitapError as exc:
            self._complain(exc)
        else:
            self._try(self._keys.obey(command))

    def action_place(self, name: str) -> None:
        self._board.visit(name)

    def action_filter(self) -> None:
        self._board.type_filter()

    def action_prompt(self) -> None:
        box = self.query_one("#prompt", Input)
        box.value = "/"
        self.screen.set_focus(box)  # at once: `focus` would let the next key pass by

    def action_act(self, verb: str) -> None:
        """Do what a key stands for, with the row that the cursor is on."""
        self._try(self._keys.act(verb))

    @on(RowList.Chosen)
    def _on_chosen(self) -> None:
        self._try(self._keys.act("open"))
