"""Backups by command."""

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
