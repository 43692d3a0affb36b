"""A server's standard error: its last lines, and a log file."""

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from multitap.printable import printable
from multitap.redaction import RedactedStream, Redactor

TAIL = 4096
"""Bytes of the tail shown in a failure."""
RING = 64 * 1024
FILE_SIZE = 1024 * 1024
RATE = 256 * 1024
"""Bytes per second that are written to the file; the rest of a flood is dropped, with a note."""

KEPT = 30 * 86400.0
"""Seconds for which unused log files are kept."""

_NEXT_LINE = re.compile(r"\n(?!\n|\Z)")


class StderrLog:
    """Keeps the tail in memory, and writes a file with one rotation."""

    def __init__(self, path: Path | None, redact: Redactor) -> None:
        self._path = path
        self._redact = redact
        self._shown = RedactedStream(redact)
        self._ring = bytearray()
        self._fd = _open(path)
        self._written = 0
        self._second = 0
        self._allowance = RATE
        self._skipped = 0
        self._begins_line = True

    def feed(self, data: bytes) -> None:
        self._ring += data
        # at twice its size: cutting at every line would copy all of it each time
        if len(self._ring) > 2 * RING:
            del self._ring[:-RING]
        if self._fd is not None:
            self._write(data)

    def tail(self) -> str:
        """The last lines, printable and without the server's secrets."""
        room = TAIL + 4 * self._redact.reach  # a character has up to four bytes
        text = bytes(self._ring[-room:]).decode("utf-8", "replace")
        return printable(self._redact.tail(text, TAIL)).strip()

    def close(self) -> None:
        self._put(self._shown.end())
        self._give_up()

    def _write(self, data: bytes) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._allowance = second, RATE
            if self._skipped:
                note = f"\n[{self._skipped} bytes left out: too much in one second]\n"
                self._skipped = 0
                self._put(self._shown.end() + note)
        self._skipped += max(0, len(data) - self._allowance)
        part = data[: self._allowance]
        self._allowance -= len(part)
        self._put(self._shown.feed(part))

    def _put(self, text: str) -> None:
        if self._fd is None or not text:
            return
        try:
            if self._written > FILE_SIZE and self._path is not None:
                self._give_up()
                self._path.replace(rotated_path(self._path))
                self._fd = _open(self._path)
                self._written = 0
            if self._fd is not None:
                # safe for other programs that show the file
                self._written += os.write(self._fd, self._stamp(printable(text)).encode())
        except OSError:
            self._give_up()  # a full disk must not affect the server

    def _give_up(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _stamp(self, text: str) -> str:
        """Each line with the time at which it began; empty ones stay empty."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime())
        stamped = _NEXT_LINE.sub("\n" + stamp, text)
        if self._begins_line and not text.startswith("\n"):
            stamped = stamp + stamped
        self._begins_line = text.endswith("\n")
        return stamped


def log_folder(state: Path, files: Collection[str], servers: Iterable[str] = ()) -> Path:
    """The folder for the logs of one configuration.

    Args:
        state: The state directory.
        files: Its files; empty if it is made by a program.
        servers: Identifies the servers of such a program.
    """
    key = "\n".join(files or sorted(servers))
    place = Path([*files][-1]).parent.name if files else "program"
    digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:8]
    return state / "logs" / f"{_safe(place)}-{digest}"


def tidy(logs: Path) -> None:
    """Remove logs that were not written to for a month."""
    oldest = time.time() - KEPT
    for path in _entries(logs):
        try:
            files = [path, *_entries(path)]
            if max(file.stat().st_mtime for file in files) < oldest:
                for file in reversed(files):
                    file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        except OSError:
            continue  # another process removed it, or it is not ours


def _entries(folder: Path) -> list[Path]:
    try:
        return [] if folder.is_symlink() else [*folder.iterdir()]
    except OSError:
        return []


def _safe(name: str) -> str:
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in name)
    return safe.lstrip(".") or "_"


def log_path(log_dir: Path, name: str) -> Path:
    """The log file of a server; a safe file name, whatever the server's name."""
    return log_dir / f"{_safe(name)}.log"


def last_lines(path: Path, size: int = RING) -> str:
    """The last complete lines of a log file; empty if there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            data = file.read(size)
    except OSError:
        return ""
    if end > size:
        data = data.partition(b"\n")[2]
    return printable(data.decode("utf-8", "replace"))


def rotated_path(path: Path) -> Path:
    """The path of a log file after its rotation."""
    return path.with_suffix(".log.1")


def _open(path: Path | None) -> int | None:
    if path is None:
        return None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # no links: they could redirect what we append to
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
