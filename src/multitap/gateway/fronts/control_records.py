"""Pages of past calls and events, for `AskCalls` and `AskLog`.

Apart from the other messages: commands that ask for neither need no store.
"""

import msgspec

from multitap.store.call_records import CallRecord
from multitap.store.log_records import Happening


class CallsPage(msgspec.Struct, frozen=True):
    """Some calls, newest first."""

    records: tuple[CallRecord, ...]
    cursor: str | None = None
    """Where the next page begins; None after the last."""


class Pulse(msgspec.Struct, frozen=True):
    """How far a gateway has come."""

    made: int
    """Calls since it started."""
    records: tuple[CallRecord, ...]
    """The latest of them, oldest first."""
    revision: int
    """Of the catalog."""
    in_flight: int
    """Calls under way."""


class HappeningsPage(msgspec.Struct, frozen=True):
    """Some of what happened, newest first."""

    records: tuple[Happening, ...]
    cursor: str | None = None
