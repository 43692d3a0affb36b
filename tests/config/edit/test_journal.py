"""Files change together or not at all, and become what they were, byte for byte."""

import resource
import signal
import subprocess
import sys

import pytest

from multitap.config.edit.changes import SetValue, apply_edits
from multitap.config.edit.journal import FileEdit, Journal
from multitap.errors import ConfigError, UnknownName

ODD = b"\xef\xbb\xbf# caf\xc3\xa9\r\n[servers.a]\r\ncommand = 'x'\r\n"


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "state" / "edits")


def adding(path, name="new"):
    put = SetValue(("servers", name), {"command": "npx"})
    return FileEdit(path, lambda text: apply_edits(text, path, [put]))


def snapshot(folder):
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "state" not in path.parts
    }


def test_undo_restores_every_byte(journal, tmp_path):
    old, new = tmp_path / "old.toml", tmp_path / "a" / "b" / "new.toml"
    old.write_bytes(ODD)
    before = snapshot(tmp_path)

    journal.apply("add", [adding(old), adding(new)])
    assert b"npx" in old.read_bytes()
    assert old.read_bytes().startswith(ODD.rstrip())
    assert new.stat().st_mode & 0o777 == 0o600
    journal.undo()

    assert snapshot(tmp_path) == before


def test_a_file_that_goes_comes_back(journal, tmp_path):
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_bytes(ODD)
    journal.apply("add", [adding(new)])
    assert journal.original(new, "add").text is None
    assert journal.original(old, "add") is None
    before = snapshot(tmp_path)

    journal.apply("remove", [FileEdit(new, lambda _: None), adding(old)])
    assert not new.exists()
    assert journal.original(old, "remove").content == ODD
    journal.undo()

    assert snapshot(tmp_path) == before


def test_operations_are_undone_one_after_the_other(journal, tmp_path):
    path = tmp_path / "x.toml"
    texts = [None]
    for name in ("a", "b", "c"):
        journal.apply(f"add {name}", [adding(path, name)])
        texts.append(path.read_bytes())

    assert [one.label for one in journal.operations()] == ["add c", "add b", "add a"]
    for text in reversed(texts[:-1]):
        journal.undo()
        assert (path.read_bytes() if path.exists() else None) == text
    with pytest.raises(UnknownName):
        journal.undo()


def test_undo_refuses_to_discard_what_others_wrote_since(journal, tmp_path):
    first, second = tmp_path / "1.toml", tmp_path / "2.toml"
    journal.apply("add", [adding(first), adding(second)])
    written = second.read_bytes()
    first.write_text("# mine")

    with pytest.raises(ConfigError, match="has changed since") as caught:
        journal.undo()

    assert "--force" in caught.value.hint
    assert (first.read_text(), second.read_bytes()) == ("# mine", written)
    journal.undo(force=True)
    assert not first.exists()
    assert not second.exists()


def test_a_link_stays_a_link_and_permissions_stay(journal, tmp_path):
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_text("# x\n")
    real.chmod(0o640)
    link.symlink_to("real.toml")

    journal.apply("add", [adding(link)])

    assert link.is_symlink()
    assert "npx" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.toml", "real.toml", "state"]


def test_one_file_that_cannot_be_changed_keeps_all_as_they_were(journal, tmp_path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.json"
    good.write_text("# x\n")
    bad.write_text("{")
    before = snapshot(tmp_path)

    with pytest.raises(ConfigError, match=r"bad\.json"):
        journal.apply("add", [adding(good), adding(bad)])

    assert snapshot(tmp_path) == before
    assert journal.operations() == ()


def test_a_file_in_an_impossible_place_changes_nothing(journal, tmp_path):
    good = tmp_path / "good.toml"
    (tmp_path / "file").write_text("")
    before = snapshot(tmp_path)

    with pytest.raises(ConfigError, match=r"x\.toml cannot be (read|written)"):
        journal.apply("add", [adding(good), adding(tmp_path / "file" / "x.toml")])

    assert snapshot(tmp_path) == before


def test_a_read_only_file_is_left_alone(journal, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("# x\n")
    path.chmod(0o444)

    with pytest.raises(ConfigError, match="read-only"):
        journal.apply("add", [adding(path)])

    assert path.read_text() == "# x\n"


def test_a_full_disk_changes_nothing(journal, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("# x\n" * 3000)
    before = snapshot(tmp_path)
    journal.apply("nothing", [])  # so that the journal itself is there
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            journal.apply("add", [adding(path)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)

    assert snapshot(tmp_path) == before
    assert journal.operations() == ()


KILLED = """
import os, sys
from pathlib import Path
from multitap.config.edit import journal
from multitap.config.edit.journal import FileEdit, Journal

commits = [int(sys.argv[1])]
commit = journal.StagedFile.commit

def deadly(self):
    if str(self.target).endswith(".toml"):
        if not commits[0]:
            os.kill(os.getpid(), 9)
        commits[0] -= 1
    commit(self)

journal.StagedFile.commit = deadly
folder = Path(sys.argv[2])
edits = [FileEdit(folder / f"{n}.toml", lambda text: text + "# new\\n") for n in range(3)]
Journal(folder / "state" / "edits").apply("killed", edits)
"""


@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_was_killed_in_the_middle_is_rolled_back(journal, tmp_path, after):
    (tmp_path / "0.toml").write_text("# old\n")
    (tmp_path / "1.toml").write_text("# old\n")
    before = snapshot(tmp_path)

    ended = subprocess.run([sys.executable, "-c", KILLED, str(after), tmp_path], check=False)
    journal.apply("nothing", [])

    assert ended.returncode == -signal.SIGKILL
    assert snapshot(tmp_path) == before


ADDING = """
import sys
from pathlib import Path
from multitap.config.edit.changes import SetValue
from multitap.config.edit.changes import apply_edits
from multitap.config.edit.journal import FileEdit, Journal

path, journal = Path(sys.argv[1]), Journal(Path(sys.argv[2]))
for number in range(5):
    put = SetValue(("servers", f"{sys.argv[3]}{number}"), {"command": "x"})
    journal.apply("add", [FileEdit(path, lambda text: apply_edits(text, path, [put]))])
"""


def test_writers_at_the_same_time_lose_nothing(journal, tmp_path):
    path = tmp_path / "x.toml"
    writers = [
        subprocess.Popen([sys.executable, "-c", ADDING, path, journal.folder, name])
        for name in "abc"
    ]

    assert [writer.wait(50) for writer in writers] == [0, 0, 0]
    assert path.read_text().count("[servers.") == 15
    assert len(journal.operations()) == 15


def test_a_program_that_writes_in_between_is_not_overwritten(journal, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("# x\n")
    interruptions = iter([True])

    def change(text):
        if next(interruptions, False):
            path.write_text("# theirs\n")
        return text + "# ours\n"

    journal.apply("add", [FileEdit(path, change)])

    assert path.read_text() == "# theirs\n# ours\n"


def test_the_journal_is_for_its_owner_alone(journal, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("# key = 'secret'\n")

    journal.apply("add", [adding(path)])

    for one in (journal.folder, *journal.folder.rglob("*")):
        assert not one.stat().st_mode & 0o077, one
