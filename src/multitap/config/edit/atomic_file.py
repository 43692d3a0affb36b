"""Replaces a file as a whole or not at all."""

import contextlib
import os
import stat
from pathlib import Path

from multitap.config.formats.limits import KIB
from multitap.errors import ConfigError
from multitap.records import dataclass
from multitap.regular_file import open_regular

LARGEST = 16 * KIB * KIB
"""Bytes of a file that is edited: what a configuration may have at most."""


PRIVATE, SHARED = 0o600, 0o644
"""Permissions of new files: of the user's own, and of those that belong to a project."""


def beside(target: Path) -> Path:
    """Where the new content of a file lies until it takes the file's place."""
    return target.with_name(f".{target.name[:200]}.multitap-new")


def target_of(path: Path) -> Path:
    """The file itself, if a path is a link to it; the link stays what it is."""
    return Path(os.path.realpath(path))


def content_of(path: Path) -> bytes | None:
    """What is in a file; None if there is none.

    Raises:
        ConfigError: It cannot be read, or is not a file.
    """
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from None
    if len(content) > LARGEST:
        raise ConfigError(f"{path} is larger than {LARGEST // KIB:,} KiB")
    return content


@dataclass(frozen=True, slots=True)
class StagedFile:
    """New content that lies beside its file, ready to take its place."""

    target: Path
    fresh: Path
    folders: tuple[Path, ...] = ()
    """Those that had to be made, the outermost first."""

    def commit(self) -> None:
        """Take the file's place.

        Raises:
            ConfigError: It cannot.
        """
        try:
            self.fresh.replace(self.target)
            _sync_folder(self.target.parent)
        except OSError as exc:
            raise _not_written(self.target, exc) from None

    def discard(self) -> None:
        """Leave nothing behind."""
        self.fresh.unlink(missing_ok=True)
        remove_folders(self.folders)


def stage(target: Path, content: bytes, *, mode: int) -> StagedFile:
    """Write new content beside a file, with the owner and the permissions of the file.

    Args:
        target: The file; see `target_of`.
        content: All of it.
        mode: Permissions, where there is no such file yet.

    Raises:
        ConfigError: It cannot be written; nothing is left behind.
    """
    folders: tuple[Path, ...] = ()
    fresh: Path | None = None
    try:
        status = _status(target)
        folders = _make_folders(target.parent)
        fresh = beside(target)
        fresh.unlink(missing_ok=True)  # of one that was killed: there is only one writer at a time
        # Private until it has the permissions of the file, and O_EXCL, which follows no link:
        # otherwise others could read the content, or say where it goes, before `_take_after`.
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        with open(handle, "wb") as file:  # noqa: PTH123 - it is open already
            _take_after(handle, status, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        return StagedFile(target, fresh, folders)
    except BaseException as exc:
        if fresh is not None:
            fresh.unlink(missing_ok=True)
        remove_folders(folders)
        if isinstance(exc, OSError):
            raise _not_written(target, exc) from None
        raise


def remove_folders(folders: tuple[Path, ...]) -> None:
    """Remove folders that were made for a file, as far as nothing else is in them."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _status(target: Path) -> os.stat_result | None:
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not status.st_mode & 0o222:  # a rename would not care, but its owner does
        raise ConfigError(f"{target} is read-only", hint=f"run `chmod u+w {target}` to allow it")
    return status


def _make_folders(folder: Path) -> tuple[Path, ...]:
    missing = [one for one in (folder, *folder.parents) if not one.exists()][::-1]
    made: list[Path] = []
    try:
        for one in missing:
            one.mkdir()
            made.append(one)
    except OSError:
        remove_folders(tuple(made))
        raise
    return tuple(made)


def _take_after(handle: int, status: os.stat_result | None, mode: int) -> None:
    if status is None:
        os.fchmod(handle, mode)
        return
    # Run by root, a rename would hand the file of a user over to root.
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(handle, status.st_uid, status.st_gid)
    os.fchmod(handle, stat.S_IMODE(status.st_mode))


# Without this, a power cut after the rename can bring the old file back.
def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _not_written(target: Path, exc: OSError) -> ConfigError:
    return ConfigError(
        f"{target} cannot be written: {exc.strerror}", hint="nothing was changed; try again then"
    )
