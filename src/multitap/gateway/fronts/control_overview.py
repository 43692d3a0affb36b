"""All that a screen shows of a gateway at a glance, in one answer."""

import msgspec

from multitap.gateway.fronts.control_messages import About, Figures, GatewayPicture
from multitap.gateway.person_questions import OpenQuestion


class GatewayOverview(msgspec.Struct, frozen=True):
    """One gateway at one moment."""

    about: About
    picture: GatewayPicture
    figures: Figures
    questions: tuple[OpenQuestion, ...]
    """What waits for a person."""
