"""Replaces a file as a whole or not at all."""

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from multitap.config.formats.limits import KIB
from multitap.errors import ConfigError
from multitap.records import dataclass
from multitap.regular_file import open_regular, read_up_to
from multitap.unnamed_file import give_name, open_unnamed

LARGEST = 16 * KIB * KIB
"""Bytes of a file that can be edited: the limit of a configuration file."""


PRIVATE, SHARED = 0o600, 0o644
"""Permissions of new files: of the user's own, and of those that belong to a project."""


def beside(target: Path) -> Path:
    """The name of a file's new content right before it replaces the file."""
    return target.with_name(f".{target.name[:200]}.multitap-new")


def target_of(path: Path) -> Path:
    """The target of a link, or the path itself; links are kept."""
    return Path(os.path.realpath(path))


def content_of(path: Path) -> bytes | None:
    """The content of a file; None if it does not exist.

    Raises:
        ConfigError: It cannot be read, or is not a file.
    """
    try:
        with open_regular(path) as file:
            content = read_up_to(file, LARGEST)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from None
    if len(content) > LARGEST:
        raise ConfigError(f"{path} is larger than {LARGEST // KIB:,} KiB")
    return content


@dataclass(frozen=True, slots=True)
class StagedFile:
    """New content beside its target, ready to replace it."""

    target: Path
    file: BinaryIO
    """The new content, which has no name where the system can do without."""
    folders: tuple[Path, ...] = ()
    """Folders that were created for it, the outermost first."""

    def commit(self) -> None:
        """Replace the file.

        Raises:
            ConfigError: It cannot be replaced.
        """
        fresh = beside(self.target)
        try:
            give_name(self.file.fileno(), fresh)
            fresh.replace(self.target)
            _sync_folder(self.target.parent)
        except OSError as exc:
            raise _not_written(self.target, exc) from None
        self.file.close()

    def discard(self) -> None:
        """Delete the new content."""
        self.file.close()
        beside(self.target).unlink(missing_ok=True)
        remove_folders(self.folders)


def stage(target: Path, content: bytes, *, mode: int) -> StagedFile:
    """Write new content beside a file, with the owner and the permissions of the file.

    Args:
        target: The file; see `target_of`.
        content: The whole new content.
        mode: Permissions of a new file.

    Raises:
        ConfigError: It cannot be written; nothing is left behind.
    """
    folders: tuple[Path, ...] = ()
    file: BinaryIO | None = None
    try:
        status = _status(target)
        folders = _make_folders(target.parent)
        # private until it has the permissions of the file: otherwise others could read the content
        # before `_take_after`
        file = open(open_unnamed(beside(target)), "wb")  # noqa: PTH123, SIM115 - `StagedFile` has it
        _take_after(file.fileno(), status, mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return StagedFile(target, file, folders)
    except BaseException as exc:
        if file is not None:
            file.close()
            beside(target).unlink(missing_ok=True)
        remove_folders(folders)
        if isinstance(exc, OSError):
            raise _not_written(target, exc) from None
        raise


def remove_folders(folders: tuple[Path, ...]) -> None:
    """Remove folders that were created for a file, if they are empty."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _status(target: Path) -> os.stat_result | None:
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not status.st_mode & 0o222:  # a rename would succeed, but the owner did not want changes
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
    # As root, a rename would change the owner of a user's file to root.
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
