"""The TCP ports that Multitap listens on, which stay closed to confined servers.

Confined servers run as the same user as everything else here, and some may use the network. So each
process that listens has a file named `PID-PORT` in one folder of the user, where the sandbox and
the proxy of confined servers look before they connect.
"""

import fcntl
import logging
import os
import re
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from multitap.files import USER_FOLDERS, is_private

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]+-[0-9]+")


def closed_ports_folder() -> Path:
    """The folder for the whole user, whatever the state directory of a hub is."""
    return USER_FOLDERS.user_state_path / "ports"


def closed_ports() -> frozenset[int]:
    """The ports that are closed now."""
    return frozenset(_records(closed_ports_folder()).values())


def reserve_port(port: int) -> None:
    """Keep confined servers from listening on a port for good: clients come back to it."""
    with suppress(OSError):  # reported by `close_port`, which comes next
        folder = _make_folder() / "reserved"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / str(port)).touch()


@contextmanager
def close_port(port: int) -> Generator[None]:
    """While entered, confined servers cannot connect to a port of this machine.

    Enter it before the port accepts connections; otherwise they could be faster.
    """
    record = closed_ports_folder() / f"{os.getpid()}-{port}"
    try:
        file = _create(record)
    except OSError as exc:
        # the gateway also looks at the process that connects
        logger.warning("port %d is not recorded as closed to confined servers: %s", port, exc)
        yield
        return
    with closing(file):
        try:
            yield
        finally:
            with suppress(OSError):
                record.unlink()


def _make_folder() -> Path:
    folder = closed_ports_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(folder):
        raise PermissionError(f"{folder} belongs to another user, or other users can access it")
    return folder


def _create(record: Path) -> "_Locked":
    for path in _records(_make_folder()):
        _remove_dead(path)
    # under another name until it is locked: a process that starts now would take it for a dead one
    draft = record.with_suffix(".new")
    file = _Locked(draft, os.O_RDWR | os.O_CREAT)
    draft.replace(record)
    return file


def _remove_dead(record: Path) -> None:
    """Remove the record of a process that was killed: its port may be another program's now."""
    # a lock tells more than the id, which may be used again, or be of another container
    with suppress(OSError), closing(_Locked(record, os.O_RDWR)):
        record.unlink()


class _Locked:
    """An open file that no other process has locked."""

    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._fd)


def _records(folder: Path) -> dict[Path, int]:
    """Each record, and its port."""
    try:
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return {}
    return {path: int(path.name.partition("-")[2]) for path in paths}
