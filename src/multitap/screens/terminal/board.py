"""The middle of the screen: tabs, the current list, and details of the selected row."""

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import ContentSwitcher, Input, Static, Tab, Tabs

from multitap.errors import BadArguments
from multitap.gateway.fronts.control_messages import ToolLine
from multitap.printable import printable
from multitap.screens.live_view import LiveView
from multitap.screens.terminal import places
from multitap.screens.terminal.row_list import RowList
from multitap.screens.view_model import ServerRow
from multitap.store.call_records import CallRecord
from multitap.store.record_filter import EVERYTHING, RecordFilter


class Board(Vertical):
    """Shows one place at a time; each has a filter of its own.

    Args:
        view: What there is to show.
    """

    DEFAULT_CSS = """
    Board { height: 1fr; }
    Board Tabs { height: 2; }
    Board ContentSwitcher, Board RowList { height: 1fr; }
    Board #detail { height: auto; max-height: 6; padding: 0 1; }
    Board #filter { height: 1; border: none; padding: 0 1; }
    Board #filter.unused { display: none; }
    """

    class Visited(Message):
        """Another place is in sight."""

    class FilterRefused(Message):
        """The filter makes no sense."""

        def __init__(self, reason: BadArguments) -> None:
            super().__init__()
            self.reason = reason

    def __init__(self, view: LiveView) -> None:
        super().__init__()
        self._view = view
        self._filters: dict[str, RecordFilter] = {}

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
                yield RowList(place.header, name=place.name)
        yield Static("", id="detail", markup=False)

    @property
    def place(self) -> str:
        """The name of the place in sight."""
        return self.query_one(ContentSwitcher).current or places.SERVERS.name

    @property
    def list(self) -> RowList:
        """What is in sight."""
        return self._list(self.place)

    @property
    def server(self) -> ServerRow | None:
        """The server that the cursor is on."""
        current = self.list.current
        return self._view.server(current.key) if current and self._is(places.SERVERS) else None

    @property
    def call(self) -> CallRecord | None:
        """The call that the cursor is on."""
        current = self.list.current
        if current is None or not self._is(places.CALLS):
            return None
        records = self._view.recent.records
        return next((one for one in records if places.call_key(one) == current.key), None)

    @property
    def tool(self) -> ToolLine | None:
        """The tool that the cursor is on."""
        current = self.list.current
        return self._view.tools.get(current.key) if current and self._is(places.TOOLS) else None

    def visit(self, place: str, server: str | None = None) -> None:
        """Go to a place; with a server, look at that one only."""
        if server is not None:
            self._filters[place] = (
                RecordFilter.parse(f'server:"{server}"') if server else EVERYTHING
            )
        tabs = self.query_one(Tabs)
        if tabs.active == place:
            self._go(place)
        else:
            tabs.active = place

    def log_filter(self) -> str | None:
        """What to show of the log; None while it is not in sight."""
        return self._filter(places.LOG.name).text if self._is(places.LOG) else None

    def type_filter(self) -> None:
        """Let the person type a filter for the place."""
        box = self.query_one("#filter", Input)
        box.remove_class("unused")
        self.screen.set_focus(box)  # at once: `focus` would let the next key pass by

    def show(self) -> None:
        """Draw the place in sight as the view has it now."""
        view, wanted = self._view, self._filter(self.place)
        match self.place:
            case places.SERVERS.name:
                shown = [row for row in view.servers if wanted.matches(row.fields)]
                rows = places.of_servers(shown, view.recent)
            case places.CALLS.name:
                rows = places.of_calls(view.recent.records, lambda one: wanted.matches(one.fields))
            case places.TOOLS.name:
                found = [one for one in view.tools.values() if wanted.matches(places.fields(one))]
                rows = places.of_tools(found)
            case places.CLIENTS.name:
                rows = places.of_clients(view.figures.clients if view.figures else ())
            case places.LOG.name:
                rows = places.of_log(view.log)
            case _:
                rows = []
        self.list.show(rows)
        self._explain()

    @on(Tabs.TabActivated)
    def _on_tab(self, event: Tabs.TabActivated) -> None:
        if event.tab.id:
            self._go(event.tab.id)

    @on(Input.Submitted, "#filter")
    def _on_filter(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            self._filters[self.place] = RecordFilter.parse(event.value)
        except BadArguments as exc:
            self.post_message(self.FilterRefused(exc))
        else:
            self._go(self.place)

    @on(RowList.Moved)
    def _explain(self) -> None:
        """Say of the current row what is wrong, and which key helps."""
        words = next(one.keys for one in places.PLACES if one.name == self.place)
        if (server := self.server) and (server.reason or server.fix):
            words = places.advice(server)
        elif call := self.call:
            words = f"{places.phases(call).words}  {call.error or ''}"
        self.query_one("#detail", Static).update(printable(words))

    def _go(self, place: str) -> None:
        self.query_one(ContentSwitcher).current = place
        box = self.query_one("#filter", Input)
        box.value = self._filter(place).text
        box.set_class(not box.value, "unused")
        self.screen.set_focus(self.list)
        self.show()
        self.post_message(self.Visited())

    def _list(self, place: str) -> RowList:
        return self.query_one(ContentSwitcher).query_one(f"#{place}", RowList)

    def _filter(self, place: str) -> RecordFilter:
        return self._filters.get(place, EVERYTHING)

    def _is(self, place: places.Place) -> bool:
        return self.place == place.name
