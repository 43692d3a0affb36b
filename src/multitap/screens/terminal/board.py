"""The middle of the screen: tabs, the current list, and details of the selected row."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widgets import ContentSwitcher, Input, Static, Tab, Tabs

from multitap.control.messages import TaskLine, ToolLine
from multitap.errors import BadArguments
from multitap.printable import printable
from multitap.screens.live_view import LiveView, name_few
from multitap.screens.terminal import places
from multitap.screens.terminal.places import (
    AccessItem,
    ScreenPlace,
    access_items,
    access_row,
    access_words,
)
from multitap.screens.terminal.row_list import RowList
from multitap.screens.view import ClientRow, ServerRow, client_rows
from multitap.store.queries import EVERYTHING, RecordFilter
from multitap.store.tables import CallRecord


class Selection:
    """The row under the cursor, as a value of its place.

    Args:
        key: The key of the row under the cursor, if that place is visible.
    """

    def __init__(
        self,
        view: LiveView,
        key: Callable[[ScreenPlace], str | None],
        clients: Callable[[], Sequence[ClientRow]],
    ) -> None:
        self._view = view
        self._key = key
        self._clients = clients

    @property
    def server(self) -> ServerRow | None:
        """The server under the cursor."""
        key = self._key(places.SERVERS)
        return None if key is None else self._view.server(key)

    @property
    def call(self) -> CallRecord | None:
        """The call under the cursor."""
        key = self._key(places.CALLS)
        if key is None:
            return None
        return next((record for record in self._view.calls if places.call_key(record) == key), None)

    @property
    def tool(self) -> ToolLine | None:
        """The tool under the cursor."""
        key = self._key(places.TOOLS)
        return None if key is None else self._view.tools.get(key)

    @property
    def client(self) -> ClientRow | None:
        """The client under the cursor."""
        key = self._key(places.CLIENTS)
        numbered = enumerate(self._clients())
        return next((row for number, row in numbered if f"{row.caller} {number}" == key), None)

    @property
    def task(self) -> TaskLine | None:
        """The task under the cursor."""
        key = self._key(places.TASKS)
        return None if key is None else self._view.tasks.get(key)

    @property
    def access(self) -> AccessItem | None:
        """The item under the cursor in the Access place."""
        key = self._key(places.ACCESS)
        items = access_items(self._view, EVERYTHING)
        return next((item for item_key, item in items if item_key == key), None)


class Board(Vertical):
    """Shows one place at a time; each has its own filter."""

    DEFAULT_CSS = """
    Board { height: 1fr; }
    Board Tabs { height: 2; }
    Board ContentSwitcher, Board RowList { height: 1fr; }
    Board #middle { height: 1fr; }
    Board #detail { height: auto; max-height: 6; padding: 0 1; }
    Board #filter { height: 1; border: none; padding: 0 1; }
    Board #filter.unused { display: none; }
    """

    class Visited(Message):
        """Another place is shown."""

    class InvalidFilter(Message):
        """The filter is not valid."""

        def __init__(self, reason: BadArguments) -> None:
            super().__init__()
            self.reason = reason

    def __init__(self, view: LiveView) -> None:
        super().__init__()
        self._view = view
        self._filters: dict[str, RecordFilter] = {}
        self.selected = Selection(view, self._key, self._clients)
        """The row under the cursor."""

    def compose(self) -> ComposeResult:
        yield Tabs(
            *(
                Tab(f"{number} {place.title}", id=place.name)
                for number, place in enumerate(places.PLACES, 1)
            )
        )
        hint = "server:NAME status:error >500ms text"
        yield Input(placeholder=hint, id="filter", classes="unused")
        with Container(id="middle"):
            with ContentSwitcher(initial=places.SERVERS.name):
                for place in places.PLACES:
                    yield RowList(
                        place.header, name=place.name, spare=place.spare, drawn=place.drawn
                    )
            # below the list; beside it in a wide terminal, with more in it
            yield Static("", id="detail", markup=False)

    @property
    def place(self) -> ScreenPlace:
        """The current place."""
        return places.place_named(self.query_one(ContentSwitcher).current or places.SERVERS.name)

    @property
    def list(self) -> RowList:
        """The current list."""
        return self.query_one(ContentSwitcher).query_one(f"#{self.place.name}", RowList)

    def visit(self, place: str, filter_text: str | None = None) -> None:
        """Go to a place.

        Args:
            filter_text: The filter to use there; None keeps the current one.
        """
        if filter_text is not None:
            self._filters[place] = RecordFilter.parse(filter_text) if filter_text else EVERYTHING
        self._go(place)
        self.query_one(Tabs).active = place

    def filter_of(self, place: ScreenPlace) -> str | None:
        """The filter of a place; None while it is not visible."""
        return self._filter(place.name).text if self.place is place else None

    def type_filter(self) -> None:
        """Let the person type a filter for the place."""
        box = self.query_one("#filter", Input)
        box.remove_class("unused")
        self.screen.set_focus(box)

    def leave_filter(self) -> None:
        """Go back to the list; an empty filter is not shown."""
        box = self.query_one("#filter", Input)
        box.set_class(not box.value, "unused")
        self.screen.set_focus(self.list)

    def show(self) -> None:
        """Draw the current place with the latest state."""
        view, record_filter = self._view, self._filter(self.place.name)
        match self.place:
            case places.SERVERS:
                servers = [row for row in view.servers if record_filter.matches(row.fields)]
                rows = places.server_lines(servers, view.recent)
            case places.CALLS:
                rows = places.call_lines(
                    view.calls, lambda call: record_filter.matches(call.fields)
                )
            case places.TOOLS:
                rows = places.tool_lines(
                    tool
                    for tool in view.tools.values()
                    if record_filter.matches(places.tool_fields(tool))
                )
            case places.CLIENTS:
                rows = places.client_lines(self._clients())
            case places.TASKS:
                rows = places.task_lines(
                    task
                    for task in view.tasks.values()
                    if record_filter.matches(places.task_fields(task))
                )
            case places.LOG:
                rows = places.log_lines(view.log)
            case _:
                rows = [access_row(*item) for item in access_items(view, record_filter)]
        self.list.show(rows, "" if rows else self._nothing())
        self._explain()

    @on(Tabs.TabActivated)
    def _on_tab(self, event: Tabs.TabActivated) -> None:
        # `visit` sets the tab itself, which comes back here
        if event.tab.id and event.tab.id != self.place.name:
            self._go(event.tab.id)

    @on(Input.Submitted, "#filter")
    def _on_filter(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            self._filters[self.place.name] = RecordFilter.parse(event.value)
        except BadArguments as exc:
            self.post_message(self.InvalidFilter(exc))
        else:
            self._go(self.place.name)

    @on(Input.Changed, "#filter")
    def _on_filter_typed(self, event: Input.Changed) -> None:
        """Apply the filter as it is typed; an unfinished term changes nothing."""
        event.stop()
        with suppress(BadArguments):
            self._filters[self.place.name] = RecordFilter.parse(event.value)
            self.show()

    @on(RowList.CursorMoved)
    def _explain(self) -> None:
        """Show what is wrong with the current row, and which key helps."""
        # Textual sets the class: see `HORIZONTAL_BREAKPOINTS` of the app
        is_wide, view, text = self.screen.has_class("-wide"), self._view, ""
        if server := self.selected.server:
            text = places.server_words(server)
            if is_wide:
                text += places.server_story(server, view.tools.values(), view.calls)
        elif call := self.selected.call:
            text = places.call_words(call)
        elif tool := self.selected.tool:
            text = places.tool_story(tool) if is_wide else tool.description
        elif client := self.selected.client:
            text = places.client_words(client)
        elif task := self.selected.task:
            text = places.task_words(task)
        elif item := self.selected.access:
            text = access_words(item)
        self.query_one("#detail", Static).update(printable(text))

    def _nothing(self) -> str:
        """Why the list is empty, and what to do."""
        view = self._view
        # before the gateway has answered, nobody knows whether there is anything
        if not view.has_answered:
            return view.trouble or "Connecting to the gateway…"
        if self._filter(self.place.name).text:
            return "Nothing matches the filter; f changes it."
        starting = [row.name for row in view.servers if row.state in {"connecting", "waiting"}]
        if self.place is places.TOOLS and (starting or view.has_new_tools):
            return f"Servers are starting: {name_few(starting)}" if starting else "Loading…"
        return self.place.empty

    def _clients(self) -> Sequence[ClientRow]:
        record_filter = self._filter(places.CLIENTS.name)
        rows = client_rows(self._view.figures, self._view.recent)
        return [row for row in rows if record_filter.matches(row.fields)]

    def _go(self, place: str) -> None:
        self.query_one(ContentSwitcher).current = place
        box = self.query_one("#filter", Input)
        box.value = self._filter(place).text
        box.set_class(not box.value, "unused")
        self.screen.set_focus(self.list)
        # at once with the known state; the rest comes with the next refresh
        self.show()
        self.post_message(self.Visited())

    def _filter(self, place: str) -> RecordFilter:
        return self._filters.get(place, EVERYTHING)

    def _key(self, place: ScreenPlace) -> str | None:
        """The key of the row under the cursor, if the place is visible."""
        current = self.list.current
        return current.key if current and self.place is place else None
