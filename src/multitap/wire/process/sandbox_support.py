"""Whether this machine can confine programs, and how well."""

import os
from collections.abc import Callable
from functools import cache

from multitap.config.models import StdioServer
from multitap.config.provenance import Level
from multitap.records import dataclass
from multitap.sandbox.levels import Confinement, decide

SWITCH = "MULTITAP_SANDBOX"
"""The environment variable that turns sandboxes off, with the value `off`."""
_WITH_MOVES = 2
"""The version of Landlock from which files can be moved between folders."""


@dataclass(frozen=True, slots=True)
class SandboxSupport:
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
    from multitap.wire.process.sandbox import (  # noqa: PLC0415 - ctypes is slow
        calling_process,
        landlock,
        syscall_filter,
    )

    version = landlock.version()
    if not syscall_filter.is_known_machine():
        raise OSError(38, f"there is no filter for {syscall_filter.machine()} machines")
    calling_process.check_access()
    return version


def sandbox_support(probe: Callable[[], int] = _probe) -> SandboxSupport:
    """What this machine supports.

    Args:
        probe: Returns the version of Landlock; raises `OSError` if there is none.
    """
    try:
        version = probe()
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
