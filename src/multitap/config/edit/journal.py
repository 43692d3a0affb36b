"""Changes files as a whole or not at all, and keeps what they were for `multitap undo`."""

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from multitap.config.documents import KIB
from multitap.config.sources import state_directory
from multitap.errors import ConfigError, UnknownName
from multitap.files import give_name, open_regular, open_unnamed, read_up_to

LARGEST = 16 * KIB * KIB
"""Bytes of a file that can be edited: the limit of a configuration file."""


PRIVATE, SHARED = 0o600, 0o644
"""Permissions of new files: of the user's own, and of those that belong to a project."""


def beside(target: Path) -> Path:
    """The name of a file's new content right before it replaces the file."""
    # most file systems allow names of 255 bytes
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


class StagedFile(msgspec.Struct, frozen=True):
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
            # two steps: `link` never replaces a file, only a rename does
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
        # before the rename: after a power cut, the name could lead to an empty file
        os.fsync(file.fileno())
        return StagedFile(target, file, folders)
    # also for Ctrl+C: nothing may be left behind
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
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()][::-1]
    created: list[Path] = []
    try:
        for parent in missing:
            parent.mkdir()
            created.append(parent)
    except OSError:
        remove_folders(tuple(created))
        raise
    return tuple(created)


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


# Each keeps a copy of every file it changed; hosts have files of megabytes.
KEPT = 50
"""Operations that can be undone."""
# Hosts ignore our lock and write at any time. After this many attempts, some program writes all
# the time, and the user has to stop it.
ATTEMPTS = 5
"""How often an edit is repeated if other programs change the files meanwhile."""

_BOM = b"\xef\xbb\xbf"
_RECORD = "operation.json"


class FileEdit(msgspec.Struct, frozen=True):
    """One file, and how its text changes."""

    path: Path
    change: Callable[[str], str | None]
    """From the current text, empty if there is no file, to the new one; None deletes the file.
    May raise `ConfigError`."""
    mode: int = PRIVATE
    """Permissions of the file if it is new."""


class Preview(msgspec.Struct, frozen=True):
    """The effect of an edit on a file."""

    path: Path
    before: str
    after: str


class Original(msgspec.Struct, frozen=True):
    """A file before it was changed."""

    content: bytes | None
    """None if it did not exist."""

    @property
    def text(self) -> str | None:
        return None if self.content is None else self.content.removeprefix(_BOM).decode()


class FileRecord(msgspec.Struct, frozen=True):
    """The effect of an operation on one file."""

    path: str
    before: str | None
    """The digest of its previous content; None if it did not exist."""
    after: str
    """The digest of its new content; empty if it was deleted."""
    mode: int
    folders: list[str] = []
    """Folders that were created for it."""


class PinRecord(msgspec.Struct, frozen=True):
    """A lock file's entry for a server before an operation."""

    path: str
    server: str
    before: dict[str, Any] | None
    """None if there was no entry."""
    private: bool = True
    """Whether only its owner may read the file."""
    existed: bool = True
    """Whether the file existed."""


class Operation(msgspec.Struct, frozen=True):
    """One change to any number of files."""

    number: int
    label: str
    at: float
    files: list[FileRecord]
    secrets: list[str] = []
    """Names of secrets that it added to the vault."""
    pins: list[PinRecord] = []
    """Entries of lock files, which change all the time and are not restored as a whole."""
    done: bool = False
    """False while it is in progress; if it is killed then, it is rolled back."""


class Journal:
    """Applies edits and keeps the previous content.

    Two processes that write at the same time wait for each other, and read the files again.

    Args:
        folder: Its location; by default, in the user's state directory. Only its owner can
            read it, because configuration files may contain secrets.
        forget: Removes the secrets of an operation that is rolled back.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        forget: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self.folder = folder or state_directory() / "edits"
        self._forget_secrets = forget

    def preview(self, edits: Sequence[FileEdit]) -> tuple[Preview, ...]:
        """What edits would change; writes nothing.

        Raises:
            ConfigError: An edit is not possible.
        """
        before = {target_of(edit.path): content_of(target_of(edit.path)) for edit in edits}
        contents = _new_contents(edits, before)
        paths = {target_of(edit.path): edit.path for edit in edits}
        return tuple(
            Preview(paths[target], _decode(target, before[target])[0], _decode(target, after)[0])
            for target, (after, _) in contents.items()
        )

    def apply(
        self,
        label: str,
        edits: Sequence[FileEdit],
        *,
        secrets: Sequence[str] = (),
        pins: Sequence[PinRecord] = (),
        prepare: Callable[[], None] = lambda: None,
    ) -> Operation | None:
        """Change all the files, or none; None if there is nothing to change.

        Args:
            label: A description, which `multitap undo --list` shows.
            edits: The edits of files.
            secrets: Names of secrets that `prepare` adds to the vault for it.
            pins: Entries of lock files that change with it.
            prepare: Called when the operation is recorded and no file has changed yet.

        Raises:
            ConfigError: A file cannot be read, understood or written; all are as they were.
        """
        with self._lock():
            self._recover()
            blank = Operation(0, label, 0.0, [], [*secrets], [*pins])
            for _ in range(ATTEMPTS):
                before = {target_of(edit.path): content_of(target_of(edit.path)) for edit in edits}
                contents = _new_contents(edits, before)
                if not contents:
                    return None
                if operation := self._write(blank, contents, before, prepare):
                    return operation
        paths = ", ".join(str(edit.path) for edit in edits)
        raise ConfigError(f"another program keeps changing {paths}", hint="close it and try again")

    def operations(self) -> tuple[Operation, ...]:
        """Operations that can be undone, the latest first."""
        try:
            numbers = self._numbers()
        except FileNotFoundError:
            return ()
        operations = (self._read(number) for number in reversed(numbers))
        return tuple(operation for operation in operations if operation and operation.done)

    def original(self, path: Path, verb: str) -> "Original | None":
        """A file before the operations of a kind; None if it has changed since, or there were none.

        Args:
            path: The file.
            verb: The beginning of the labels of these operations.
        """
        target = target_of(path)
        # back from the latest, as long as each one made what the next one found
        now, original = _digest(content_of(target)), None
        for operation in self.operations():
            for index, file in enumerate(operation.files):
                if (
                    file.path == str(target)
                    and file.after == now
                    and operation.label.startswith(verb)
                ):
                    content = content_of(self.folder / str(operation.number) / str(index))
                    now, original = file.before, Original(content if file.before else None)
        return original

    def undo(self, *, force: bool = False) -> Operation:
        """Restore every file of the last operation, or of one that was killed.

        Args:
            force: Restore files even if they have changed since.

        Raises:
            UnknownName: There is nothing to undo.
            ConfigError: A file changed since, or cannot be written; all are as they were.
        """
        with self._lock():
            # somebody who undoes a killed operation does not mean the one before it, too
            if killed := self._recover():
                return killed[-1]
            operation = next(iter(self.operations()), None)
            if operation is None:
                raise UnknownName("there is nothing to undo")
            now = {file.path: content_of(Path(file.path)) for file in operation.files}
            for file in operation.files:
                # a file that is as it was before needs nothing, and is no reason to refuse
                if not force and _digest(now[file.path]) not in {file.before, file.after or None}:
                    raise ConfigError(
                        f"{file.path} has changed since `{operation.label}`",
                        hint="`multitap undo --force` discards what changed",
                    )
            self._restore(operation, now)
            self._forget(operation.number)
        return operation

    def _write(
        self,
        blank: Operation,
        contents: dict[Path, tuple[bytes | None, int]],
        before: dict[Path, bytes | None],
        prepare: Callable[[], None],
    ) -> Operation | None:
        """The finished operation; None if a file changed in the meantime."""
        staged: list[StagedFile] = []
        number = self._next_number()
        committed = False
        try:
            for target, (content, mode) in contents.items():
                if content is not None:
                    staged.append(stage(target, content, mode=mode))
            # After staging, which takes longest, and right before the commit: our lock keeps out
            # other editors of ours, not the hosts that own these files.
            if any(content_of(target) != before[target] for target in contents):
                return None
            folders = {
                staged_file.target: [str(folder) for folder in staged_file.folders]
                for staged_file in staged
            }
            files = [
                FileRecord(
                    str(target),
                    _digest(before[target]),
                    _digest(content) or "",
                    mode,
                    folders.get(target, []),
                )
                for target, (content, mode) in contents.items()
            ]
            operation = msgspec.structs.replace(blank, number=number, at=time.time(), files=files)
            # Before the first commit: if we are killed in between, the next editor finds what to
            # roll back.
            self._record(operation, before)
            prepare()
            for staged_file in staged:
                staged_file.commit()
            for target in contents.keys() - folders.keys():
                target.unlink(missing_ok=True)
            done = msgspec.structs.replace(operation, done=True)
            self._write_record(done)
            committed = True
        finally:
            if not committed:
                self._roll_back(number)
                for staged_file in staged:
                    staged_file.discard()
        self._tidy()
        return done

    def _record(self, operation: Operation, before_contents: dict[Path, bytes | None]) -> None:
        folder = self.folder / str(operation.number)
        try:
            folder.mkdir(mode=0o700)
            for index, file in enumerate(operation.files):
                if (before := before_contents[Path(file.path)]) is not None:
                    stage(folder / str(index), before, mode=PRIVATE).commit()
        except OSError as exc:
            raise ConfigError(f"{folder} cannot be written: {exc.strerror}") from None
        self._write_record(operation)

    def _write_record(self, operation: Operation) -> None:
        path = self.folder / str(operation.number) / _RECORD
        stage(path, msgspec.json.encode(operation), mode=PRIVATE).commit()

    def _read(self, number: int) -> Operation | None:
        try:
            text = (self.folder / str(number) / _RECORD).read_bytes()
            return msgspec.json.decode(text, type=Operation)
        except (OSError, msgspec.DecodeError):  # killed before it began
            return None

    def _restore(self, operation: Operation, now: dict[str, bytes | None]) -> None:
        """Restore all files, or none if that is not possible."""
        folder = self.folder / str(operation.number)
        staged: list[StagedFile] = []
        try:
            for index, file in enumerate(operation.files):
                before = content_of(folder / str(index)) if file.before is not None else None
                if before is not None and before != now[file.path]:
                    staged.append(stage(Path(file.path), before, mode=file.mode))
            for fresh in staged:
                fresh.commit()
        except BaseException:
            for fresh in staged:
                fresh.discard()
            raise
        for file in operation.files:
            if file.before is None:
                Path(file.path).unlink(missing_ok=True)
                remove_folders(tuple(map(Path, file.folders)))

    def _roll_back(self, number: int) -> None:
        """Roll back an unfinished operation in files that nobody else has written since."""
        operation = self._read(number)
        if operation is not None and not operation.done:
            now = {file.path: content_of(Path(file.path)) for file in operation.files}
            # A file with other content was changed by somebody else, whose changes are kept.
            ours = [
                file for file in operation.files if _digest(now[file.path]) == (file.after or None)
            ]
            index = {file.path: position for position, file in enumerate(operation.files)}
            for file in operation.files:
                beside(Path(file.path)).unlink(missing_ok=True)
            for file in ours:
                target = Path(file.path)
                before = content_of(self.folder / str(number) / str(index[file.path]))
                if before is None:
                    target.unlink(missing_ok=True)
                    remove_folders(tuple(map(Path, file.folders)))
                else:
                    stage(target, before, mode=file.mode).commit()
            # after the files: a secret must not be deleted while a file refers to it
            self._forget_secrets(operation.secrets)
        self._forget(number)

    def _recover(self) -> list[Operation]:
        """Roll back operations that were killed, and return those that had begun."""
        # we hold the lock: whoever left an operation unfinished is dead
        killed: list[Operation] = []
        for number in self._numbers():
            operation = self._read(number)
            if operation is None or not operation.done:
                self._roll_back(number)
                killed += [] if operation is None else [operation]
        return killed

    def _next_number(self) -> int:
        return max(self._numbers(), default=0) + 1

    def _numbers(self) -> list[int]:
        """The numbers of all operations, the earliest first."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def _tidy(self) -> None:
        for old in self.operations()[KEPT:]:
            self._forget(old.number)

    def _forget(self, number: int) -> None:
        shutil.rmtree(self.folder / str(number), ignore_errors=True)

    @contextmanager
    def _lock(self) -> Generator[None]:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ConfigError(f"{self.folder} cannot be written: {exc.strerror}") from None
        try:
            # the system releases it with the file, also if we are killed
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _new_contents(
    edits: Sequence[FileEdit], before_contents: dict[Path, bytes | None]
) -> dict[Path, tuple[bytes | None, int]]:
    """The files that would change, with their new content; None if deleted."""
    contents: dict[Path, tuple[bytes | None, int]] = {}
    for edit in edits:
        target = target_of(edit.path)
        # two edits may be of one file, through a link: the second one continues the first
        before = contents[target][0] if target in contents else before_contents[target]
        text, mark = _decode(edit.path, before)
        changed = edit.change(text)
        after = None if changed is None else mark + changed.encode()
        if (after or b"") != (before or b"") or (after is None and before is not None):
            contents[target] = after, edit.mode
    return contents


def _decode(path: Path, content: bytes | None) -> tuple[str, bytes]:
    """The text of a file, and its byte order mark."""
    mark = _BOM if content and content.startswith(_BOM) else b""
    try:
        return (content or b"")[len(mark) :].decode(), mark
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", hint="save it as UTF-8") from None


def _digest(content: bytes | None) -> str | None:
    return None if content is None else sha256(content).hexdigest()
