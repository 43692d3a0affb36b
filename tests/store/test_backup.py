"""Backups: consistent, without secrets unless they are sealed, and refused if anything is odd."""

import io
import json
import sqlite3
import tarfile
from contextlib import closing

import pytest

from multitap.store.backup import (
    BackupError,
    UserFolders,
    check_databases,
    make_backup,
    read_backup,
    restore_backup,
)

PASSPHRASE = "correct horse"


@pytest.fixture
def folders(tmp_path):
    made = UserFolders(tmp_path / "config", tmp_path / "state", tmp_path / "data")
    for name in ("config", "state/gateways", "data/pins", "data/vault", "data/tokens"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "config/multitap.toml").write_text("[serve]\n")
    (tmp_path / "state/gateways/control.key").write_text("control secret")
    (tmp_path / "data/pins/a").write_text("pin")
    (tmp_path / "data/vault/vault.json").write_text("vault secret")
    (tmp_path / "data/vault/vault.key").write_text("the key")
    (tmp_path / "config/link").symlink_to("/etc/passwd")
    with closing(sqlite3.connect(tmp_path / "state/multitap.sqlite3")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (x)")
        database.execute("INSERT INTO t VALUES (1)")
        database.commit()
    return made


def rows(folders):
    with closing(sqlite3.connect(folders.state / "multitap.sqlite3")) as database:
        return [*database.execute("SELECT x FROM t")]


def test_a_backup_is_consistent_while_others_write(folders, tmp_path):
    with closing(sqlite3.connect(folders.state / "multitap.sqlite3")) as writer:
        writer.execute("INSERT INTO t VALUES (2)")
        writer.commit()  # only in the WAL yet
        writer.execute("INSERT INTO t VALUES (3)")  # not committed
        make_backup(tmp_path / "b", folders)
        writer.commit()
    restore_backup(tmp_path / "b", folders)

    assert rows(folders) == [(1,), (2,)]


def test_a_backup_has_no_secrets_and_nobody_else_can_read_it(folders, tmp_path):
    make_backup(tmp_path / "b", folders)
    _, files = read_backup(tmp_path / "b")

    assert {*files} == {"config/multitap.toml", "state/multitap.sqlite3", "data/pins/a"}
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


def test_secrets_are_sealed_and_the_key_of_the_vault_is_never_in_it(folders, tmp_path):
    make_backup(tmp_path / "b", folders, PASSPHRASE)
    manifest, files = read_backup(tmp_path / "b")
    assert manifest.has_secrets
    for data in files.values():
        assert b"secret" not in data
        assert b"the key" not in data
    with pytest.raises(BackupError, match="the passphrase is wrong"):
        restore_backup(tmp_path / "b", folders, "wrong")
    (folders.data / "vault/vault.json").write_text("lost")

    moved = restore_backup(tmp_path / "b", folders, PASSPHRASE)

    assert (folders.data / "vault/vault.json").read_text() == "vault secret"
    assert any(path.name.startswith("data.before-") for path in moved)
    # the key of now stays: it opens what is restored
    assert (folders.data / "vault/vault.key").read_text() == "the key"


def test_without_a_passphrase_the_secrets_of_now_stay(folders, tmp_path):
    make_backup(tmp_path / "b", folders, PASSPHRASE)
    (folders.data / "vault/vault.json").write_text("newer")
    (folders.config / "multitap.toml").write_text("broken")
    restore_backup(tmp_path / "b", folders)

    assert (folders.data / "vault/vault.json").read_text() == "newer"
    assert (folders.config / "multitap.toml").read_text() == "[serve]\n"


def packed(path, files, kind=tarfile.REGTYPE):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), kind
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "config/../../x", "other/x", "x", "data/vault/vault.key", "config"]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    packed(tmp_path / "b", {name: b"x"})

    with pytest.raises(BackupError):
        read_backup(tmp_path / "b")


def test_what_is_damaged_or_of_somebody_else_is_refused(folders, tmp_path):
    path = tmp_path / "b"
    for data in (b"", b"no archive", b"\x1f\x8b" + b"x" * 99):
        path.write_bytes(data)
        with pytest.raises(BackupError):
            read_backup(path)
    packed(path, {"config/link": b""}, tarfile.SYMTYPE)
    with pytest.raises(BackupError):
        read_backup(path)
    manifest = {"format": 1, "multitap": "1", "at": 0, "files": {"config/a": "0" * 64}}
    packed(path, {"config/a": b"x", "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(BackupError, match="is damaged"):
        read_backup(path)
    manifest["format"] = 2
    packed(path, {"config/a": b"x", "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(BackupError, match="was made by Multitap 1"):
        restore_backup(path, folders)
    assert (folders.config / "multitap.toml").read_text() == "[serve]\n"


def test_a_damaged_database_is_named(folders):
    assert dict(check_databases(folders)) == {folders.state / "multitap.sqlite3": ""}
    damaged = folders.data / "vault" / "people.sqlite3"
    damaged.write_bytes(b"SQLite format 3\0" + b"x" * 5000)

    assert dict(check_databases(folders))[damaged]


def test_databases_with_secrets_are_copied_consistently(folders, tmp_path):
    path = folders.data / "vault" / "people.sqlite3"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE t (x)")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.commit()  # only in the WAL yet
        make_backup(tmp_path / "b", folders, PASSPHRASE)
    restore_backup(tmp_path / "b", folders, PASSPHRASE)

    with closing(sqlite3.connect(path)) as database:
        assert [*database.execute("SELECT x FROM t")] == [(1,)]
