"""Backups by command."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path


def test_a_backup_is_made_checked_and_restored(multitap, home, monkeypatch):
    monkeypatch.setenv("MULTITAP_BACKUP_PASSPHRASE", "correct horse")
    config = Path(home).parent / "config/multitap/multitap.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[serve]\n")
    made = multitap("state backup b.tar.gz --secrets")
    checked = multitap("state check b.tar.gz")
    config.write_text("[broken")
    restored = multitap("state restore b.tar.gz --secrets")

    assert made.code == checked.code == restored.code == 0
    assert "with secrets" in checked.out
    assert config.read_text() == "[serve]\n"
    assert "what was there is now in" in restored.err


def test_what_is_no_backup_is_refused(multitap, home):
    (home / "b").write_text("hello")
    ended = multitap("state restore b")

    assert ended.code == 1
    assert ended.err.startswith("error: b cannot be read")


def test_the_state_of_a_configuration_with_its_own_folder_is_kept(multitap, home):
    config = Path(home).parent / "config/multitap/multitap.toml"
    config.parent.mkdir(parents=True)
    state = home / "elsewhere" / "state"
    config.write_text(f"state_dir = '{state}'\n")
    state.mkdir(parents=True)
    with closing(sqlite3.connect(state / "multitap.sqlite3")) as database:
        database.execute("CREATE TABLE t (x)")
    checked = multitap("state check")
    made = multitap("state backup b.tar.gz")
    config.write_text("")
    shutil.rmtree(state)
    restored = multitap("state restore b.tar.gz")

    assert checked.code == made.code == restored.code == 0
    assert checked.out == f"{state}/multitap.sqlite3: ok\n"
    with closing(sqlite3.connect(state / "multitap.sqlite3")) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]


def test_a_backup_that_is_not_there_is_named_once(multitap):
    ended = multitap("state check nowhere")

    assert (ended.code, ended.err) == (
        1,
        "error: nowhere cannot be read: No such file or directory\n",
    )
