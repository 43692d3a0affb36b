"""Decides how much a server is confined."""

from collections.abc import Mapping
from typing import Literal

from multitap.config.models import StdioServer
from multitap.config.provenance import STANDINGS, Level
from multitap.records import dataclass

ShownLevel = Literal["off", "guard", "strict", "container"]
"""`container`: the program is a container engine's client, under `guard`, with its socket open."""
_STRENGTH: Mapping[Level, int] = {"off": 0, "guard": 1, "strict": 2}


@dataclass(frozen=True, slots=True)
class Confinement:
    """How much a server is confined, and why."""

    level: ShownLevel
    reason: str
    is_required: bool = False
    """Whether it must not start on a machine that cannot confine it."""

    @property
    def confined(self) -> bool:
        return self.level != "off"


def decide(
    config: StdioServer,
    unsupported: str | None,
    default: Level = "guard",
    *,
    program: str | None = None,  # noqa: ARG001 - decides about containers
) -> Confinement:
    """How much to confine a server.

    Args:
        config: The server.
        unsupported: Why this machine cannot confine anything; None if it can.
        default: The level of servers that the person did not write.
        program: The file of its command, if that is known.
    """
    standing = STANDINGS[config.provenance]
    usual: Level = default if standing.is_confined else "off"
    if config.home.level is not None:
        level, reason = config.home.level, "you chose it"
    elif config.sandbox == "auto":
        level = usual
        reason = (
            "your own configuration describes it"
            if standing.is_own
            else f"{standing.author} describes it"
        )
    else:
        level = "strict" if config.sandbox == "bubblewrap" else config.sandbox
        reason = f'`sandbox = "{config.sandbox}"`'
        if not standing.may_loosen and _STRENGTH[level] < _STRENGTH[usual]:
            level, reason = usual, f"{standing.author} describes it"
    if level == "off":
        return Confinement("off", reason)
    is_required = config.sandbox in {"strict", "bubblewrap"}
    if unsupported is not None:
        return Confinement(level if is_required else "off", unsupported, is_required)
    return Confinement(level, reason, is_required)
