"""Decides how much a server is confined."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from multitap.config.models import StdioServer
from multitap.config.provenance import STANDINGS, Level
from multitap.published.bundle_file import bundles_folder
from multitap.records import dataclass
from multitap.sandbox.containers import is_real_client, objections, parse_container_run

ShownLevel = Literal["off", "guard", "strict", "container"]
"""`container`: the program is a container engine's client, under `guard`, with its socket open."""
MEANINGS: Mapping[ShownLevel, str] = {
    "off": "it may do everything that you may",
    "guard": "it may read your documents and code and send them anywhere; private places, such as"
    " keys and logins, are closed",
    "strict": "it may use only what its rules open",
    "container": "a container engine runs it, and shows it only what its options open",
}
"""What each level means for the person, in one sentence."""
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

    @property
    def meaning(self) -> str:
        return MEANINGS[self.level]


def decide(
    config: StdioServer,
    unsupported: str | None,
    default: Level = "guard",
    *,
    program: str | None = None,
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
    chosen: Level | None = config.home.level
    if chosen is not None:
        level, reason = chosen, "you chose it"
    elif config.sandbox == "auto":
        level = usual
        reason = (
            "your own configuration describes it"
            if standing.is_own
            else f"{standing.author} describes it"
        )
    else:
        level = chosen = "strict" if config.sandbox == "bubblewrap" else config.sandbox
        reason = f'`sandbox = "{config.sandbox}"`'
        if not standing.may_loosen and _STRENGTH[level] < _STRENGTH[usual]:
            level, reason = usual, f"{standing.author} describes it"
    if level == "off":
        return Confinement("off", reason)
    is_required = chosen == "strict"
    if unsupported is not None:
        return Confinement(level if is_required else "off", unsupported, is_required)
    if level == "guard" and program is not None and _is_container(config, program):
        return Confinement("container", reason)
    return Confinement(level, reason, is_required)


def _is_container(config: StdioServer, program: str) -> bool:
    """Whether a program is a real client of a container engine, and runs a closed container.

    By its file, never by its name: anybody can call a program `docker`.
    """
    folder = config.start_folder
    strangers = [path for path in (folder, config.home.paths, bundles_folder()) if path is not None]
    if not is_real_client(program, strangers):
        return False
    run = parse_container_run((os.path.realpath(program), *config.args))
    home = Path.home().resolve()
    # a workspace that holds the home folder is not one
    is_open = folder is not None and home.is_relative_to(folder.resolve())
    return run is not None and not objections(run, None if is_open else folder, config.env)
