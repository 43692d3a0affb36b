"""What servers wrote to their standard error, followed through rotation."""

import os
import re
import subprocess
import sys
import time

import pytest

from multitap.cli.problems.logs import read_log
from multitap.wire.stderr_log import KEPT, log_folder, tidy


@pytest.fixture
def log(tmp_path, home, configure):
    """Writes the log of the server `zoo`."""
    configure(zoo="good")
    files = (str(home / "multitap.toml"),)
    folder = log_folder(tmp_path / "state" / "multitap", files)
    folder.mkdir(parents=True)
    return folder / "zoo.log"


def test_what_a_server_wrote_is_printed(multitap, configure):
    configure(crashing="exit_at_start")
    multitap("status")

    ended = multitap("logs crashing")

    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d zoo: cannot open", ended.out, re.MULTILINE)


def test_each_configuration_has_its_own_logs(multitap, configure, home, monkeypatch):
    configure(crashing="exit_at_start")
    multitap("status")
    other = home.parent / "other"
    other.mkdir()
    (other / "multitap.toml").write_text((home / "multitap.toml").read_text())
    monkeypatch.chdir(other)

    ended = multitap("logs crashing")

    assert (ended.code, ended.out) == (0, "")


def test_logs_that_nobody_writes_to_are_removed_after_a_month(tmp_path):
    old, new = tmp_path / "old-1", tmp_path / "new-1"
    before = time.time() - KEPT - 60
    for folder in (old, new):
        folder.mkdir()
        (folder / "zoo.log").write_text("one\n")
        os.utime(folder / "zoo.log", (before, before))
        os.utime(folder, (before, before))
    (new / "zoo.log").write_text("two\n")

    tidy(tmp_path)

    assert [*tmp_path.iterdir()] == [new]


def test_the_part_before_the_rotation_comes_first(multitap, log):
    log.with_suffix(".log.1").write_text("one\ntwo\n")
    log.write_text("three\nfour\n")

    assert multitap("logs zoo").out == "one\ntwo\nthree\nfour\n"
    assert multitap("logs zoo -n 3").out == "two\nthree\nfour\n"
    assert multitap("logs zoo -n 0").out == ""


@pytest.mark.usefixtures("log")
def test_a_server_without_a_word_is_no_error(multitap):
    ended = multitap("logs zoo")

    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "zoo has not written anything\n"


@pytest.mark.usefixtures("log")
def test_an_unknown_server_gets_a_suggestion(multitap):
    ended = multitap("logs zo")

    assert ended.code == 2
    assert "did you mean `zoo`?" in ended.err


def test_a_log_is_followed_through_rotation(log):
    log.write_text("one\n")
    news = read_log(log, follow=True, lines=None)

    def next_words():
        return next(data for data in news if data)

    assert next_words() == b"one\n"
    with log.open("a") as file:
        file.write("two\n")
    assert next_words() == b"two\n"
    with log.open("a") as file:
        file.write("three\n")
    log.replace(log.with_suffix(".log.1"))
    log.write_text("four\n")
    assert next_words() == b"three\n"
    assert next_words() == b"four\n"
    news.close()


def test_a_log_that_is_not_there_yet_is_waited_for(log):
    news = read_log(log, follow=True, lines=None)
    assert next(news) == b""

    log.write_text("first\n")

    assert next(data for data in news if data) == b"first\n"
    news.close()


def test_following_ends_with_130_at_ctrl_c(log):
    log.write_text("one\n")
    command = [sys.executable, "-m", "multitap", "logs", "zoo", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "one\n"
        with log.open("a") as file:
            file.write("two\n")
        assert process.stdout.readline() == "two\n"

        process.send_signal(2)

        assert process.wait(10) == 130
