"""What a screen shows of a gateway: the counters many times a second, all the rest every second."""

import msgspec

from multitap.gateway.fronts.control_messages import About, Figures, GatewayPicture
from multitap.gateway.person_questions import OpenQuestion
from multitap.store.call_records import CallRecord


class GatewayOverview(msgspec.Struct, frozen=True):
    """One gateway at one moment."""

    about: About
    picture: GatewayPicture
    figures: Figures
    questions: tuple[OpenQuestion, ...]
    """What waits for a person."""


class Pulse(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a gateway has come."""

    made: int
    """Calls since it started."""
    records: tuple[CallRecord, ...]
    """The latest of them, oldest first."""
    revision: int
    """Of the catalog."""
    in_flight: int
    """Calls under way."""
    overview: GatewayOverview | None = None
    """All the rest, now and then."""
