"""Where the control sockets of running gateways are, and the secret that they ask for."""

import hashlib
import hmac
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from multitap.errors import MultitapError
from multitap.files import USER_FOLDERS, is_private
from multitap.trust.private_file import PrivateFile

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


def own_socket(state: Path, number: int = 0) -> Path:
    """The socket path of this process, in a folder that only the user can enter.

    Args:
        number: Which one it is, if the process has several.

    Raises:
        OSError: The folder cannot be created, or is not private.
    """
    place = folder(state)
    make_folder(place)
    return place / (f"{os.getpid()}-{number}{_SUFFIX}" if number else f"{os.getpid()}{_SUFFIX}")


def make_folder(place: Path) -> None:
    """Create the folder for sockets if necessary.

    Raises:
        OSError: It cannot be created, or is not private.
    """
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(place):
        raise PermissionError(f"{place} belongs to another user, or other users can access it")


def leave(path: Path) -> None:
    """Remove a socket, and its folder if it is empty and only for sockets."""
    path.unlink(missing_ok=True)
    if path.parent.name != _FOLDER:
        with suppress(OSError):  # it may not be empty
            path.parent.rmdir()


def sockets(state: Path) -> dict[Path, int]:
    """The addresses of gateways that answer, each with its process id.

    Sockets of dead ones are removed.
    """
    place = folder(state)
    if not is_private(place):
        return {}
    live_sockets = [(pid, path) for pid, path in _numbered_sockets(place) if not _is_dead(path)]
    return {path: pid for pid, path in sorted(live_sockets)}


def _numbered_sockets(place: Path) -> Iterator[tuple[int, Path]]:
    for path in place.glob(f"*{_SUFFIX}"):
        pid, _, number = path.stem.partition("-")
        if pid.isdecimal() and (number.isdecimal() or not number):
            yield int(pid), path


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


_BYTES = 32  # 256 random bits, which nobody can guess


def prove(path: Path) -> bytes:
    """What a client sends to the control socket at `path` before anything else, as a line.

    It is good for this socket only: a false socket learns nothing that opens another one.

    Raises:
        MultitapError: The secret cannot be read, or others could have read it.
    """
    place = os.fsencode(os.path.realpath(path))
    return hmac.digest(_secret(), place, "sha256").hex().encode()


def _secret() -> bytes:
    # for the whole user, not beside the socket: the sandboxes of other hubs do not close the
    # state directory of this one
    file = PrivateFile(USER_FOLDERS.user_state_path / "gateways" / "control.key", MultitapError)
    secret = file.read()
    if secret is None or len(secret) != _BYTES:
        with file.hold_lock():  # the first of several programs creates it, the others wait for it
            secret = file.read()
            if secret is None or len(secret) != _BYTES:
                file.write(secrets.token_bytes(_BYTES))
        secret = file.read()  # again, because that checks who else could have
    if secret is None or len(secret) != _BYTES:
        raise MultitapError(f"{file.path} is damaged", hint="remove it")
    return secret
