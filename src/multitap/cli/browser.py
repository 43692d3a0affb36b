"""Opens a web page in the browser, or a picture in a viewer, without a shell."""

import contextlib
import os
import shlex
import shutil
import sys
from pathlib import Path

from multitap.http.addresses import is_safe

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"})
_OPENERS = ("xdg-open", "wslview", "gio open")


def open_page(address: str) -> bool:
    """Show a page; returns whether there is a browser for it."""
    return is_safe(address) and _started(_browser(address) or _opener(address))


def open_picture(path: Path) -> bool:
    """Show a picture file; returns whether there is a viewer."""
    # checked by its name, which viewers use: not a program or a page
    return path.suffix in _PICTURES and _started(_opener(str(path)))


def _started(command: list[str] | None) -> bool:
    if command is None:
        return False
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    with contextlib.suppress(OSError):
        # in a session of its own: Ctrl-C at our terminal must not reach the browser
        os.posix_spawn(command[0], command, os.environ, file_actions=quiet, setsid=True)
        return True
    return False


def _browser(address: str) -> list[str] | None:
    """The user's own choice: `$BROWSER` names commands, with `%s` where the address goes."""
    for choice in os.environ.get("BROWSER", "").split(os.pathsep):
        try:
            program, *arguments = shlex.split(choice)
        except ValueError:  # empty, or an open quote
            continue
        if (path := shutil.which(program)) is not None:
            filled = [part.replace("%s", address) for part in arguments]
            return [path, *filled, *(() if "%s" in choice else (address,))]
    return None


def _opener(what: str) -> list[str] | None:
    if sys.platform == "darwin":
        return ["/usr/bin/open", what]
    # without a screen a browser may open in the terminal, and take it away from us
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return None
    for opener in _OPENERS:
        program, *arguments = opener.split()
        if (path := shutil.which(program)) is not None:
            return [path, *arguments, what]
    return None
