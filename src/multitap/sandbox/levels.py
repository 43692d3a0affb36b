"""Decides how much a server is confined, as far as this machine can."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from multitap.config.models import StdioServer
from multitap.config.provenance import STANDINGS, Level
from multitap.files import bundles_folder
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


class Confinement(msgspec.Struct, frozen=True):
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
        unsupported: Why this machine cannot confine anything; None if it can.
        default: The level of servers that the person did not write.
    """
    standing = STANDINGS[config.provenance]
    usual: Level = default if standing.is_confined else "off"
    explicit: Level | None = config.home.level
    if explicit is not None:
        level, reason = explicit, "you chose it"
    elif config.sandbox == "auto":
        level = usual
        reason = (
            "your own configuration describes it"
            if standing.is_own
            else f"{standing.author} describes it"
        )
    else:
        level = explicit = "strict" if config.sandbox == "bubblewrap" else config.sandbox
        reason = f'`sandbox = "{config.sandbox}"`'
        if not standing.may_loosen and _STRENGTH[level] < _STRENGTH[usual]:
            level, reason = usual, f"{standing.author} describes it"
    if level == "off":
        return Confinement("off", reason)
    is_required = explicit == "strict"
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


SWITCH = "MULTITAP_SANDBOX"
"""The environment variable that turns sandboxes off, with the value `off`."""
_WITH_MOVES = 2
"""The version of Landlock from which files can be moved between folders."""


class SandboxSupport(msgspec.Struct, frozen=True):
    """The sandbox features of the kernel."""

    version: int = 0
    """The version of Landlock; 0: not available."""
    reason: str | None = None
    """Why programs cannot be confined; None if they can."""
    gaps: tuple[str, ...] = ()
    """Actions that this kernel cannot restrict."""
    is_wanted: bool = True
    """Whether the user has not turned sandboxes off."""


def _probe() -> int:
    from multitap.sandbox import calling_process, landlock, seccomp  # noqa: PLC0415 - ctypes is slow

    version = landlock.version()
    if not seccomp.is_known_machine():
        raise OSError(38, f"there is no filter for {seccomp.machine()} machines")
    calling_process.check_access()
    return version


def sandbox_support() -> SandboxSupport:
    """What this machine supports."""
    try:
        version = _probe()
    except OSError as exc:
        return SandboxSupport(reason=f"this machine cannot confine programs: {exc.strerror}")
    gaps = {
        2: "moving files between folders is refused altogether, so nothing runs under `guard`",
    }
    return SandboxSupport(version, None, tuple(gaps[since] for since in gaps if version < since))


def confinement_of(
    config: StdioServer,
    support: SandboxSupport,
    default: Level = "guard",
    *,
    program: str | None = None,
) -> Confinement:
    """How much a server is confined on this machine; see `decide`."""
    confinement = decide(config, support.reason, default, program=program)
    # package managers move files between folders all the time
    if confinement.level in {"guard", "container"} and 0 < support.version < _WITH_MOVES:
        return Confinement("off", "this kernel is too old for `guard` (Linux 5.19 or newer)")
    return confinement


def support_here() -> SandboxSupport:
    """The same, unless the user has turned sandboxes off."""
    if os.environ.get(SWITCH, "").lower() in {"off", "0", "false"}:
        return SandboxSupport(reason=f"{SWITCH} switches sandboxes off", is_wanted=False)
    return _support_found()


@cache
def _support_found() -> SandboxSupport:
    """The cached result: a kernel does not change while it runs."""
    return sandbox_support()
