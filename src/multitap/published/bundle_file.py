"""Unpacks an `.mcpb` bundle; nothing in it can escape its folder."""

import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from multitap.errors import ConfigError, quoted
from multitap.files import USER_FOLDERS, open_regular

if TYPE_CHECKING:
    import zipfile

# Against archives made to fill a disk. Bundles carry their `node_modules` or wheels, so honest ones
# are large and have many files.
MAX_FILE = 512 * 1024 * 1024
MAX_UNPACKED = 1024 * 1024 * 1024
MOST_ENTRIES = 50_000
MOST_TIMES = 200
"""How much larger an entry may be than it is packed, beyond a first `FREE` bytes."""
FREE = 1024 * 1024
LONGEST_PATH = 1024
MANIFEST = "manifest.json"
MAX_MANIFEST = 1024 * 1024

_CHUNK = 256 * 1024
_ENCRYPTED = 0x1
_EXECUTABLE = 0o111
_BAD_MODES = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


class BadBundle(ConfigError):
    """A bundle that must not be used; nothing of it was kept."""


def bundles_folder() -> Path:
    """Where bundles are unpacked, each in a folder named after its digest."""
    return USER_FOLDERS.user_data_path / "bundles"


def unpack(path: Path, *, digest: str | None = None, into: Path | None = None) -> Path:
    """The folder of an unpacked bundle; one that was unpacked before is reused.

    Raises:
        BadBundle: It must not be used, and why.
    """
    folder = into or bundles_folder()
    try:
        with open_regular(path) as file:
            return _keep(file, path.name, digest, folder)
    except OSError as exc:
        raise BadBundle(f"{path} cannot be read: {exc.strerror}") from None


def _keep(file: BinaryIO, name: str, digest: str | None, folder: Path) -> Path:
    # one handle for all steps: exactly what was checked is unpacked
    import zipfile  # noqa: PLC0415 - a gateway only asks where bundles are

    actual = _digest(file, name)
    if digest is not None and actual != digest.lower():
        raise BadBundle(f"{name} has the digest {actual}, not {digest}", hint=_FETCH)
    home = folder / actual
    # named by its digest, so it has the same content
    if home.is_dir():
        return home
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Unpacked aside and renamed when complete: a folder named after its digest is always
    # complete.
    draft = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    try:
        _unpack(file, draft, name)
        _settle(draft, home)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as exc:
        raise BadBundle(f"{name} cannot be unpacked: {exc}", hint=_FETCH) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return home


_FETCH = "fetch it again from its publisher"


def _settle(draft: Path, home: Path) -> None:
    try:
        draft.rename(home)
    except OSError:
        if not home.is_dir():  # or another process unpacked the same one meanwhile
            raise


def _digest(file: BinaryIO, name: str) -> str:
    digest, size = sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if size > MAX_FILE:
            raise BadBundle(f"{name} has more than {MAX_FILE:,} bytes")
    file.seek(0)
    return digest.hexdigest()


def _unpack(file: BinaryIO, folder: Path, name: str) -> None:
    import zipfile  # noqa: PLC0415 - see `unpack`

    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _check_all(entries, name)
        left = MAX_UNPACKED
        for entry in entries:
            target = folder / entry.filename
            if entry.is_dir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            left -= _write(archive, entry, target, min(left, entry.file_size))


def _write(archive: "zipfile.ZipFile", entry: "zipfile.ZipInfo", target: Path, limit: int) -> int:
    """Write one file; its stated size is not trusted."""
    # of its permissions, only whether it is a program counts: others get none
    mode = 0o700 if (entry.external_attr >> 16) & _EXECUTABLE else 0o600
    # O_EXCL and O_NOFOLLOW although names were checked: never write over a file or through a
    # link.
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    size = 0
    with os.fdopen(descriptor, "wb") as out, archive.open(entry) as packed:
        while chunk := packed.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise BadBundle(f"{quoted(entry.filename)} is larger than it says")
            out.write(chunk)
    return size


def _check_all(entries: "list[zipfile.ZipInfo]", name: str) -> None:
    if len(entries) > MOST_ENTRIES:
        raise BadBundle(f"{name} has more than {MOST_ENTRIES:,} entries")
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED:
        raise BadBundle(f"{name} would take more than {MAX_UNPACKED:,} bytes")
    files: set[str] = set()
    for entry in entries:
        for reason in _objections(entry):
            raise BadBundle(f"{name}: {quoted(entry.filename)} {reason}")
        # Case does not count on every file system: there, `A` would overwrite the `a` that was
        # checked.
        key = entry.filename.rstrip("/").casefold()
        if key in files:
            raise BadBundle(f"{name}: {quoted(entry.filename)} appears twice")
        files.add(key)
    inner = {entry.filename.casefold() for entry in entries if not entry.is_dir()}
    for entry in entries:
        above = map(str, PurePosixPath(entry.filename.casefold()).parents)
        if not inner.isdisjoint(above):
            raise BadBundle(f"{name}: {quoted(entry.filename)} is inside a file")
    manifest = next((entry for entry in entries if entry.filename == MANIFEST), None)
    if manifest is None:
        raise BadBundle(f"{name} has no {MANIFEST}")
    if manifest.file_size > MAX_MANIFEST:
        raise BadBundle(f"{name}: its {MANIFEST} has more than {MAX_MANIFEST:,} bytes")


def _objections(entry: "zipfile.ZipInfo") -> Iterator[str]:
    """Why an entry must not be unpacked."""
    path, mode = entry.filename, entry.external_attr >> 16
    # Python cuts the name at a NUL, other programs do not.
    if entry.orig_filename != path and "\0" in entry.orig_filename:
        yield "has a NUL character in its name"
    if not path or len(path) > LONGEST_PATH or not path.isprintable():
        yield "has a name that cannot be used"
    if path.startswith("/") or "\\" in path or path[1:2] == ":":
        yield "has an absolute path"
    if ".." in path.split("/"):
        yield "leads out of the bundle"
    if entry.flag_bits & _ENCRYPTED:
        yield "is encrypted"
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFLNK:
        yield "is a link"
    elif kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        yield "is neither a file nor a folder"
    if mode & _BAD_MODES:
        yield "would run with somebody else's rights"
    if entry.file_size > FREE + MOST_TIMES * entry.compress_size:
        yield f"would be more than {MOST_TIMES} times as large as it is packed"
