"""The data of a screen: counters many times a second, everything else every second."""

import msgspec

from multitap.gateway.fronts.control_messages import About, Figures, GatewayState
from multitap.gateway.person_questions import OpenQuestion
from multitap.store.call_records import CallRecord


class GatewayOverview(msgspec.Struct, frozen=True):
    """One gateway at one moment."""

    about: About
    state: GatewayState
    figures: Figures
    questions: tuple[OpenQuestion, ...]
    """Questions that wait for a person."""


class Pulse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The counters of a gateway, and its latest calls."""

    made: int
    """Calls since it started."""
    records: tuple[CallRecord, ...]
    """The latest of them, oldest first."""
    revision: int
    """The revision of the catalog."""
    in_flight: int
    """Calls in progress."""
    overview: GatewayOverview | None = None
    """Everything else; sent once a second."""
