"""Finds the changes that Landlock refuses, which it tells nobody.

The call itself is left to the kernel. What is said here is only for people, and may be wrong: the
caller can exchange a path after the look at it.
"""

from __future__ import annotations

import os

from .calling_process import is_inside, real_path
from .used_paths import used_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .calling_process import CallingProcess

_MOST = 64
_MOST_SEEN = 20_000
_DISPENSABLE = ("/__pycache__", "/proc/", "/dev/tty")
"""What programs try to write, and do without."""
_NEW = ("mkdir", "mknod", "link", "symlink")  # if there is something already, that is the failure
_EXISTING = ("unlink", "rmdir", "truncate")
_LINKS = os.O_CREAT | os.O_EXCL


class DeniedChanges:
    """Reports each path once that a server would change, but for its rules.

    Args:
        allowed: What it may change.
        on_denied: Called with the real paths of the rest.
    """

    def __init__(self, allowed: Sequence[str], on_denied: Callable[[str], None]) -> None:
        self._allowed = tuple(allowed)
        self._on_denied = on_denied
        self._seen: set[str] = set()
        self._reported: set[str] = set()

    def look(self, caller: CallingProcess, name: str, arguments: list[int]) -> None:
        """Look at a call."""
        flags = {"open": arguments[1], "openat": arguments[2], "creat": os.O_CREAT}.get(name, 0)
        for used in used_paths(name, arguments):
            if not used.changes or len(self._seen) >= _MOST_SEEN:
                continue
            path = caller.whole_path(used.folder, caller.path(used.pointer))
            real = _real(path, follow=name in {"open", "openat", "creat", "truncate"})
            if real in self._seen:
                continue
            self._seen.add(real)
            if not is_inside(real, self._allowed) and _would_work(real, name, flags):
                self.report(real)

    def report(self, real: str) -> None:
        if (
            real not in self._reported
            and len(self._reported) < _MOST
            and not any(part in real for part in _DISPENSABLE)
        ):
            self._reported.add(real)
            self._on_denied(real)


def _real(path: str, *, follow: bool) -> str:
    """The real path of a file, which may not exist yet.

    Raises:
        OSError: Its folder does not exist, either.
    """
    if follow:
        try:
            return _real_existing(path)
        except FileNotFoundError:
            pass
    folder, _, name = path.rstrip("/").rpartition("/")
    return os.path.join(_real_existing(folder or "/"), name)


def _real_existing(path: str) -> str:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return real_path(place)
    finally:
        os.close(place)


def _would_work(real: str, name: str, flags: int) -> bool:
    """Whether a change would succeed without a sandbox: we are the same user, without one."""
    exists = os.path.lexists(real)
    if name.startswith(_NEW) or flags & _LINKS == _LINKS:
        return not exists and os.access(os.path.dirname(real), os.W_OK)
    if name.startswith(_EXISTING) and not exists:
        return False
    if name in {"open", "openat"} and not exists and not flags & os.O_CREAT:
        return False
    is_content = name in {"open", "openat", "creat", "truncate"} and exists
    return os.access(real if is_content else os.path.dirname(real), os.W_OK)
