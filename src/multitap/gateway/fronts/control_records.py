"""How far a gateway has come, for `AskPulse`.

Apart from the other messages: commands that do not ask for it need no store.
"""

import msgspec

from multitap.store.call_records import CallRecord


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
