"""The terminal screen: its layout, keys and prompt line."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress

from rich.cells import cell_len
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.worker import Worker

from multitap.control.methods import Control
from multitap.errors import MultitapError
from multitap.printable import printable
from multitap.screens.live_view import LiveView
from multitap.screens.terminal import places
from multitap.screens.terminal.actions import KeyActions
from multitap.screens.terminal.board import Board
from multitap.screens.terminal.row_list import RowList
from multitap.screens.terminal.windows import NOTHING, Desktop
from multitap.screens.typed_commands import complete, typed_command
from multitap.version import own_program

_GAP = 1
_LOOK = 0.005  # seconds between two checks
_STUCK = 10.0
"""Seconds. Queues and windows wait for nothing but the processor, however busy that is; only a
widget that is removed meanwhile does not answer."""
_NOTICED = 20.0  # seconds that a notice stays
BEAT = 1.0
"""Seconds between two refreshes of everything except the counters."""
WIDE = 150
"""Columns from which on details are beside the list."""
_WHAT_TO_ADD = (
    "Type an address, a package (npm:NAME, pypi:NAME), a name that `multitap search` finds, "
    "or NAME -- COMMAND. You see what it would run before anything starts."
)
_IN_THE_LIST = frozenset({"act", "place", "filter", "prompt", "quit"})
"""Actions whose keys do not work in an input line or a window."""


class KeyBar(Static):
    """Shows the keys of the current place and row; a click presses one.

    Textual's own footer has one line, and cuts what does not fit.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom; height: auto; color: $footer-foreground; background: $footer-background;
        link-style: none; link-color: $footer-foreground; link-background: $footer-background;
    }
    """

    def on_mount(self) -> None:
        changed = self.screen.bindings_updated_signal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        changed.subscribe(self, self._on_changed)  # pyright: ignore[reportUnknownMemberType]

    def _on_changed(self, _screen: object) -> None:
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        display = self.app.get_key_display  # pyright: ignore[reportUnknownMemberType]
        keys = [
            (binding.key, display(binding), binding.description)
            for _, binding, _, _ in self.screen.active_bindings.values()
            if binding.show
        ]
        lines = pack(
            ((key, f"{key_text} {label}") for key, key_text, label in keys), self.size.width
        )
        labels = {key: (key_text, label) for key, key_text, label in keys}
        rows = (
            Content(" " * _GAP).join(_button(key, *labels[key]) for key in line) for line in lines
        )
        self.update(Content("\n").join(rows))


def _button(key: str, key_text: str, label: str) -> Content:
    # with variables, because a key such as `[` would be read as markup
    return Content.from_markup(
        f"[@click=app.simulate_key('{key}')][$footer-key-foreground b]$key_text[/] $label[/]",
        key_text=key_text,
        label=label,
    )


def pack(items: Iterable[tuple[str, str]], width: int) -> Iterator[list[str]]:
    """The names of items in lines, none of which is wider, given the text of each."""
    line: list[str] = []
    used = 0
    for name, text in items:
        needs = cell_len(text) + (_GAP if line else 0)
        if line and used + needs > width:
            yield line
            line, used, needs = [], 0, cell_len(text)
        line.append(name)
        used += needs
    if line:
        yield line


class HangupDriver(LinuxDriver):
    """Writes to the terminal while it exists.

    Textual's own driver writes in a thread, which ends at the first error, and passes texts through
    a queue of 30. When that is full, the next write blocks the whole program forever.
    """

    def write(self, data: str) -> None:
        if self._can_write():
            super().write(data)

    def close(self) -> None:
        if self._can_write():
            super().close()

    def _can_write(self) -> bool:
        # not started yet, or still running; the driver itself reports a missing thread
        return self._writer_thread is None or self._writer_thread.is_alive()


class OrderedKeysApp(App[None]):
    """An app that handles keys in order, even if they arrive faster than it can follow.

    Textual passes each key from widget to widget through queues. Over a slow line, several keys
    arrive at once, and the second could be handled before the first is done: it would be typed
    into the wrong field, or act on another row.
    """

    longest = 0.3
    """Seconds that the action of a key may delay the next key; it may be waiting for a server."""

    def __init__(self) -> None:
        super().__init__()
        self._typed: asyncio.Queue[events.Key | events.Paste] = asyncio.Queue()
        self._begun: tuple[int, Worker[None] | None] = (1, None)
        """How many screens were open when the last action began, and the action."""

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            # unbounded: a paste arrives as one event, and nobody types thousands of keys ahead
            self._typed.put_nowait(event)
        else:
            await super().on_event(event)

    def begin(self, action: Coroutine[None, None, None]) -> None:
        """Start the action of a key; the next key waits until it is done or opens a window."""
        opened = len(self.screen_stack)
        self._begun = opened, self.run_worker(action, exit_on_error=False)

    async def handle_keys(self) -> None:
        """Handle keys until cancelled. Must not run in the app's own queue."""
        while True:
            typed = await self._typed.get()
            focused = self.focused
            await super().on_event(typed)
            with suppress(TimeoutError):
                await self._pass_on(focused)
                async with asyncio.timeout(self.longest):
                    while not self._is_done():
                        await asyncio.sleep(_LOOK)
                async with asyncio.timeout(_STUCK):
                    while not self._takes_keys():
                        await asyncio.sleep(_LOOK)

    async def _pass_on(self, focused: Widget | None) -> None:
        """Wait until a key has passed all queues on its way from the widget to the app."""
        async with asyncio.timeout(_STUCK):
            # twice: a key bubbles up to the app, which makes the widget act; the message
            # of the widget then bubbles up as well
            for _ in range(2):
                for node in focused.ancestors_with_self if focused else [self.screen]:
                    passed = asyncio.Event()
                    if node.call_later(passed.set):
                        await passed.wait()

    def _is_done(self) -> bool:
        """Whether the last action is done, or has opened a window."""
        opened, action = self._begun
        return action is None or len(self.screen_stack) != opened or action.is_finished

    def _takes_keys(self) -> bool:
        """Whether the top window is complete."""
        top = self.screen
        return top.is_mounted and (top.focused is not None or not top.focus_chain)


class CommandSuggester(Suggester):
    """Completes what is typed into the prompt line."""

    def __init__(self, view: LiveView) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._view = view

    async def get_suggestion(self, value: str) -> str | None:
        servers = [row.name for row in self._view.servers]
        return complete(value, servers, [*self._view.tools])


class Terminal(OrderedKeysApp):
    """Shows one gateway.

    Args:
        command: Runs this program again, for commands with their own dialogue, such as a login.
    """

    CSS = """
    #title { height: 1; background: $panel; }
    #prompt { height: 1; border: none; padding: 0 1; }
    .-wide #middle { layout: horizontal; }
    .-wide #middle ContentSwitcher { width: 3fr; }
    .-wide #detail { width: 2fr; height: 1fr; max-height: 100%; border-left: solid $primary; }
    """
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012 - as Textual has it
    BINDINGS = [  # noqa: RUF012 - as Textual declares them
        *(
            Binding(str(number), f"place({place.name!r})", place.title, show=False)
            for number, place in enumerate(places.PLACES, 1)
        ),
        *(Binding(key, f"act({verb!r})", description) for key, verb, description in places.KEYS),
        Binding("f", "filter", "Filter"),
        Binding("slash", "prompt", "Command", key_display="/"),
        Binding("question_mark", "act('help')", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False),
        Binding("escape", "to_list", show=False),
    ]

    def __init__(
        self,
        client: Control,
        command: Sequence[str] = (),
        desktop: Desktop = NOTHING,
        *,
        notice: str = "",
    ) -> None:
        super().__init__()
        self._notice = notice
        self.view = LiveView(client)
        self._board = Board(self.view)
        program = (*command,) or own_program()
        self._keys = KeyActions(self, self._board, self.view, program, desktop)

    def get_driver_class(self) -> type[Driver]:
        # Windows has no SIGHUP, and its terminals do not end before their programs
        if sys.platform == "win32":
            return super().get_driver_class()

        return HangupDriver

    def compose(self) -> ComposeResult:
        yield Static("multitap: connecting", id="title", markup=False)
        yield self._board
        yield Input(
            placeholder="/mcp, /call TOOL key=value, /help",
            id="prompt",
            suggester=CommandSuggester(self.view),
            select_on_focus=False,
        )
        yield KeyBar()

    def on_mount(self) -> None:
        self._board.list.focus()
        self.run_worker(self.handle_keys(), group="keys")
        # two groups of workers: a slow refresh of the rest does not delay the counters
        self.run_worker(self._follow(), group="pulse", exit_on_error=False)
        self.set_interval(BEAT, self._look_again)
        self._look_again()
        if self._notice:
            text = printable(self._notice)
            self.notify(text, severity="error", timeout=_NOTICED, markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key works in the current place; the last line shows those that do."""
        if action not in _IN_THE_LIST:
            return True
        if len(self.screen_stack) > 1 or isinstance(self.focused, Input):
            return False
        verb = parameters[0] if action == "act" and parameters else "help"
        return verb == "help" or (verb in self._board.place.verbs and self._helps(verb))

    def _helps(self, verb: object) -> bool:
        """Whether a verb has an effect now: a narrow terminal has room for few keys."""
        match verb:
            case "trust":
                return bool(self.view.withheld)
            case "import":
                return not self.view.servers
            case "login":
                server = self._board.selected.server
                return server is not None and server.key == "o"
            case _:
                return verb in places.WITHOUT_ROW or self._board.list.current is not None

    def _keep_up(self, group: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start a refresh, unless the last one is still running."""
        if not any(worker.group == group and worker.is_running for worker in self.workers):
            # Textual would end the whole app on the first error of a worker
            self.run_worker(work, group=group, exit_on_error=False)

    def refresh_bindings(self) -> None:
        # the clock may beat once more, and the cursor move, while the app ends
        if self.screen_stack:
            super().refresh_bindings()

    @on(Board.Visited)
    def _look_again(self) -> None:
        self.refresh_bindings()
        if self.screen_stack:
            self._keep_up("look", self._look)

    async def _follow(self) -> None:
        async with aclosing(self.view.follow()) as beats:
            async for _ in beats:
                self._show()
                if self.view.has_new_tools:
                    self._look_again()

    async def _look(self) -> None:
        board = self._board
        await self.view.look(
            calls=board.filter_of(places.CALLS),
            log=board.filter_of(places.LOG),
            audit=board.filter_of(places.ACCESS),
            tasks=board.place is places.TASKS,
        )
        self._show()

    def _show(self) -> None:
        self._board.show()
        # not `self.screen`: a window may be open on top, which has no title
        self.screen_stack[0].query_one("#title", Static).update(printable(self.view.title))

    def _try(self, work: Coroutine[None, None, None]) -> None:
        """Run an action that may fail, and show the error if it does."""

        async def tried() -> None:
            try:
                await work
            except MultitapError as exc:
                self._complain(exc)

        self.begin(tried())

    def _complain(self, exc: MultitapError) -> None:
        hint = f"\n{exc.hint}" if exc.hint else ""
        self.notify(printable(f"{exc}{hint}"), severity="error", markup=False)

    @on(Board.InvalidFilter)
    def _on_refused(self, event: Board.InvalidFilter) -> None:
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

    def action_prompt(self, start: str = "/") -> None:
        box = self.query_one("#prompt", Input)
        box.value = start
        box.cursor_position = len(start)  # otherwise the next letter would go before it
        self.screen.set_focus(box)

    def action_to_list(self) -> None:
        """Move the focus from an input line to the list."""
        self.query_one("#prompt", Input).value = ""
        self._board.leave_filter()

    def action_act(self, verb: str) -> None:
        """Run the action of a key on the row under the cursor."""
        if verb == "add":
            self.action_prompt("/mcp add ")
            self.notify(_WHAT_TO_ADD, markup=False)
        else:
            self._try(self._keys.act(verb))

    @on(RowList.CursorMoved)
    def _on_moved(self) -> None:
        self.refresh_bindings()  # some keys are for certain rows only

    @on(RowList.Chosen)
    def _on_chosen(self) -> None:
        self._try(self._keys.act("open"))
