"""The middle of the screen: tabs, the current list, and details of the selected row."""

from collections.abc import Sequence
from contextlib import suppress

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import ContentSwitcher, Input, Static, Tab, Tabs

from multitap.errors import BadArguments
from multitap.printable import printable
from multitap.screens.live_view import LiveView
from multitap.screens.terminal import place_rows, places
from multitap.screens.terminal.access_rows import access_items, access_words, of_access
from multitap.screens.terminal.places import ScreenPlace
from multitap.screens.terminal.row_list import RowList
from multitap.screens.terminal.selection import Selection
from multitap.screens.view_model import ClientRow, client_rows
from multitap.store.record_filter import EVERYTHING, RecordFilter


class Board(Vertical):
    """Shows one place at a time; each has its own filter."""

    DEFAULT_CSS = """
    Board { height: 1fr; }
    Board Tabs { height: 2; }
    Board ContentSwitcher, Board RowList { height: 1fr; }
    Board #detail { height: auto; max-height: 6; padding: 0 1; }
    Board #filter { height: 1; border: none; padding: 0 1; }
    Board #filter.unused { display: none; }
    """

    class Visited(Message):
        """Another place is shown."""

    class FilterRefused(Message):
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
        with ContentSwitcher(initial=places.SERVERS.name):
            for place in places.PLACES:
                yield RowList(place.header, name=place.name, spare=place.spare)
        yield Static("", id="detail", markup=False)

    @property
    def place(self) -> ScreenPlace:
        """The current place."""
        return places.place_named(self.query_one(ContentSwitcher).current or places.SERVERS.name)

    @property
    def list(self) -> RowList:
        """The current list."""
        return self.query_one(ContentSwitcher).query_one(f"#{self.place.name}", RowList)

    def visit(self, place: str, shown: str | None = None) -> None:
        """Go to a place.

        Args:
            place: Its name.
            shown: The filter to use there; None keeps the current one.
        """
        if shown is not None:
            self._filters[place] = RecordFilter.parse(shown) if shown else EVERYTHING
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
        view, wanted = self._view, self._filter(self.place.name)
        match self.place:
            case places.SERVERS:
                shown = [row for row in view.servers if wanted.matches(row.fields)]
                rows = place_rows.of_servers(shown, view.recent)
            case places.CALLS:
                rows = place_rows.of_calls(view.calls, lambda one: wanted.matches(one.fields))
            case places.TOOLS:
                rows = place_rows.of_tools(
                    one
                    for one in view.tools.values()
                    if wanted.matches(place_rows.tool_fields(one))
                )
            case places.CLIENTS:
                rows = place_rows.of_clients(self._clients())
            case places.LOG:
                rows = place_rows.of_log(view.log)
            case _:
                rows = [of_access(*one) for one in access_items(view, wanted)]
        self.list.show(rows)
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
            self.post_message(self.FilterRefused(exc))
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
        words = "" if self.list.current else self._nothing()
        if server := self.selected.server:
            words = place_rows.server_words(server)
        elif call := self.selected.call:
            words = place_rows.call_words(call)
        elif tool := self.selected.tool:
            words = tool.description
        elif client := self.selected.client:
            words = place_rows.client_words(client)
        elif item := self.selected.access:
            words = access_words(item)
        self.query_one("#detail", Static).update(printable(words))

    def _nothing(self) -> str:
        if self._filter(self.place.name).text:
            return "Nothing matches the filter; `f` changes it."
        # before the gateway has answered, nobody knows whether there is anything
        return self.place.empty if self._view.has_answered else ""

    def _clients(self) -> Sequence[ClientRow]:
        wanted = self._filter(places.CLIENTS.name)
        rows = client_rows(self._view.figures, self._view.recent)
        return [row for row in rows if wanted.matches(row.fields)]

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
