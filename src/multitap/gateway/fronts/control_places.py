"""Where the control sockets of running gateways are."""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from multitap.user_folders import is_private

_FOLDER = "gateways"
_SUFFIX = ".sock"
_LONGEST = 84
"""Bytes of a folder's path: a socket path has at most 104 on macOS and 108 on Linux."""


def folder(state: Path) -> Path:
    """The folder for the sockets of gateways with this state directory."""
    beside = state.absolute() / _FOLDER
    if len(os.fsencode(beside)) <= _LONGEST:
        return beside
    short = hashlib.sha256(os.fsencode(beside)).hexdigest()[:12]
    # not $XDG_RUNTIME_DIR: a gateway that a desktop starts and a shell may see different ones
    return Path("/tmp") / f"multitap-{os.getuid()}-{short}"  # noqa: S108 - see `is_private`


def own_socket(state: Path) -> Path:
    """The socket path of this process, in a folder that only the user can enter.

    Raises:
        OSError: The folder cannot be created, or is not private.
    """
    place = folder(state)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(place):
        raise PermissionError(f"{place} belongs to another user, or other users can access it")
    return place / f"{os.getpid()}{_SUFFIX}"


def leave(path: Path) -> None:
    """Remove a socket, and its folder if it is empty and only for sockets."""
    path.unlink(missing_ok=True)
    if path.parent.name != _FOLDER:
        with suppress(OSError):  # it may not be empty
            path.parent.rmdir()


def sockets(state: Path) -> dict[int, Path]:
    """The address of each gateway that answers; sockets of dead ones are removed."""
    place = folder(state)
    if not is_private(place):
        return {}
    found = {pid: path for pid, path in _numbered_sockets(place) if not _is_dead(path)}
    return dict(sorted(found.items()))


def _numbered_sockets(place: Path) -> Iterator[tuple[int, Path]]:
    for path in place.glob(f"*{_SUFFIX}"):
        if path.stem.isdecimal():
            yield int(path.stem), path


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)
        try:
            knock.connect(str(path))
        except ConnectionRefusedError:  # its process is gone
            with suppress(OSError):
                path.unlink()
            return True
        except OSError as exc:
            return isinstance(exc, FileNotFoundError)
    return False
