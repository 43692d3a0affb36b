"""Backups: one file with a consistent copy of configuration and state, and its way back.

Databases are copied by SQLite's own backup, so that a gateway can go on writing. Secrets are left
out, or encrypted with a passphrase; the key of the vault is never copied.
"""

import hashlib
import io
import os
import sqlite3
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path, PurePosixPath

import msgspec

from multitap.errors import MultitapError
from multitap.version import VERSION

FORMAT = 1
MANIFEST = "manifest.json"
SEALED = "secrets.sealed"
_DATABASE = ".sqlite3"
_LEFTOVERS = tuple(f"{_DATABASE}-{end}" for end in ("wal", "shm", "journal"))
OWN_STATE = "state_dir"
"""The name in a backup of the folder that the setting of that name chooses."""
PUBLIC_DATA = frozenset({"pins"})
"""What the data folder has besides secrets, logins and tokens."""
_LIVE = frozenset({"gateways", "ports"})
"""Folders of the state that belong to running processes."""
_NEVER = frozenset({"vault.key", "control.key"})
"""A backup with the key to its own secrets would be as good as the secrets in plain text."""
_LARGEST = 4 * 1024 * 1024 * 1024
_MOST_FILES = 100_000
_SALT, _NONCE, _KEY = 16, 12, 32


class BackupError(MultitapError):
    """A backup cannot be made or used; the message says why."""


class UserFolders(msgspec.Struct, frozen=True):
    """The folders of a user."""

    config: Path
    state: Path
    data: Path
    own_state: Path | None = None
    """The folder of a configuration that has a `state_dir`; `state` then has the rest."""

    def items(self) -> Iterator[tuple[str, Path]]:
        yield from (("config", self.config), ("state", self.state), ("data", self.data))
        if self.own_state is not None:
            yield OWN_STATE, self.own_state


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says about itself."""

    format: int
    multitap: str
    at: float
    files: Mapping[str, str]
    """The SHA-256 of each file, by its name in the backup."""

    @property
    def has_secrets(self) -> bool:
        return SEALED in self.files


def make_backup(path: Path, folders: UserFolders, passphrase: str | None = None) -> Manifest:
    """Write a backup, in place of an earlier file; with a passphrase, it includes secrets.

    Raises:
        BackupError: A file cannot be read or written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    digests: dict[str, str] = {}
    try:
        # only its owner may read it: configuration files may have keys in plain text
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            open(handle, "wb") as file,  # noqa: PTH123 - it is open already
            tarfile.open(fileobj=file, mode="w:gz") as tar,
        ):
            for name, data in _contents(folders, with_secrets=False):
                digests[name] = _add(tar, name, data)
            if passphrase is not None:
                digests[SEALED] = _add(tar, SEALED, _seal(_secret_tar(folders), passphrase))
            manifest = Manifest(format=FORMAT, multitap=VERSION, at=time.time(), files=digests)
            _add(tar, MANIFEST, msgspec.json.encode(manifest))
        part.replace(path)
    except (OSError, sqlite3.Error) as exc:
        raise BackupError(f"the backup cannot be written: {exc}") from None
    finally:
        part.unlink(missing_ok=True)
    return manifest


def read_backup(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the files of a backup, all of them checked.

    Raises:
        BackupError: It is not a backup, is damaged, or was made by a newer version.
    """
    files: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                size += member.size
                if not member.isfile() or size > _LARGEST or len(files) >= _MOST_FILES:
                    raise BackupError(f"{path} is not a backup of Multitap: {member.name!r}")
                _check_name(member.name)
                source = tar.extractfile(member)
                files[member.name] = b"" if source is None else source.read()
    except (OSError, EOFError, tarfile.TarError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else None  # not the path again
        raise BackupError(f"{path} cannot be read: {reason or exc}") from None
    try:
        manifest = msgspec.json.decode(files.pop(MANIFEST, b""), type=Manifest)
    except msgspec.DecodeError:
        raise BackupError(f"{path} is not a backup of Multitap, or is incomplete") from None
    if manifest.format > FORMAT:
        raise BackupError(
            f"{path} was made by Multitap {manifest.multitap}", hint="restore it with that version"
        )
    if {name: _digest(data) for name, data in files.items()} != dict(manifest.files):
        raise BackupError(f"{path} is damaged: its files are not those that were backed up")
    return manifest, files


def restore_backup(
    path: Path,
    folders: UserFolders,
    passphrase: str | None = None,
    *,
    find_own_state: Callable[[], Path | None] = lambda: None,
) -> tuple[Path, ...]:
    """Put the files of a backup in place; returns where those before it are now.

    Everything is checked and written beside the folders first. Without a passphrase, secrets stay
    as they are.

    Args:
        path: The backup.
        folders: Where its files belong.
        passphrase: Opens its secrets.
        find_own_state: Returns the folder of `state_dir`, which only the restored configuration
            names; without one, what the backup has of it stays there.

    Raises:
        BackupError: It cannot be used, or the passphrase is wrong; then nothing has changed.
    """
    manifest, files = read_backup(path)
    sealed = files.pop(SEALED, None)
    if passphrase is not None:
        if sealed is None:
            raise BackupError(f"{path} has no secrets", hint="leave out `--secrets`")
        files.update(_open_secret_tar(_unseal(sealed, passphrase)))
    mark = time.strftime("%Y%m%d-%H%M%S", time.gmtime(manifest.at))
    moved: list[Path] = []

    def put(kind: str, folder: Path) -> None:
        ours = {name: data for name, data in files.items() if name.startswith(f"{kind}/")}
        if not ours:
            return
        if kind == "data" and passphrase is None:
            _write_all(folder, ours)  # beside the secrets, which stay
            return
        fresh = folder.with_name(f".{folder.name}.restored-{mark}-{os.getpid()}")
        if kind == "data":  # the key of the vault is not in it, and opens what is restored
            ours |= _keys(folder)
        _write_all(fresh, ours)
        if folder.exists():
            before = folder.with_name(f"{folder.name}.before-{int(time.time())}")
            folder.rename(before)
            moved.append(before)
        fresh.rename(folder)

    try:
        put("config", folders.config)
        put("state", folders.state)
        put("data", folders.data)
        if (own_state := find_own_state()) is not None:
            put(OWN_STATE, own_state)
    except OSError as exc:
        raise BackupError(f"the backup cannot be restored: {exc}") from None
    return tuple(moved)


def check_databases(folders: UserFolders) -> Iterator[tuple[Path, str]]:
    """The path of each database, and what is wrong with it: empty if nothing is."""
    paths = {path: None for _, folder in folders.items() for path in _files(folder)}
    for path in paths:
        if path.suffix != _DATABASE:
            continue
        try:
            # read-only: a look must not create a database, or change one
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                rows = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
        except sqlite3.Error as exc:
            yield path, str(exc)
        else:
            yield path, "" if rows == ["ok"] else "; ".join(map(str, rows))


def _contents(folders: UserFolders, *, with_secrets: bool) -> Iterator[tuple[str, bytes]]:
    for kind, folder in folders.items():
        for path in _files(folder):
            parts = path.relative_to(folder).parts
            is_secret = kind == "data" and parts[0] not in PUBLIC_DATA
            is_live = kind in {"state", OWN_STATE} and parts[0] in _LIVE
            if is_secret is with_secrets and not is_live and path.name not in _NEVER:
                name = str(PurePosixPath(kind, *parts))
                if path.suffix == _DATABASE:
                    yield name, _copy_database(path)
                else:
                    yield name, path.read_bytes()


def _files(folder: Path) -> Iterator[Path]:
    """The regular files below a folder: no links, sockets or leftovers of SQLite."""
    for path in sorted(folder.rglob("*")):
        is_regular = stat.S_ISREG(path.lstat().st_mode)
        if is_regular and not path.name.endswith(_LEFTOVERS):
            yield path


def _keys(folder: Path) -> dict[str, bytes]:
    """The keys of a folder, by the names that they would have in a backup."""
    return {
        str(PurePosixPath("data", *path.relative_to(folder).parts)): path.read_bytes()
        for path in _files(folder)
        if path.name in _NEVER
    }


def _copy_database(path: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="multitap-backup-") as folder:
        copy = Path(folder) / path.name
        with (
            closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        return copy.read_bytes()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> str:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    tar.addfile(member, io.BytesIO(data))
    return _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _check_name(name: str) -> None:
    """Check that a name leads into one of the folders, and nowhere else."""
    parts = PurePosixPath(name).parts
    is_plain = name in {MANIFEST, SEALED}
    kinds = {"config", "state", "data", OWN_STATE}
    is_inside = len(parts) > 1 and parts[0] in kinds and ".." not in parts
    if not is_plain and (not is_inside or "\0" in name or PurePosixPath(name).name in _NEVER):
        raise BackupError(f"{name!r} does not belong into a backup")


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder.joinpath(*PurePosixPath(name).parts[1:])
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)  # a link there must not choose what is written
        path.write_bytes(data)
        path.chmod(0o600)
    folder.chmod(0o700)


def _secret_tar(folders: UserFolders) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in _contents(folders, with_secrets=True):
            _add(tar, name, data)
    return buffer.getvalue()


def _open_secret_tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        for member in tar:
            _check_name(member.name)
            source = tar.extractfile(member)
            if source is not None:
                yield member.name, source.read()


def _derive(passphrase: str, salt: bytes) -> bytes:
    # 64 MiB and about 0.2 s for each guess
    cost = {"n": 2**16, "r": 8, "p": 1, "maxmem": 128 * 1024 * 1024}
    return hashlib.scrypt(passphrase.encode(), salt=salt, dklen=_KEY, **cost)


def _seal(data: bytes, passphrase: str) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import

    salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
    return salt + nonce + AESGCM(_derive(passphrase, salt)).encrypt(nonce, data, SEALED.encode())


def _unseal(sealed: bytes, passphrase: str) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - the same

    salt, nonce, data = sealed[:_SALT], sealed[_SALT:][:_NONCE], sealed[_SALT + _NONCE :]
    try:
        return AESGCM(_derive(passphrase, salt)).decrypt(nonce, data, SEALED.encode())
    except InvalidTag:
        raise BackupError("the passphrase is wrong, or the secrets are damaged") from None
