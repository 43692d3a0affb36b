"""Every place that a path argument could lead to, however the server reads it."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

from multitap.records import dataclass

LONGEST = 4096
"""Characters; no system accepts a longer path."""

_ODD = frozenset("%~$\\\0 \t\r\n:")
"""Characters that are ambiguous, or do not occur in ordinary paths."""
_PER_PROCESS = ("/proc/", "/dev/fd/")
"""Folders in which a path means something else to each process."""
# Each layer may decode once: `%25252e` passes a check that decodes only once or twice.
_MOST_DECODINGS = 3


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders by their real paths, and the base of relative paths."""

    real: tuple[str, ...]
    cwd: str | None
    """None if unknown, because the server runs elsewhere."""
    is_clear: bool = True
    """Whether all of them are known."""

    @classmethod
    def of(cls, paths: Iterable[Path | None], cwd: Path | None) -> "Folders":
        """These folders; None stands for an unknown one."""
        given = [*paths]
        known = tuple(os.path.realpath(path) for path in given if path is not None)
        return cls(known, None if cwd is None else str(cwd), len(known) == len(given))

    def possibly(self, value: object, *, wanted: bool) -> bool:
        """Whether some reading of the path is inside (or, if `wanted` is off, outside)."""
        readings = self._readings(value)
        return readings is None or any(self._has(one) is wanted for one in readings)

    def certainly(self, value: object, *, wanted: bool) -> bool:
        """Whether every reading of the path is inside (or, if `wanted` is off, outside)."""
        readings = self._readings(value)
        return readings is not None and all(self._has(one) is wanted for one in readings)

    def _readings(self, value: object) -> list[str] | None:
        """The absolute paths that a server may open for the value; None if unknown."""
        if not self.is_clear or not isinstance(value, str) or not 0 < len(value) <= LONGEST:
            return None
        if _ODD.isdisjoint(value) and value.isascii():
            texts: Iterable[str] = (value,)
        # C programs end the path at a NUL, others do not.
        elif "\0" in value:
            return None
        else:
            texts = set(_spellings(value))
        found: list[str] = []
        for text in texts:
            if not text.startswith("/"):
                if self.cwd is None:
                    return None
                text = f"{self.cwd}/{text}"  # noqa: PLW2901 - the same path
            found.append(text)
            if ".." in text:  # programs resolve `..` before or after following links
                found.append(os.path.normpath(text))
        return found

    def _has(self, path: str) -> bool:
        plain = os.path.normpath(path) if "/." in path or "//" in path else path
        # `/proc/self/root` is inside or outside depending on who opens it.
        if plain.startswith(_PER_PROCESS):
            return False
        if ".." not in path:
            for folder in self.real:
                if _is_within(plain, folder) and not _has_link(plain, len(folder)):
                    return True
        resolved = os.path.realpath(path)
        return any(_is_within(resolved, folder) for folder in self.real)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")


def _has_link(path: str, known: int) -> bool:
    """Whether the path has a link after its beginning, which is already resolved."""
    at = path.find("/", known + 1)
    while True:
        part = path if at < 0 else path[:at]
        try:
            if stat.S_ISLNK(os.lstat(part).st_mode):
                return True
        except OSError:
            return False  # it does not exist, so nothing below it is a link
        if at < 0:
            return False
        at = path.find("/", at + 1)


def _spellings(value: str) -> Iterator[str]:
    """The text, and its readings by programs that decode, expand or trim paths."""
    # full-width dots and slashes lead upwards in programs that normalize paths
    texts = {value, value.strip(), normalize("NFKC", value)}
    for text in [*texts]:
        decoded = text
        for _ in range(_MOST_DECODINGS):
            decoded = unquote(decoded)
            texts.add(decoded)
    for text in [*texts]:
        yield text
        if ":" in text:
            yield from _in_url(text)
        if "\\" in text:
            yield text.replace("\\", "/")
        if text.startswith("~"):
            yield os.path.expanduser(text)  # noqa: PTH111 - text of no known kind
        if "$" in text:
            yield os.path.expandvars(text)


def _in_url(text: str) -> Iterator[str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return
    if parts.scheme == "file":
        yield unquote(parts.path) or "/"
