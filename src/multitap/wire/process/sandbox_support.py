"""Whether this machine can confine programs, and how well."""

import os
from collections.abc import Callable
from functools import cache

from multitap.records import dataclass

SWITCH = "MULTITAP_SANDBOX"
"""The variable by which a user does without: `off`."""


@dataclass(frozen=True, slots=True)
class SandboxSupport:
    """What the kernel offers."""

    version: int = 0
    """Of Landlock's interface; 0: there is none."""
    reason: str | None = None
    """Why nothing can be confined; None: it can."""
    gaps: tuple[str, ...] = ()
    """What this kernel cannot refuse."""
    is_wanted: bool = True
    """Whether the user wants what it offers."""


def _probe() -> int:
    from multitap.wire.process.sandbox import landlock, syscall_filter  # noqa: PLC0415 - ctypes is slow

    version = landlock.version()
    if not syscall_filter.is_known_machine():
        raise OSError(38, f"there is no filter for {syscall_filter.machine()} machines")
    return version


def sandbox_support(probe: Callable[[], int] = _probe) -> SandboxSupport:
    """What this machine offers.

    Args:
        probe: Says which version of Landlock there is, or why there is none by an `OSError`.
    """
    try:
        version = probe()
    except OSError as exc:
        return SandboxSupport(reason=f"this machine cannot confine programs: {exc.strerror}")
    gaps = {
        2: "moving files between folders is refused altogether",
        3: "files outside can be truncated",
        6: "signals can be sent to other programs",
    }
    return SandboxSupport(version, None, tuple(gaps[since] for since in gaps if version < since))


def support_here() -> SandboxSupport:
    """The same, unless the user wants no sandboxes."""
    if os.environ.get(SWITCH, "").lower() in {"off", "0", "false"}:
        return SandboxSupport(reason=f"{SWITCH} switches sandboxes off", is_wanted=False)
    return _support_found()


@cache
def _support_found() -> SandboxSupport:
    """Asked once: a kernel does not change while it runs."""
    return sandbox_support()
