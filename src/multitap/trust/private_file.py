"""Files that only their owner can read, changed by one program at a time."""

import fcntl
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from multitap.errors import MultitapError
from multitap.files import Stamp, file_stamp, give_name, open_unnamed, read_up_to

if TYPE_CHECKING:
    import sqlite3

LARGEST = 64 * 1024 * 1024
"""Bytes of a file that is read."""
_OTHERS = 0o077
_BUSY = 5.0  # seconds to wait for another process at a database
_T = TypeVar("_T")
_Content = TypeVar("_Content")


class PrivateFile:
    """A 0600 file in a 0700 folder; not used if others could have read or written it.

    Args:
        path: Its path.
        error: The exception to raise, with the reason and a hint.
    """

    def __init__(self, path: Path, error: type[MultitapError]) -> None:
        self.path = path
        self._fresh = path.with_name(f".{path.name}.new")
        self._error = error

    def read(self) -> bytes | None:
        """The content; None if the file does not exist."""
        if self._fresh.exists():  # left by a writer that was killed, unless one is about to finish
            with suppress(self._error), self.hold_lock():
                pass
        try:
            # O_NOFOLLOW: a link that somebody put here must not choose the file that we read or
            # write.
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._error(f"{self.path} cannot be read: {exc.strerror}") from None
        with open(handle, "rb") as file:  # noqa: PTH123 - it is open already
            # Of the open file, not of the path, which may lead to another one by now. The folder
            # too: anyone who can write there can replace the file.
            self.check_owner(self.path, os.fstat(file.fileno()))
            self.check_owner(self.path.parent, self.path.parent.stat())
            content = read_up_to(file, LARGEST)
        if len(content) > LARGEST:
            raise self._error(f"{self.path} is too large")
        return content

    def load(self, kind: type[_Content], *, repair: str) -> _Content:
        """The parsed JSON; a default value if there is no file."""
        text = self.read()
        if text is None:
            return kind()
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # the content may be secret, and the decoder's message may quote it
            raise self._error(f"{self.path} is damaged", hint=repair) from None

    @contextmanager
    def changing(self, kind: type[_Content], *, repair: str) -> Generator[_Content]:
        """Change what `load` returns; changes at the same time happen one after the other."""
        with self.hold_lock():
            content = self.load(kind, repair=repair)
            yield content
            self.write(msgspec.json.encode(content))

    def stamp(self) -> Stamp:
        """A stamp that differs after every change; None if there is no file."""
        return file_stamp(self.path)

    @contextmanager
    def hold_lock(self) -> Generator[None]:
        """Lock the file: while entered, no other program changes it."""
        # A separate lock file: each write replaces the file itself, and its lock would stay with
        # the old one.
        lock = self.open_lock(self.path.with_suffix(".lock"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # left by a writer that was killed: there is only one at a time
            self._fresh.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)

    def open_lock(self, path: Path) -> int:
        """A descriptor to lock; creates the folder if necessary."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(path, flags, 0o600)
        except OSError as exc:
            raise self._error(f"{self.path.parent} cannot be written: {exc.strerror}") from None

    def write(self, text: bytes) -> None:
        """Replace the file atomically; the caller must hold its lock."""
        fresh = self._fresh
        try:
            with open(open_unnamed(fresh), "wb") as file:  # noqa: PTH123 - it is open already
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                give_name(file.fileno(), fresh)
            fresh.replace(self.path)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            raise self._error(f"{self.path} cannot be written: {exc.strerror}") from None

    def check_owner(self, path: Path, status: os.stat_result) -> None:
        """Raise the error if others could have read or written a file or folder."""
        # Root may own it: root could read and write it anyway.
        if status.st_uid not in {os.geteuid(), 0}:
            raise self._error(f"{path} belongs to somebody else", hint="use a folder of your own")
        if status.st_mode & _OTHERS:
            mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
            raise self._error(f"others can read {path}", hint=f"run `chmod {mode} {path}`")


class PrivateDatabase:
    """A SQLite file that only its owner can read; any thread and process may use it.

    Args:
        path: Its path.
        error: The exception to raise, with the reason and a hint.
        tables: Statements that create what is missing.
    """

    def __init__(self, path: Path, error: type[MultitapError], tables: Sequence[str]) -> None:
        self.path = path
        self._file = PrivateFile(path, error)
        self._error = error
        self._tables = tables

    def stamp(self) -> Stamp:
        """A stamp that differs after every change; None if there is no file."""
        # it changes with each commit, because the journal is one for rolling back
        return self._file.stamp()

    def use(self, work: "Callable[[sqlite3.Connection], _T]") -> _T:
        """What `work` returns, in one transaction; others wait for it."""
        import sqlite3  # noqa: PLC0415 - most commands read no database

        # opened for each use, which is rare
        handle = self._file.open_lock(self.path)  # creates it, for its owner only
        try:
            self._file.check_owner(self.path, os.fstat(handle))
        finally:
            os.close(handle)
        try:
            with closing(sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None)) as opened:
                opened.execute("BEGIN IMMEDIATE")
                for statement in self._tables:
                    opened.execute(statement)
                result = work(opened)
                opened.execute("COMMIT")
                return result
        except sqlite3.Error as exc:
            raise self._error(f"{self.path} cannot be used: {exc}") from None
