"""The item under the cursor: a server, a call, a tool, a client, or an item in Access."""

from collections.abc import Callable, Sequence

from multitap.gateway.fronts.control_messages import ToolLine
from multitap.screens.live_view import LiveView
from multitap.screens.terminal import place_rows, places
from multitap.screens.terminal.access_rows import AccessItem, access_items
from multitap.screens.terminal.places import ScreenPlace
from multitap.screens.view_model import ClientRow, ServerRow
from multitap.store.call_records import CallRecord
from multitap.store.record_filter import EVERYTHING


class Selection:
    """The row under the cursor, as a value of its place.

    Args:
        view: The state of the gateway.
        key: The key of the row under the cursor, if that place is visible.
        clients: The clients that are listed.
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
        return next((one for one in self._view.calls if place_rows.call_key(one) == key), None)

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
        return next((one for number, one in numbered if f"{one.caller} {number}" == key), None)

    @property
    def access(self) -> AccessItem | None:
        """The item under the cursor in the Access place."""
        key = self._key(places.ACCESS)
        items = access_items(self._view, EVERYTHING)
        return next((item for one, item in items if one == key), None)
